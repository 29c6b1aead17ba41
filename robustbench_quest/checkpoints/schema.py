"""What a sidecar and metadata may hold, as pydantic models; each validator's text is the end of a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator

from ..errors import unknown
from ..types import OptionValue
from .preprocessing import CROP_MODES, INTERPOLATIONS, MOST_PIXELS, is_channels

MOST_NUMBER = 1_000_000_000  # which no size or rate of a model comes near


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.isprintable():
        raise ValueError("must be one line of printable text")
    return value


def _option(value: object) -> OptionValue:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("must be text, a number or true/false")
    if not isinstance(value, str) and abs(value) > MOST_NUMBER:
        raise ValueError(f"must be at most {MOST_NUMBER}")
    return value


def _attention(value: object) -> object:
    if isinstance(value, dict) and value.get("name") is None:
        raise ValueError("attention needs a name, as in {name: elliptical, estimator: median}")
    if not isinstance(value.get("name") if isinstance(value, dict) else value, str | None):
        raise ValueError("must be a name or a mapping with one")
    return value


def _pixels(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_PIXELS:
            raise ValueError("must be a whole number of pixels")
        return value

    return check


def _interpolation(value: object) -> str:
    if value not in INTERPOLATIONS:
        raise ValueError(unknown("interpolation", str(value)[:40], INTERPOLATIONS))
    return str(value)


def _crop_mode(value: object) -> str:
    if value not in CROP_MODES:
        raise ValueError(unknown("crop mode", str(value)[:40], CROP_MODES))
    return str(value)


def _mean(value: Any) -> tuple[float, ...]:
    if not is_channels(value):
        raise ValueError("must be three numbers")
    return tuple(float(channel) for channel in value)


def _std(value: Any) -> tuple[float, ...]:
    if not is_channels(value) or min(value) <= 0:
        raise ValueError("must be three positive numbers")
    return _mean(value)


Text = Annotated[str | None, PlainValidator(_text)]
Options = dict[str, Annotated[OptionValue, PlainValidator(_option)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Preprocessing(_Strict):
    """The key ``preprocessing``."""

    size: Annotated[int | None, PlainValidator(_pixels(1))] = None
    resize: Annotated[int | None, PlainValidator(_pixels(0))] = None
    crop_mode: Annotated[str | None, PlainValidator(_crop_mode)] = None
    interpolation: Annotated[str | None, PlainValidator(_interpolation)] = None
    mean: Annotated[tuple[float, ...] | None, PlainValidator(_mean)] = None
    std: Annotated[tuple[float, ...] | None, PlainValidator(_std)] = None


class Contents(_Strict):
    """A sidecar, or the metadata key "rbq"; ``seed``, ``recipe`` and ``accuracy`` are notes of its author."""

    name: Text = None
    arch: Text = None
    arch_options: Options = {}
    attention: Annotated[str | None, PlainValidator(_attention)] = None
    attention_options: Options | None = None
    preprocessing: Preprocessing | None = None
    weights: Text = None
    dataset: Text = None
    seed: Any = None
    recipe: Any = None
    accuracy: Any = None

    @model_validator(mode="before")
    @classmethod
    def _options_once(cls, content: Any) -> Any:
        """Bring ``attention: {name: ..., option: ...}`` to the form with ``attention_options``."""
        value = content.get("attention")
        if not isinstance(value, dict) or value.get("name") is None:
            return content
        if content.get("attention_options") is not None:
            raise ValueError("attention holds options already; leave attention_options out")
        options = {key: option for key, option in value.items() if key != "name"} or None
        return {**content, "attention": value["name"], "attention_options": options}


class ModelArguments(_Strict):
    """What timm's training script hands to the model."""

    model_kwargs: Options = {}
