"""What a file says about preprocessing: its sidecar, its metadata, its training arguments, its container."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
CROP_MODES = ("center", "squash", "border")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ARGS = "args in the file"
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
        and all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    )


def from_args(args: Mapping[str, Any]) -> Source:
    """Return what training arguments say: DeiT's (``input_size``, ``eval_crop_ratio``), or timm's.

    Arguments of other types (timm leaves most of them None) say nothing.

    Raises:
        CheckpointError: a crop ratio that no evaluation uses.
    """
    size, key = args.get("input_size"), "eval_crop_ratio" if "eval_crop_ratio" in args else "crop_pct"
    if isinstance(size, list | tuple) and len(size) == 3 and size[1] == size[2]:  # timm's: channels first
        size = size[2]
    ratio = args.get(key)
    if isinstance(ratio, int | float) and not LEAST_CROP_RATIO < ratio <= 1:
        raise CheckpointError(
            f"args in the file: {key} must be above {LEAST_CROP_RATIO} and at most 1; found {ratio}; save "
            "the file again with the ratio that the model is evaluated with"
        )
    return Source(
        ARGS,
        size=size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None,
        interpolation=args.get("interpolation") if args.get("interpolation") in INTERPOLATIONS else None,
        mean=_channels(args.get("mean")),
        std=_channels(args.get("std")),
        crop_ratio=float(ratio) if isinstance(ratio, int | float) else None,
        crop_mode=args.get("crop_mode") if args.get("crop_mode") in CROP_MODES else None,
    )


def from_container(name: str) -> Source:
    """Return how the code that writes DeiT's files evaluates: bicubic, 256 for 224, ImageNet's statistics."""
    return Source(
        f"container: {name}",
        interpolation="bicubic",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop_ratio=DEIT_CROP_RATIO,
        crop_mode="center",
    )


def _channels(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if is_channels(value) else None
