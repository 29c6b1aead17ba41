"""Perturbation budgets and step sizes as exact numbers, so that one budget has one name.

A budget is the radius eps of the ball around an image in which an attack may move, in pixels of range [0, 1];
for linf it is usually written k/255. It is held as a ``Fraction``: "1/255", "2/510" and 0.00392156862745098
are the same budget, and so the same cell of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from .errors import OptionError

Number = str | int | float | Fraction
"""How a budget may be given: "4/255", "0.5/255", "0.1", 0.1, 0 or a Fraction."""

Step = str | Fraction
"""A step size in its one form: "0.15eps" relative to the budget, or an absolute Fraction."""

LEVELS = 255  # an 8-bit image has steps of 1/255
CHANNELS = 3
_SNAP = Fraction(1, 10**12)
_LARGEST = 10**6  # far beyond the l2 distance of any two images
_LARGEST_EXPONENT = 30
_HOW = "write it as 4/255 or as a decimal"
_HOW_STEP = "write 0.15eps (relative to eps) or 1/255 (absolute)"


def parse_eps(value: Number, name: str = "eps") -> Fraction:
    """Return the budget exactly; a value within 1e-12 of k/255 (k > 0) is k/255.

    Args:
        value: in pixels of range [0, 1]; text is a decimal or a quotient of two.
        name: what messages call it.

    Raises:
        OptionError: not a number, not finite, negative, or a division by zero.
    """
    number = _number(value, name)
    if number < 0:
        raise OptionError(f"{name} {value!r} is negative; a budget is 0 or more, such as 4/255")
    return _snapped(number)


@dataclass(frozen=True)
class Unit:
    """How budgets of a norm are written, and how large they can be.

    Args:
        in_levels: whether they are steps of a pixel, written as k/255.
        diameter: from the side of an image to the distance between black and white: no two images are
            farther apart.
    """

    in_levels: bool
    diameter: Callable[[int], float]


UNITS = {
    "linf": Unit(True, lambda size: 1.0),
    "l2": Unit(False, lambda size: math.sqrt(CHANNELS) * size),
}


@dataclass(frozen=True)
class Budget:
    """How far an attack may move an image: ``eps`` in ``norm``."""

    norm: str
    eps: Fraction

    def __str__(self) -> str:
        return f"{self.norm} {format_eps(self.eps, self.norm)}"


def check_diameter(budget: Budget, size: int) -> None:
    """Refuse a budget that reaches every image of ``size`` x ``size`` pixels from every other.

    Raises:
        OptionError: most likely it is in units of 0-255.
    """
    diameter = UNITS[budget.norm].diameter(size)
    if budget.eps > diameter:
        raise OptionError(
            f"eps {_decimal(budget.eps)} is more than {diameter:.4g}, the {budget.norm} distance from black "
            f"to white for {size}x{size} pixels in [0, 1]; divide a budget for pixels of 0-255 by {LEVELS}"
        )


def check_eps(eps: Fraction, norm: str, name: str = "eps", *, allow_large_eps: bool = False) -> Fraction:
    """Return ``eps`` if it makes sense in ``norm``: for linf at most 1, and below 1/2 unless that is allowed.

    With a linf budget of 1/2 every image can become the same grey one, so no model can be right. What is too
    large in another norm depends on the size of the images: see ``check_diameter``.

    Raises:
        OptionError: the budget is too large.
    """
    if not UNITS[norm].in_levels:
        return eps
    if eps > 1:
        meant = f"did you mean {_decimal(eps)}/{LEVELS}?" if eps < LEVELS else "write it as 4/255"
        raise OptionError(f"{name} {_decimal(eps)} is more than 1, the whole range of a pixel; {meant}")
    if eps >= Fraction(1, 2) and not allow_large_eps:
        raise OptionError(
            f"{name} {format_eps(eps)} is half the range of a pixel or more: every image could turn grey; "
            "use a smaller one such as 4/255, or --allow-large-eps (allow_large_eps=True)"
        )
    return eps


def format_eps(eps: Fraction, norm: str = "linf") -> str:
    """Return the text of a budget that ``parse_eps`` reads back as the same one.

    For linf it is k/255 where k is whole ("4/255", "0/255"). Otherwise, and for l2, it is a decimal ("0.5");
    a value that no short decimal equals stays a quotient ("0.5/255", "1/7").
    """
    levels = eps * LEVELS
    if UNITS[norm].in_levels and levels.denominator == 1:
        return f"{levels.numerator}/{LEVELS}"
    if "/" in _decimal(eps) and "/" not in _decimal(levels):
        return f"{_decimal(levels)}/{LEVELS}"
    return _decimal(eps)


def parse_step(value: Number, name: str = "alpha") -> Step:
    """Return a step size in its one form: "0.15eps" for a multiple of the budget, else an exact Fraction.

    Raises:
        OptionError: neither of the two, or not above 0.
    """
    text = value.strip() if isinstance(value, str) else ""
    relative = text.endswith("eps")
    try:
        number = _number(text.removesuffix("eps").rstrip(" *") if relative else value, name)
    except OptionError:
        raise OptionError(f"{name} {value!r} is not a step size; {_HOW_STEP}") from None
    if number <= 0:
        raise OptionError(f"{name} {value!r} is not above 0; {_HOW_STEP}")
    return f"{_decimal(number)}eps" if relative else _snapped(number)


def step_size(step: Step, eps: Fraction, norm: str = "linf") -> float:
    """Return the length of a step in pixels of range [0, 1] for the budget ``eps``.

    Args:
        step: in the form that ``parse_step`` returns.
        eps: the budget.
        norm: how the message writes budgets.

    Raises:
        OptionError: an absolute step of more than 2 eps, which leaves the ball from every point of it; most
            likely a relative step was meant. Not when eps is 0, where no step is taken.
    """
    if isinstance(step, str):
        return float(_number(step.removesuffix("eps"), "alpha") * eps)
    if eps > 0 and step > 2 * eps:
        raise OptionError(
            f"alpha {format_eps(step, norm)} is more than twice eps {format_eps(eps, norm)}; "
            "a step relative to eps is written 0.15eps"
        )
    return float(step)


def _number(value: object, name: str) -> Fraction:
    """Return the exact value of ``value``; a float counts as the decimal that it prints as."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Fraction)):
        raise OptionError(f"{name} {value!r} is not a number; {_HOW}")
    number: Fraction
    if isinstance(value, (int, Fraction)):
        number = Fraction(value)
    else:
        above, slash, below = str(value).partition("/")
        top = _decimal_value(above, value, name)
        bottom = _decimal_value(below, value, name) if slash else Fraction(1)
        if bottom == 0:
            raise OptionError(f"{name} {value!r} divides by zero; {_HOW}")
        number = top / bottom
    if abs(number) > _LARGEST:
        raise OptionError(f"{name} {value!r} is out of range; {_HOW}")
    return number


def _decimal_value(text: str, value: object, name: str) -> Fraction:
    try:
        decimal = Decimal(text.strip())
    except InvalidOperation:
        raise OptionError(f"{name} {value!r} is not a number; {_HOW}") from None
    if not decimal.is_finite():
        raise OptionError(f"{name} {value!r} is not finite; {_HOW}")
    # "1e999999999" is a short text and a number that fills the memory.
    if abs(decimal.adjusted()) > _LARGEST_EXPONENT:
        raise OptionError(f"{name} {value!r} is out of range; {_HOW}")
    return Fraction(decimal)


def _snapped(number: Fraction) -> Fraction:
    nearest = Fraction(round(number * LEVELS), LEVELS)
    return nearest if nearest > 0 and abs(number - nearest) <= _SNAP else number


def _decimal(number: Fraction) -> str:
    """Return the short decimal that equals ``number``, or the quotient where there is none."""
    text = repr(float(number)).removesuffix(".0")
    return text if Fraction(text) == number else str(number)
