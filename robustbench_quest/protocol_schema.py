"""What the file of a protocol may hold, as pydantic models; see ``yaml_edge`` for their messages."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator

from .errors import unknown

SPACES = ("pixel", "normalised")


def _space(value: object) -> str:
    if value not in SPACES:
        raise ValueError(unknown("space", str(value)[:40], SPACES))
    return str(value)


def _triple(value: Any) -> tuple[float, ...] | None:
    if value is not None and (not _are_numbers(value, 3) or min(value) <= 0):
        raise ValueError("must be three positive numbers")
    return value and tuple(float(number) for number in value)


def _range(value: Any) -> tuple[float, ...] | None:
    if value is not None and (not _are_numbers(value, 2) or value[0] >= value[1]):
        raise ValueError("must be two numbers, the lowest value and the highest")
    return value and tuple(float(number) for number in value)


def _are_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(number, int | float) and math.isfinite(number) for number in value)
    )


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a budget, such as 1/255")
    return str(value)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SpaceFile(_Strict):
    """The key ``space``."""

    kind: Annotated[str, PlainValidator(_space)]
    std: Annotated[tuple[float, float, float] | None, PlainValidator(_triple)] = None
    clamp: Annotated[tuple[float, float] | None, PlainValidator(_range)] = None


class ProtocolFile(_Strict):
    """A protocol."""

    summary: str
    space: SpaceFile
    adaptive: bool
    eps: Annotated[str, PlainValidator(_text)]
    attacks: dict[str, dict[str, Any]] = {}
