"""Checks that attacks share for their settings; each raises an OptionError that says what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ..budget import UNITS, Number, check_eps, parse_eps
from ..errors import OptionError, unknown

NORM_NAMES = tuple(UNITS)
LABELS = ("true", "predicted")


def choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a ``value`` that is not one of ``known``."""
    choices = tuple(known)
    if value not in choices:
        raise OptionError(unknown(name, str(value), choices))


def whole(name: str, value: object) -> None:
    """Refuse a ``value`` that is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{name} {value!r}: expected a whole number of at least 1, such as 20")


def flag(name: str, value: object) -> None:
    """Refuse a ``value`` that is neither True nor False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} {value!r}: expected True or False")


def eps_of(value: Number, norm: str) -> Fraction:
    """Return an attack's budget as a Fraction.

    Whether a linf budget of 1/2 or more is meant is asked where users give one (``budget.check_eps``); an
    attack itself takes any budget up to the whole range.
    """
    return check_eps(parse_eps(value), norm, allow_large_eps=True)


def hold(attack: object, **values: object) -> None:
    """Store checked settings in a frozen dataclass, from its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(attack, name, value)
