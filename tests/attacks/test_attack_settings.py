"""Settings of attacks: what they accept, what they hold, and the one line that each bad value gets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from robustbench_quest.attacks.fgsm import FGSM
from robustbench_quest.attacks.pgd import PGD
from robustbench_quest.errors import OptionError
from robustbench_quest.rng import ImageRng

Draws = Callable[..., ImageRng]


@pytest.mark.parametrize("kind", [FGSM, PGD])
@pytest.mark.parametrize("eps", ["1/255", "2/510", 1 / 255, Fraction(1, 255), "0.00392156862745098"])
def test_one_budget_has_one_form(kind: Any, eps: Any) -> None:
    attack = kind(eps)
    assert attack.eps == Fraction(1, 255)
    assert type(attack.eps) is Fraction
    assert attack == kind("1/255")
    assert hash(attack) == hash(kind("1/255"))
    assert "eps='1/255'" in repr(attack)


def test_reprs_are_readable() -> None:
    assert repr(FGSM(4 / 255)) == "FGSM(eps='4/255', norm='linf', labels='true')"
    assert repr(PGD(0.2, norm="l2", alpha=0.1, keep="best")) == (
        "PGD(eps='0.2', norm='l2', steps=20, alpha='0.1', random_start=True, restarts=1, labels='true', "
        "keep='best')"
    )


def test_published_settings_are_the_defaults() -> None:
    attack = PGD("1/255")
    assert (attack.steps, attack.alpha, attack.random_start, attack.restarts) == (20, "0.15eps", True, 1)
    assert (attack.norm, attack.labels, attack.keep) == ("linf", "true", "last")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PGD("1/255").eps = Fraction(0)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": "abc"}, "eps 'abc' is not a number; write it as 4/255 or as a decimal"),
        ({"eps": 2}, "eps 2 is more than 1, the whole range of a pixel; did you mean 2/255?"),
        ({"norm": "linv"}, "unknown norm 'linv'; did you mean 'linf'? Available: l2, linf"),
        ({"norm": None}, "unknown norm 'None'; Available: l2, linf"),
        ({"labels": "pred"}, "unknown labels 'pred'; did you mean 'predicted'? Available: predicted, true"),
        ({"labels": True}, "unknown labels 'True'; did you mean 'true'? Available: predicted, true"),
    ],
)
@pytest.mark.parametrize("kind", [FGSM, PGD])
def test_messages_of_both(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        kind(**{"eps": "4/255", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": "first"}, "unknown keep 'first'; Available: best, last"),
        ({"steps": 0}, "steps 0: expected a whole number of at least 1, such as 20"),
        ({"steps": 2.5}, "steps 2.5: expected a whole number of at least 1, such as 20"),
        ({"steps": True}, "steps True: expected a whole number of at least 1, such as 20"),
        ({"restarts": -1}, "restarts -1: expected a whole number of at least 1, such as 20"),
        ({"random_start": "no"}, "random_start 'no': expected True or False"),
        (
            {"alpha": "fast"},
            "alpha 'fast' is not a step size; write 0.15eps (relative to eps) or 1/255 (absolute)",
        ),
        (
            {"alpha": 0.15},
            "alpha 0.15 is more than twice eps 4/255; a step relative to eps is written 0.15eps",
        ),
        (
            {"alpha": "9/255"},
            "alpha 9/255 is more than twice eps 4/255; a step relative to eps is written 0.15eps",
        ),
        (
            {"eps": "0.25", "norm": "l2", "alpha": "0.6"},
            "alpha 0.6 is more than twice eps 0.25; a step relative to eps is written 0.15eps",
        ),
        (
            {"random_start": False, "restarts": 3},
            "restarts 3 without a random start would all be the same; use restarts 1 or a random start",
        ),
    ],
)
def test_messages_of_pgd(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        PGD(**{"eps": "4/255", **settings})


def test_large_budgets_are_left_to_the_caller() -> None:
    assert FGSM("200/255").eps == Fraction(200, 255)
    assert PGD(3, norm="l2").eps == 3


@pytest.mark.parametrize("trainable", [False, True])
def test_model_without_a_gradient_is_refused(draws: Draws, trainable: bool) -> None:
    """Detached, or computed without the images although parameters still ask for gradients."""
    weight = torch.ones(3, requires_grad=trainable)

    def model(x: Tensor) -> Tensor:
        return x.detach().mean(dim=(2, 3)) * weight

    x, y = torch.rand(2, 3, 4, 4), torch.tensor([0, 1])
    for attack in (FGSM("4/255"), PGD("4/255", random_start=False)):
        with pytest.raises(
            OptionError, match="expected logits with a gradient to the images, found none"
        ) as caught:
            attack(model, x, y, draws(2))
        assert "\n" not in str(caught.value)
    assert weight.grad is None
