"""A decoded image becomes a model's input: resize the shorter side, cut out the centre, scale to [0, 1].

Byte for byte torchvision's ``Resize(int)``, ``CenterCrop`` and ``ToTensor`` on Pillow images, of which the
evaluation transforms of timm and DeiT consist (normalisation happens inside the classifier). Crop and scaling
are separate functions because corruptions act on the cropped 8-bit image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import DataError, OptionError, unknown
from ..types import Preprocessing

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MAX_RESIZED_PIXELS = 2**27  # about Pillow's own limit; 0.4 GB


def resize_and_crop(image: npt.NDArray[np.uint8], preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    """Return the 8-bit image that a model sees, (size, size, 3) uint8, RGB.

    Args:
        image: (H, W, 3) uint8, RGB.
        preprocessing: ``resize``, ``size`` and ``interpolation`` are used.

    Raises:
        DataError: there is no resize and the image is not size x size; or it is so narrow that resizing it
            would take all memory.
        OptionError: no such interpolation.
    """
    size = preprocessing.size
    if preprocessing.resize:
        resized = resize_shorter_side(image, preprocessing.resize, preprocessing.interpolation)
        return center_crop(resized, size)
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        raise DataError(
            f"expected {size}x{size} pixels, as the model's preprocessing resizes nothing, "
            f"found {width}x{height}; resize the images, or give the preprocessing a resize"
        )
    return image


def to_unit(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Map (..., H, W, 3) uint8 to (..., 3, H, W) float32 in [0, 1], contiguous."""
    channels_first = np.ascontiguousarray(np.moveaxis(image, -1, -3))
    return channels_first.astype(np.float32) / np.float32(255)


def resize_shorter_side(
    image: npt.NDArray[np.uint8], target: int, interpolation: str
) -> npt.NDArray[np.uint8]:
    """Resize (H, W, 3) so that its shorter side has ``target`` pixels, with antialiasing.

    The longer side is ``int(target * longer / shorter)``, truncated, as in torchvision.
    """
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown("interpolation", interpolation, INTERPOLATIONS))
    height, width = image.shape[:2]
    shorter, longer = sorted((height, width))
    resized = int(target * longer / shorter)
    if target * resized > MAX_RESIZED_PIXELS:
        raise DataError(
            f"{width}x{height} pixels are too narrow: resized to {target} on the shorter side they would be "
            f"{resized} on the longer; crop the image"
        )
    wanted = (target, resized) if width <= height else (resized, target)
    if wanted == (width, height):
        return image
    return np.asarray(Image.fromarray(image).resize(wanted, INTERPOLATIONS[interpolation]))


def center_crop(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Cut the centre (size, size, 3) out of (H, W, 3); where the image is smaller, pad it with zeros."""
    short_of = [max(size - side, 0) for side in image.shape[:2]]
    padded = np.pad(image, [(lack // 2, (lack + 1) // 2) for lack in short_of] + [(0, 0)])
    # Python rounds halves to even, as torchvision's centre crop therefore does.
    top, left = (round((side - size) / 2) for side in padded.shape[:2])
    return padded[top : top + size, left : left + size]
