"""Which preprocessing a model was trained for: every source that says something, in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError, OptionError, unknown
from ..types import Preprocessing

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT = "default"
ARGS = "args in the file"
MAX_SIDE = 4096  # pixels; a position for each patch of a larger image fits no machine
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

    def value(self, setting: str, size: int | None) -> Any:
        """Return what this source says about a setting, or None. ``size`` is the side that was decided on."""
        if setting != "resize" or size is None:
            return getattr(self, setting)
        if self.resize is not None:
            # A declared pair keeps its ratio when another size is asked for.
            return self.resize * size // self.size if self.size else self.resize
        return None if self.crop_ratio is None else math.floor(size / self.crop_ratio)


@dataclass(frozen=True)
class Row:
    """One line of ``--explain``: a setting, its value, its source, and what other sources would give."""

    setting: str
    value: str
    source: str
    alternatives: str = ""


# The last resort for what hardly changes a number; mean and std have none.
FALLBACK = Source(DEFAULT, interpolation="bicubic", crop_ratio=1.0)
SETTINGS = ("size", "resize", "interpolation", "mean", "std")


def resolve_preprocessing(sources: Sequence[Source], subject: str) -> tuple[Preprocessing, list[Row]]:
    """Return the preprocessing, each setting from the first source that gives it, and one row per setting.

    Raises:
        OptionError: nothing declares a setting, or a value cannot be used.
    """
    sources = (*sources, FALLBACK)
    values: dict[str, Any] = {}
    rows: list[Row] = []
    for setting in SETTINGS:
        said = [(source.name, source.value(setting, values.get("size"))) for source in sources]
        said = [(name, value) for name, value in said if value is not None]
        if not said:
            raise OptionError(
                f"nothing declares the {setting} that {subject} was trained with; give --{_FLAGS[setting]}, "
                f"or `preprocessing: {{{setting}: ...}}` in a sidecar .yaml"
            )
        values[setting] = said[0][1]
        others = [f"{name}: {_text(v)}" for name, v in said[1:] if v != said[0][1] and name != DEFAULT]
        rows.append(Row(setting, _text(said[0][1]), said[0][0], "; ".join(others)))
    return check_preprocessing(**values), rows


def undeclared(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the settings that nothing declared; an interpolation that is never used needs no declaration."""
    fixed = any(row.setting == "resize" and row.value == "0" for row in rows)
    return tuple(
        r.setting for r in rows if r.source == DEFAULT and not (fixed and r.setting == "interpolation")
    )


def check_preprocessing(
    size: int, resize: int, interpolation: str, mean: Sequence[float], std: Sequence[float]
) -> Preprocessing:
    """Return the preprocessing.

    Raises:
        OptionError: a value that cannot be used.
    """
    for key, side, least in (("size", size, 1), ("resize", resize, 0)):
        if isinstance(side, bool) or not isinstance(side, int) or side < least:
            raise OptionError(f"{key} must be a whole number of pixels, at least {least}; got {side!r}")
    if size > MAX_SIDE:
        raise OptionError(f"size must be at most {MAX_SIDE} pixels; got {size}")
    if 0 < resize < size:
        raise OptionError(f"resize must be 0 (as it is) or at least the size {size}; got {resize}")
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown("interpolation", str(interpolation), INTERPOLATIONS))
    for key, channels in (("mean", mean), ("std", std)):
        if not is_channels(channels):
            raise OptionError(f"{key} must be three numbers, one per channel; got {channels!r}")
    if min(std) <= 0:
        raise OptionError(f"std must be positive; got {tuple(std)}")
    if min(mean) < 0 or max(*mean, *std) > 1:
        raise OptionError(
            f"mean and std are for pixels in [0, 1]; got {tuple(mean)} and {tuple(std)}: divide values for "
            "pixels of 0-255 by 255"
        )
    return Preprocessing(size, resize, interpolation, _triple(mean), _triple(std))


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
    )


def from_container(name: str) -> Source:
    """Return how the code that writes DeiT's files evaluates: bicubic, 256 for 224, ImageNet's statistics."""
    return Source(
        f"container: {name}",
        interpolation="bicubic",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop_ratio=DEIT_CROP_RATIO,
    )


def from_timm(name: str, config: Mapping[str, Any]) -> Source:
    """Return what a timm configuration says."""
    mode = config.get("crop_mode", "center")
    note = "" if mode == "center" else f" (its crop mode {mode!r} is replaced by a centre crop)"
    return Source(
        f"timm configuration of {name}{note}",
        size=int(config["input_size"][-1]),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop_ratio=float(config["crop_pct"]),
    )


_FLAGS = {
    "size": "img-size",
    "resize": "resize",
    "interpolation": "interpolation",
    "mean": "mean",
    "std": "std",
}


def _triple(channels: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = (float(channel) for channel in channels)
    return first, second, third


def _channels(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if is_channels(value) else None


def _text(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple | list) else str(value)
