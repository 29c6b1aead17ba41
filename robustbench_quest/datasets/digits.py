"""The embedded data set: scikit-learn's handwritten digits as 32x32 RGB images.

1,797 grey 8x8 images with values 0-16, enlarged to 32x32 (Pillow, bilinear) and repeated to three channels.
Fixed split: 50 images of each digit for the test (500), the other 1,297 for training, chosen by a hash.
Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, CC BY 4.0.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..rng import digest
from .base import Dataset

TEST_PER_CLASS = 50
SIZE = 32
PREPROCESSING = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "size": SIZE, "resize": 0}


@cache
def load_arrays() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return all images (1797, 32, 32, 3) uint8, labels (1797,), and which belong to the test split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    large = [
        np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for image in small
    ]
    pixels = np.repeat(np.stack(large)[..., None], 3, axis=-1)
    labels = bunch.target.astype(np.int64)
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        test[sorted(members, key=lambda i: digest("digits-test", int(i)))[:TEST_PER_CLASS]] = True
    return pixels, labels, test


class Digits(Dataset):
    """The 500 test images. Ids tell the position in scikit-learn's data: "digits-test-0001"."""

    name = "digits"
    needs_root = False
    default_eps = "4/255"

    def __init__(self) -> None:
        pixels, labels, test = load_arrays()
        self.num_classes = 10
        self.class_names = tuple(str(digit) for digit in range(10))
        self.image_ids = tuple(f"digits-test-{index:04d}" for index in np.flatnonzero(test))
        self.labels = labels[test]
        self._pixels: npt.NDArray[np.uint8] = pixels[test]

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image at ``index`` of the listing: (32, 32, 3) uint8."""
        return np.array(self._pixels[index])

    def fingerprint(self) -> str:
        """Return the sha256 of all pixel bytes and labels."""
        return hashlib.sha256(self._pixels.tobytes() + self.labels.astype("<i8").tobytes()).hexdigest()
