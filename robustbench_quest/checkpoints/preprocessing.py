"""What a file says about preprocessing: its sidecar, its metadata, its training arguments, its container."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError, brief

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
CROP_MODES = ("center", "squash", "border")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ARGS = "args in the file"
MOST_PIXELS = 1 << 16
LEAST_CROP_RATIO = 0.1
DEIT_CROP_RATIO = 224 / 256  # main.py of facebookresearch/deit: --eval-crop-ratio 0.875


@dataclass(frozen=True)
class Source:
    """What one source says about preprocessing; None where it says nothing.

    Args:
        name: as ``ModelSpec.sources`` shows it: "flag", "args in the file" ...
        crop_ratio: size / resize, for sources that give the ratio in place of ``resize``.
    """

    name: str
    size: int | None = None
    resize: int | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop_ratio: float | None = None
    crop_mode: str | None = None

    def value(self, setting: str, size: int | None) -> Any:
        """Return what this source says about a setting, or None. ``size`` is the side that was decided on."""
        if setting != "resize" or size is None:
            return getattr(self, setting)
        if self.resize is not None:
            # A declared pair keeps its ratio when another size is asked for.
            return self.resize * size // self.size if self.size else self.resize
        return None if self.crop_ratio is None else math.floor(size / self.crop_ratio)


def is_channels(value: object) -> bool:
    """Return whether ``value`` is three finite numbers."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 3
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        and all(abs(v) <= sys.float_info.max for v in value)
    )


def input_size(args: Mapping[str, Any]) -> int | None:
    """Return the side of the images that training arguments name, or None.

    Raises:
        CheckpointError: one that no image has.
    """
    size = args.get("input_size")
    if isinstance(size, list | tuple) and len(size) == 3 and size[1] == size[2]:  # timm's: channels first
        size = size[2]
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        return None
    if size > MOST_PIXELS:
        raise CheckpointError(
            f"args in the file: input_size must be at most {MOST_PIXELS} pixels; found {brief(size)}"
        )
    return size


def from_args(args: Mapping[str, Any]) -> Source:
    """Return what training arguments say: DeiT's (``input_size``, ``eval_crop_ratio``), or timm's.

    Arguments of other types (timm leaves most of them None) say nothing.

    Raises:
        CheckpointError: a crop ratio that no evaluation uses, or a size that no image has.
    """
    size, key = input_size(args), "eval_crop_ratio" if "eval_crop_ratio" in args else "crop_pct"
    ratio = args.get(key)
    if isinstance(ratio, int | float) and not LEAST_CROP_RATIO < ratio <= 1:
        raise CheckpointError(
            f"args in the file: {key} must be above {LEAST_CROP_RATIO} and at most 1; found {brief(ratio)}; "
            "save the file again with the ratio that the model is evaluated with"
        )
    return Source(
        ARGS,
        size=size,
        interpolation=args.get("interpolation") if args.get("interpolation") in INTERPOLATIONS else None,
        mean=_channels(args.get("mean")),
        std=_channels(args.get("std")),
        crop_ratio=float(ratio) if isinstance(ratio, int | float) else None,
        crop_mode=args.get("crop_mode") if args.get("crop_mode") in CROP_MODES else None,
    )


def from_container(
    name: str,
    *,
    interpolation: str = "bicubic",
    ratio: float = DEIT_CROP_RATIO,
    inception: bool = False,
) -> Source:
    """Return how the code that writes a kind of files evaluates, by default DeiT's.

    Args:
        name: of the code.
        interpolation: a Pillow filter's name.
        ratio: size / resize.
        inception: whether mean and std are 0.5 in place of ImageNet's.
    """
    half = (0.5, 0.5, 0.5)
    return Source(
        f"container: {name}",
        interpolation=interpolation,
        mean=half if inception else IMAGENET_MEAN,
        std=half if inception else IMAGENET_STD,
        crop_ratio=ratio,
        crop_mode="center",
    )


def _channels(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if is_channels(value) else None
