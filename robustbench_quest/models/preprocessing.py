"""Which preprocessing a model was trained for: every source that says something, in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoints.declared import Declaration
from ..checkpoints.preprocessing import CROP_MODES, INTERPOLATIONS, LEAST_CROP_RATIO, Source, is_channels
from ..checkpoints.setting import Setting, pick
from ..errors import OptionError, brief, unknown
from ..types import Preprocessing

DEFAULT = "default"
MAX_SIDE = 4096  # pixels; a position for each patch of a larger image fits no machine
# The last resort for what hardly changes a number; mean and std have none.
FALLBACK = Source(DEFAULT, interpolation="bicubic", crop_ratio=1.0, crop_mode="center")
SETTINGS = ("size", "resize", "crop_mode", "interpolation", "mean", "std")


def choose_preprocessing(
    declarations: Sequence[Declaration],
    container: Source | None,
    size: int | None,
    timm: Sequence[Source],
    subject: str,
) -> tuple[Preprocessing, list[Setting]]:
    """Return the preprocessing, and its settings with their sources.

    Args:
        declarations: flag, sidecar, metadata, args.
        container: what the file's container implies beyond the arguments in it, or None.
        size: the side of the input that the model is built for, or None.
        timm: timm's configuration, if any; then those of all weights that this one may have come from.
        subject: what is loaded, for messages.

    Raises:
        OptionError: nothing declares a setting, a value cannot be used, or timm's weights disagree.
    """
    sources = [source for declaration in declarations for source in declaration.preprocessing]
    sources += [] if container is None else [container]
    sources += implied_crop(sources)
    sources += [] if size is None else [Source("the model's own input size", size=size)]
    found, settings = resolve_preprocessing([*sources, *timm[:1]], subject)
    return found, [_agreed(setting, timm, found, subject) for setting in settings]


def resolve_preprocessing(sources: Sequence[Source], subject: str) -> tuple[Preprocessing, list[Setting]]:
    """Return the preprocessing, and each setting from the first source that gives it.

    Raises:
        OptionError: nothing declares a setting, or a value cannot be used.
    """
    values: dict[str, Any] = {}
    found: list[Setting] = []
    for name in SETTINGS:
        size = values.get("size")
        setting = pick(name, ((source.name, source.value(name, size)) for source in sources))
        if setting is None:
            setting = pick(name, [(DEFAULT, FALLBACK.value(name, size))])
            # An interpolation that is never used needs no declaration, nor does the crop mode: who has
            # another than a centre crop says so.
            idle = name == "crop_mode" or (name == "interpolation" and values["resize"] == 0)
            setting = setting and replace(setting, guessed=() if idle else (name,))
        if setting is None:
            flag = "img-size" if name == "size" else name
            raise OptionError(
                f"nothing declares the {name} that {subject} was trained with; give --{flag}, or "
                f"`preprocessing: {{{name}: ...}}` in a sidecar .yaml"
            )
        values[name] = setting.value
        found.append(setting)
    return check_preprocessing(**values), found


def _agreed(setting: Setting, timm: Sequence[Source], found: Preprocessing, subject: str) -> Setting:
    """Return a setting that timm alone gives, as a guess where timm's weights of the same name differ in it.

    Raises:
        OptionError: they differ in the mean or standard deviation, which decides about every number.
    """
    if not timm or setting.source != timm[0].name:
        return setting
    said: dict[Any, list[str]] = {}
    for source in timm[1:]:
        said.setdefault(source.value(setting.name, found.size), []).append(source.name)
    unused = found.resize == 0 and setting.name in ("crop_mode", "interpolation")
    if unused or not {*said} - {setting.value}:
        return setting
    if setting.name not in ("mean", "std"):
        return replace(setting, guessed=(setting.name,))
    choices = "; ".join(f"{value}: {', '.join(names)}" for value, names in said.items())
    raise OptionError(
        f"{subject}: nothing declares its {setting.name}, and timm's weights of that name were trained with "
        f"different ones ({choices}); say which in arch, or give mean and std"
    )


def check_preprocessing(
    size: int,
    resize: int,
    interpolation: str,
    mean: Sequence[float],
    std: Sequence[float],
    crop_mode: str = "center",
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
    if resize > size / LEAST_CROP_RATIO:
        most = math.floor(size / LEAST_CROP_RATIO)
        raise OptionError(f"resize must be at most {most}, ten times the size {size}; got {brief(resize)}")
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown("interpolation", str(interpolation), INTERPOLATIONS))
    if crop_mode not in CROP_MODES:
        raise OptionError(unknown("crop mode", str(crop_mode), CROP_MODES))
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
    return Preprocessing(size, resize, interpolation, _triple(mean), _triple(std), crop_mode)


def from_timm(name: str, config: Mapping[str, Any]) -> Source:
    """Return what a timm configuration says of evaluation at the size of training.

    Its ``test_input_size``, which timm's own evaluation takes, is only noted: weights that were trained under
    the name of an architecture need not be timm's.
    """
    height, width = config["input_size"][-2:]
    note = "" if height == width else f" (its {width}x{height} input is not square)"
    if config.get("test_input_size"):
        ratio = config.get("test_crop_pct") or config["crop_pct"]
        note += f" (timm tests its weights at {config['test_input_size'][-1]}, crop ratio {ratio})"
    return Source(
        f"timm configuration of {name}{note}",
        size=int(width) if height == width else None,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop_ratio=float(config["crop_pct"]),
        crop_mode=config.get("crop_mode", "center"),
    )


def implied_crop(sources: Sequence[Source]) -> list[Source]:
    """Return the centre crop that is meant where ``resize`` is declared, in pixels of the shorter side.

    It is weaker than a declared crop mode, and stronger than that of timm's weights of the same name.
    """
    return [Source(source.name, crop_mode="center") for source in sources if source.resize is not None][:1]


def _triple(channels: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = (float(channel) for channel in channels)
    return first, second, third
