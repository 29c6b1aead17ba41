"""Budgets and step sizes: exact values, texts that can be read back, and a one-line message per bad value."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from robustbench_quest.budget import check_eps, format_eps, parse_eps, parse_step, step_size
from robustbench_quest.errors import OptionError

HOW = "write it as 4/255 or as a decimal"
HOW_STEP = "write 0.15eps (relative to eps) or 1/255 (absolute)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1/255", Fraction(1, 255)),
        ("2/510", Fraction(1, 255)),
        ("0.00392156862745098", Fraction(1, 255)),
        (0.00392156862745098, Fraction(1, 255)),
        (1 / 255, Fraction(1, 255)),
        (Fraction(1 / 255), Fraction(1, 255)),  # the float's binary value
        (" 4 / 255 ", Fraction(4, 255)),
        ("0.5/255", Fraction(1, 510)),
        ("8e-3", Fraction(1, 125)),
        (0.1, Fraction(1, 10)),  # as printed, not the float's binary value
        ("1/7", Fraction(1, 7)),
        (Fraction(1, 7), Fraction(1, 7)),
        (0, Fraction(0)),
        (-0.0, Fraction(0)),
        ("0/255", Fraction(0)),
        (3, Fraction(3)),
    ],
)
def test_parse_eps(value: Any, expected: Fraction) -> None:
    parsed = parse_eps(value)
    assert parsed == expected
    assert type(parsed) is Fraction


def test_every_level_has_one_form() -> None:
    for k in range(1, 256):
        assert parse_eps(k / 255) == parse_eps(f"{k / 255:.15g}") == parse_eps(f"{k}/255") == Fraction(k, 255)


def test_snapping_ends_at_1e_12() -> None:
    level = Fraction(3, 255)
    assert parse_eps(level + Fraction(9, 10**13)) == level
    assert parse_eps(level + Fraction(11, 10**13)) != level
    assert parse_eps("1e-13") == Fraction(1, 10**13)  # a small budget is not no budget


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1/0", f"eps '1/0' divides by zero; {HOW}"),
        ("abc", f"eps 'abc' is not a number; {HOW}"),
        ("", f"eps '' is not a number; {HOW}"),
        ("1/2/3", f"eps '1/2/3' is not a number; {HOW}"),
        ("1/", f"eps '1/' is not a number; {HOW}"),
        ("4/255,8/255", f"eps '4/255,8/255' is not a number; {HOW}"),
        (None, f"eps None is not a number; {HOW}"),
        (True, f"eps True is not a number; {HOW}"),
        (1j, f"eps 1j is not a number; {HOW}"),
        ("-1/255", "eps '-1/255' is negative; a budget is 0 or more, such as 4/255"),
        (-0.1, "eps -0.1 is negative; a budget is 0 or more, such as 4/255"),
        ("nan", f"eps 'nan' is not finite; {HOW}"),
        (float("nan"), f"eps nan is not finite; {HOW}"),
        ("inf", f"eps 'inf' is not finite; {HOW}"),
        (float("-inf"), f"eps -inf is not finite; {HOW}"),
        ("1/inf", f"eps '1/inf' is not finite; {HOW}"),
        ("1e999999999", f"eps '1e999999999' is out of range; {HOW}"),  # and no memory is filled
        ("1e-999999999", f"eps '1e-999999999' is out of range; {HOW}"),
        (10**7, f"eps 10000000 is out of range; {HOW}"),
    ],
)
def test_bad_budgets(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        parse_eps(value)


def test_messages_use_the_given_name() -> None:
    with pytest.raises(OptionError, match=r"^--eps 'x' is not a number"):
        parse_eps("x", "--eps")
    with pytest.raises(OptionError, match=r"^--eps 2 is more than 1"):
        check_eps(Fraction(2), "linf", "--eps")


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        (Fraction(2), "eps 2 is more than 1, the whole range of a pixel; did you mean 2/255?"),
        (Fraction(3, 2), "eps 1.5 is more than 1, the whole range of a pixel; did you mean 1.5/255?"),
        (Fraction(300), "eps 300 is more than 1, the whole range of a pixel; write it as 4/255"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_linf_budgets_beyond_the_range(eps: Fraction, message: str, allow: bool) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        check_eps(eps, "linf", allow_large_eps=allow)


def test_hint_of_a_large_budget_can_be_used() -> None:
    with pytest.raises(OptionError) as caught:
        check_eps(Fraction(3, 2), "linf")
    hint = str(caught.value).rpartition("did you mean ")[2].rstrip("?")
    assert check_eps(parse_eps(hint), "linf") == Fraction(3, 510)


@pytest.mark.parametrize("eps", [Fraction(1, 2), Fraction(128, 255), Fraction(1)])
def test_large_linf_budgets_must_be_allowed(eps: Fraction) -> None:
    message = (
        f"eps {format_eps(eps)} is half the range of a pixel or more: every image could turn grey; use a "
        "smaller one such as 4/255, or --allow-large-eps (allow_large_eps=True)"
    )
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        check_eps(eps, "linf")
    assert check_eps(eps, "linf", allow_large_eps=True) == eps


def test_other_budgets_pass() -> None:
    for eps in (Fraction(0), Fraction(4, 255), Fraction(127, 255)):
        assert check_eps(eps, "linf") == eps
    for eps in (Fraction(0), Fraction(1, 2), Fraction(3), Fraction(1000)):
        assert check_eps(eps, "l2") == eps


@pytest.mark.parametrize(
    ("eps", "norm", "text"),
    [
        (Fraction(4, 255), "linf", "4/255"),
        (Fraction(3, 255), "linf", "3/255"),
        (Fraction(0), "linf", "0/255"),
        (Fraction(1, 5), "linf", "51/255"),
        (Fraction(1), "linf", "255/255"),
        (Fraction(1, 10), "linf", "0.1"),
        (Fraction(1, 510), "linf", "0.5/255"),
        (Fraction(1, 7), "linf", "1/7"),
        (Fraction(0), "l2", "0"),
        (Fraction(1, 2), "l2", "0.5"),
        (Fraction(1, 5), "l2", "0.2"),
        (Fraction(3), "l2", "3"),
        (Fraction(128, 255), "l2", "128/255"),
    ],
)
def test_format_eps(eps: Fraction, norm: str, text: str) -> None:
    assert format_eps(eps, norm) == text


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_text_and_budget_are_one(norm: str) -> None:
    draw = random.Random(0)
    budgets = [Fraction(draw.randrange(2000), draw.randrange(1, 2000)) for _ in range(500)]
    budgets += [parse_eps(draw.random()) for _ in range(500)]
    for eps in budgets:
        assert parse_eps(format_eps(parse_eps(eps), norm)) == parse_eps(eps)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.15eps", "0.15eps"),
        (".150 eps", "0.15eps"),
        ("0.15*eps", "0.15eps"),
        ("1eps", "1eps"),
        ("1.0eps", "1eps"),
        ("1/4eps", "0.25eps"),
        ("1/3eps", "1/3eps"),
        ("1/255", Fraction(1, 255)),
        (1 / 255, Fraction(1, 255)),
        ("0.5/255", Fraction(1, 510)),
        (0.1, Fraction(1, 10)),
        (Fraction(1, 7), Fraction(1, 7)),
    ],
)
def test_parse_step(value: Any, expected: str | Fraction) -> None:
    step = parse_step(value)
    assert step == expected
    assert type(step) is type(expected)
    assert parse_step(step) == step


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eps", f"alpha 'eps' is not a step size; {HOW_STEP}"),
        ("xeps", f"alpha 'xeps' is not a step size; {HOW_STEP}"),
        ("fast", f"alpha 'fast' is not a step size; {HOW_STEP}"),
        ("nan", f"alpha 'nan' is not a step size; {HOW_STEP}"),
        ("1/0eps", f"alpha '1/0eps' is not a step size; {HOW_STEP}"),
        (None, f"alpha None is not a step size; {HOW_STEP}"),
        (0, f"alpha 0 is not above 0; {HOW_STEP}"),
        ("0eps", f"alpha '0eps' is not above 0; {HOW_STEP}"),
        ("-1/255", f"alpha '-1/255' is not above 0; {HOW_STEP}"),
    ],
)
def test_bad_steps(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        parse_step(value)
    with pytest.raises(OptionError, match=r"^--alpha "):
        parse_step(value, "--alpha")


def test_step_size() -> None:
    eps = Fraction(4, 255)
    assert step_size("0.15eps", eps) == pytest.approx(0.15 * 4 / 255, rel=1e-15)
    assert step_size("1/3eps", eps) == pytest.approx(4 / 765, rel=1e-15)
    assert step_size("3eps", eps) == pytest.approx(12 / 255, rel=1e-15)
    assert step_size(Fraction(1, 255), eps) == 1 / 255
    assert step_size(2 * eps, eps) == 8 / 255
    assert step_size("0.15eps", Fraction(0)) == 0
    assert step_size(Fraction(1, 255), Fraction(0)) == 1 / 255


@pytest.mark.parametrize(
    ("step", "eps", "norm", "message"),
    [
        (Fraction(15, 100), Fraction(1, 255), "linf", "alpha 0.15 is more than twice eps 1/255; "),
        (Fraction(9, 255), Fraction(4, 255), "linf", "alpha 9/255 is more than twice eps 4/255; "),
        (Fraction(2), Fraction(1, 2), "l2", "alpha 2 is more than twice eps 0.5; "),
    ],
)
def test_steps_that_leave_the_ball(step: Fraction, eps: Fraction, norm: str, message: str) -> None:
    message += "a step relative to eps is written 0.15eps"
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        step_size(step, eps, norm)


def test_budgets_need_no_torch() -> None:
    code = "import sys, robustbench_quest.budget; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
