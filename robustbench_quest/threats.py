"""Threats by name: settings filled in and checked by the attack itself, and back to the attack."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from .budget import check_eps
from .errors import OptionError, unknown
from .registry import ATTACKS
from .types import CLEAN, Threat

if TYPE_CHECKING:
    from .attacks.base import Attack


def threat(name: str, *, allow_large_eps: bool = False, **options: Any) -> Threat:
    """Return the threat ``name`` ("clean" or an attack) with every setting filled in and checked.

    >>> threat("pgd", eps="2/510").eps
    Fraction(1, 255)

    A linf budget of 1/2 or more is refused unless ``allow_large_eps``.

    Raises:
        OptionError: no such threat, no such setting, a setting that is missing, or one with a bad value.
    """
    if name == "clean":
        if options:
            raise OptionError(f"clean takes no settings, but got {', '.join(sorted(options))}")
        return CLEAN
    kind = ATTACKS.load(name)
    known = settings(name)
    for option in options:
        if option not in known:
            raise OptionError(unknown(f"setting of {name}", option, known))
    if "eps" not in options:
        raise OptionError(f"{name} needs a budget, such as eps='1/255'")
    attack: Attack = kind(**options)
    check_eps(attack.eps, attack.norm, allow_large_eps=allow_large_eps)
    values = {field.name: getattr(attack, field.name) for field in dataclasses.fields(kind)}
    return Threat(name, tuple(sorted(values.items())), attack.version)


def settings(name: str) -> tuple[str, ...]:
    """Return the names of an attack's settings."""
    return tuple(inspect.signature(ATTACKS.load(name)).parameters)


def build_attack(threat: Threat) -> Attack:
    """Return the attack that a threat stands for."""
    attack: Attack = ATTACKS.load(threat.name)(**dict(threat.options))
    return attack
