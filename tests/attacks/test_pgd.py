"""Which point PGD returns: the rules for restarts and for last or best, on models known in closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from robustbench_quest.attacks.pgd import PGD
from robustbench_quest.rng import ImageRng

Draws = Callable[..., ImageRng]
GREY = torch.full((1, 3, 2, 2), 0.5)
ZERO = torch.zeros(1, dtype=torch.int64)


def first_pixel(x: Tensor) -> Tensor:
    return x[:, 0, 0, 0]


class Peak:
    """Two classes: class 1 minus class 0 is ``height - 10 |t - 0.52|`` in the first pixel t.

    From t = 0.5 a step of 8/255 lands beyond the peak and the next one comes back to 0.5, and so on.
    """

    def __init__(self, height: float) -> None:
        self.height = height

    def __call__(self, x: Tensor) -> Tensor:
        t = first_pixel(x)
        return torch.stack([0 * t, self.height - 10 * (t - 0.52).abs()], dim=1)


@pytest.mark.parametrize(
    ("steps", "keep", "step_returned"),
    [(2, "last", 0), (2, "best", 1), (3, "last", 1), (3, "best", 1), (4, "last", 0), (4, "best", 1)],
)
def test_last_or_best_point(draws: Draws, steps: int, keep: str, step_returned: int) -> None:
    attack = PGD("8/255", steps=steps, alpha="8/255", random_start=False, keep=keep)
    found = attack.run(Peak(0.15), GREY, ZERO, draws(1))
    assert first_pixel(found.images).item() == pytest.approx(0.5 + step_returned * 8 / 255, abs=1e-6)
    fooled = Peak(0.15)(found.images).argmax(dim=1).item() == 1
    assert fooled == (step_returned == 1)
    assert found.queries.tolist() == [steps + (keep == "best")]
    assert found.grad_zero.tolist() == [0]  # zero in all other pixels is not zero everywhere


def test_best_point_may_be_the_start(draws: Draws) -> None:
    """Label 1 and a valley: every step overshoots, so the clean image stays the worst."""

    def valley(x: Tensor) -> Tensor:
        t = first_pixel(x)
        return torch.stack([0 * t, 1 + 100 * (t - 0.5005).abs()], dim=1)

    attack = PGD("8/255", steps=3, alpha="8/255", random_start=False, keep="best")
    assert torch.equal(attack(valley, GREY, ZERO + 1, draws(1)), GREY)


def test_best_prefers_a_misclassified_point_to_a_larger_loss(draws: Draws) -> None:
    """At t <= 0.5 two classes are nearly as likely as the label; beyond it one wins, with a smaller loss."""
    attack = PGD("8/255", steps=1, alpha="8/255", random_start=False, keep="best")
    found = attack(two_regions, GREY, ZERO, draws(1))
    losses = [F.cross_entropy(two_regions(x), ZERO).item() for x in (GREY, found)]
    assert losses[0] > losses[1]
    assert first_pixel(found).item() > 0.5


def two_regions(x: Tensor) -> Tensor:
    """Label 0. Where t <= 0.5 it is right with a loss above 0.9, else wrong with a loss below 0.85.

    In both the loss grows with t = the first pixel.
    """
    t = first_pixel(x)
    right = torch.stack([0.3 - 0.5 * t, 0 * t, 0 * t], dim=1)
    wrong = torch.stack([0 * t, 0.3 * t, 0 * t - 100], dim=1)
    return torch.where((t <= 0.5)[:, None], right, wrong)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_restart_rule(draws: Draws, keep: str) -> None:
    """The steps are tiny, so each restart ends where it started, at a place that the rng tells."""
    count, restarts, eps = 40, 4, 8 / 255
    x = GREY.expand(count, -1, -1, -1).clone()
    x[:, 0, 0, 0] = 0.5 - eps / 2  # a quarter of the starts is misclassified
    y = torch.zeros(count, dtype=torch.int64)
    attack = PGD("8/255", steps=1, alpha="0.000001eps", restarts=restarts, keep=keep)
    found = attack.run(two_regions, x, y, draws(count))

    u = [draws(count).uniform((3, 2, 2), "start", r)[:, 0, 0, 0].astype(float) for r in range(restarts)]
    starts = np.stack([0.5 - eps / 2 + eps * (2 * one - 1) for one in u])
    wrong = starts > 0.5
    right_loss = -np.log(np.exp(0.3 - 0.5 * starts) / (np.exp(0.3 - 0.5 * starts) + 2))
    wrong_loss = -np.log(1 / (1 + np.exp(0.3 * starts)))
    assert right_loss.min() > wrong_loss.max()  # the rule is not "the larger loss"
    expected = [
        max(
            range(restarts),
            key=lambda r: (wrong[r, i], wrong_loss[r, i] if wrong[r, i] else right_loss[r, i]),
        )
        for i in range(count)
    ]
    assert found.restart.tolist() == expected
    assert first_pixel(found.images).numpy() == pytest.approx(starts[expected, range(count)], abs=1e-6)
    assert len(set(expected)) == restarts
    # Robust only if every restart failed.
    fooled = two_regions(found.images).argmax(dim=1) != 0
    assert fooled.tolist() == wrong.any(axis=0).tolist()
    assert 0 < fooled.sum() < count
    assert found.queries.tolist() == [restarts * 2] * count


def test_restarts_never_leave_fewer_broken(draws: Draws) -> None:
    x = 0.5 + 0.02 * torch.rand(64, 3, 2, 2, generator=torch.Generator().manual_seed(5)) - 0.03
    y = torch.zeros(64, dtype=torch.int64)
    broken = [
        two_regions(PGD("4/255", steps=1, restarts=restarts)(two_regions, x, y, draws(64))).argmax(1) != 0
        for restarts in (1, 2, 8)
    ]
    assert (broken[0] <= broken[1]).all()
    assert (broken[1] <= broken[2]).all()
    assert broken[0].sum() < broken[2].sum()


def test_results_are_ranked_by_true_labels(draws: Draws) -> None:
    """The attack climbs the loss of the predicted label, but an image is broken when the true one loses.

    The clean image is predicted as class 1 although it is class 0; climbing away from class 1 makes it right.
    The best point for the true label is the clean one.
    """

    def line(x: Tensor) -> Tensor:
        t = first_pixel(x)
        return torch.stack([0 * t, 10 * (t - 0.49)], dim=1)

    attack = PGD("8/255", steps=2, random_start=False, labels="predicted", keep="best")
    assert torch.equal(attack(line, GREY, ZERO, draws(1)), GREY)
    last = PGD("8/255", steps=2, alpha="0.5eps", random_start=False, labels="predicted")
    assert first_pixel(last(line, GREY, ZERO, draws(1))).item() == pytest.approx(0.5 - 8 / 255, abs=1e-6)


def test_infinite_gradient_entries_stay_put_and_the_rest_moves(draws: Draws) -> None:
    """The square root has an infinite slope at 0: that pixel stays, all others take their step."""

    def roots(x: Tensor) -> Tensor:
        root = x.sqrt().sum(dim=(1, 2, 3))
        return torch.stack([0 * root, root], dim=1)

    x = GREY.clone()
    x[0, 1, 1, 1] = 0
    for norm, eps in (("linf", "8/255"), ("l2", 0.1)):
        found = PGD(eps, norm=norm, steps=2, random_start=False).run(roots, x, ZERO, draws(1))
        moved = found.images - x
        assert moved[0, 1, 1, 1] == 0
        assert (moved > 0).sum() == 11
        assert found.grad_nonfinite.tolist() == [2]
        assert found.grad_zero.tolist() == [0]


def test_restarts_draw_anew_and_steps_do_not(draws: Draws) -> None:
    """A flat model returns the start itself, and with equal losses the first restart stays."""

    def flat(x: Tensor) -> Tensor:
        return torch.ones(len(x), 3) + 0 * first_pixel(x)[:, None]

    x = GREY.expand(4, -1, -1, -1)
    y = torch.zeros(4, dtype=torch.int64)
    one, three = (PGD("8/255", steps=1, restarts=n).run(flat, x, y, draws(4)) for n in (1, 3))
    assert torch.equal(one.images, three.images)
    assert three.restart.tolist() == [0] * 4
    longer = PGD("8/255", steps=5)(flat, x, y, draws(4))
    assert torch.allclose(longer, one.images, atol=1e-7)
