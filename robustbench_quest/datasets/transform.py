"""A decoded image becomes a model's input: resize, cut out the centre, scale to [0, 1].

Byte for byte what timm's evaluation transform does to Pillow images in each of its crop modes, of which the
first, torchvision's ``Resize(int)`` and ``CenterCrop``, is that of nearly all code (normalisation happens
inside the classifier). Crop and scaling are separate functions because corruptions act on the cropped 8-bit
image.
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
        preprocessing: its ``crop_mode`` says how to resize; the colour of a border is its ``mean``.

    Raises:
        DataError: there is no resize and the image is not size x size; or it is so narrow that resizing it
            would take all memory, or leave nothing of it.
        OptionError: no such interpolation or crop mode.
    """
    how, size = preprocessing, preprocessing.size
    if not how.resize:
        return _as_it_is(image, size)
    if how.crop_mode == "center":
        return center_crop(resize_shorter_side(image, how.resize, how.interpolation), size)
    if how.crop_mode == "squash":
        return center_crop(_resized(image, (how.resize, how.resize), how.interpolation), size)
    if how.crop_mode == "border":
        red, green, blue = (round(255 * channel) for channel in how.mean)
        return center_crop(resize_longer_side(image, how.resize, how.interpolation), size, (red, green, blue))
    raise OptionError(unknown("crop mode", how.crop_mode, ("center", "squash", "border")))


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
    height, width = image.shape[:2]
    shorter, longer = sorted((height, width))
    resized = int(target * longer / shorter)
    return _resized(image, (target, resized) if width <= height else (resized, target), interpolation)


def resize_longer_side(
    image: npt.NDArray[np.uint8], target: int, interpolation: str
) -> npt.NDArray[np.uint8]:
    """Resize (H, W, 3) so that its longer side has ``target`` pixels, with antialiasing.

    Both sides are divided by one ratio and rounded, as in timm's ``ResizeKeepRatio``.
    """
    height, width = image.shape[:2]
    ratio = max(height, width) / target
    return _resized(image, (round(width / ratio), round(height / ratio)), interpolation)


def center_crop(
    image: npt.NDArray[np.uint8], size: int, fill: tuple[int, int, int] = (0, 0, 0)
) -> npt.NDArray[np.uint8]:
    """Cut the centre (size, size, 3) out of (H, W, 3); where the image is smaller, put ``fill`` around it."""
    height, width = image.shape[:2]
    if min(height, width) < size:
        canvas = np.empty((max(height, size), max(width, size), 3), dtype=np.uint8)
        canvas[:] = fill
        top, left = (max(size - side, 0) // 2 for side in (height, width))
        canvas[top : top + height, left : left + width] = image
        image = canvas
    # Python rounds halves to even, as torchvision's centre crop therefore does.
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return image[top : top + size, left : left + size]


def _as_it_is(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        raise DataError(
            f"expected {size}x{size} pixels, as the model's preprocessing resizes nothing, "
            f"found {width}x{height}; resize the images, or give the preprocessing a resize"
        )
    return image


def _resized(
    image: npt.NDArray[np.uint8], wanted: tuple[int, int], interpolation: str
) -> npt.NDArray[np.uint8]:
    """Resize (H, W, 3) to ``wanted``: width, height."""
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown("interpolation", interpolation, INTERPOLATIONS))
    height, width = image.shape[:2]
    shorter, longer = sorted(wanted)
    if shorter * longer > MAX_RESIZED_PIXELS:
        raise DataError(
            f"{width}x{height} pixels are too narrow: resized to {shorter} on the shorter side they would be "
            f"{longer} on the longer; crop the image"
        )
    if not shorter:
        raise DataError(
            f"{width}x{height} pixels are too narrow: resized to {longer} on the longer side nothing would "
            "be left of the shorter; crop the image"
        )
    if wanted == (width, height):
        return image
    return np.asarray(Image.fromarray(image).resize(wanted, INTERPOLATIONS[interpolation]))
