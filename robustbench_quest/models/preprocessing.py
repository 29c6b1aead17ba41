"""Which preprocessing a model was trained for: every source that says something, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..checkpoints.preprocessing import INTERPOLATIONS, Source, is_channels
from ..checkpoints.setting import Row
from ..errors import OptionError, unknown
from ..types import Preprocessing

DEFAULT = "default"
MAX_SIDE = 4096  # pixels; a position for each patch of a larger image fits no machine


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


def _text(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple | list) else str(value)
