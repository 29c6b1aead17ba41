"""What every attack must keep to: one test per promise, run on every row of the table in conftest.py."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attack_table import Row
from torch import Tensor, nn

from robustbench_quest.attacks.base import Attack
from robustbench_quest.device import HOST, resolve_device
from robustbench_quest.rng import ImageRng

Batch = tuple[Tensor, Tensor]
Draws = Callable[..., ImageRng]
ROUNDING = 2e-7  # a float32 sum near 1 is off by up to 6e-8, and there are a few of them


def distance(a: Tensor, b: Tensor, norm: str) -> Any:
    """Return the distance of each pair of images, measured in float64 by NumPy."""
    change = (a.double() - b.double()).flatten(1).numpy()
    return np.linalg.norm(change, ord=np.inf if norm == "linf" else 2, axis=1)


def gradients_of(row: Row) -> int:
    """Return how many gradients per image the attack takes."""
    attack = row.attack
    return int(getattr(attack, "restarts", 1) * getattr(attack, "steps", 1)) if row.gradient else 0


def test_proposal_has_the_input_s_form(attack: Attack, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    x, y = batch
    x = x.clone().requires_grad_()
    before = x.detach().clone()
    found = attack.run(vit, x, y, draws(8))
    assert found.images.shape == x.shape
    assert (found.images.dtype, found.images.device) == (x.dtype, x.device)
    assert not found.images.requires_grad
    assert torch.equal(x, before)
    assert x.grad is None
    for counts in (found.queries, found.grad_zero, found.grad_nonfinite, found.restart):
        assert counts.shape == (8,)
        assert counts.dtype == np.int64


def test_counts_are_what_the_model_saw(
    attack: Attack, row: Row, vit: nn.Module, batch: Batch, draws: Draws
) -> None:
    calls, graphs = [], []

    def counted(x: Tensor) -> Tensor:
        calls.append(len(x))
        graphs.append(torch.is_grad_enabled())
        logits: Tensor = vit(x)
        return logits

    found = attack.run(counted, *batch, draws(8))
    assert calls == [8] * attack.passes
    assert graphs.count(True) == gradients_of(row)
    assert (found.queries == attack.passes).all()
    assert (found.grad_zero == 0).all()
    assert (found.grad_nonfinite == 0).all()
    assert set(found.restart) <= set(range(getattr(attack, "restarts", 1)))


def test_stays_in_ball_and_range(attack: Attack, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    x, y = batch
    x = x.clone()
    x[:, :, :4] = 0  # at the edge of the range
    x[:, :, 4:8] = 1

    def check(images: Tensor) -> None:
        assert (distance(images, x, attack.norm) <= float(attack.eps) + ROUNDING).all()
        assert images.min() >= 0
        assert images.max() <= 1

    def checked(images: Tensor) -> Tensor:
        """The model, which no question may leave the ball or the range of."""
        check(images.detach())
        logits: Tensor = vit(images)
        return logits

    moved = attack(checked, x, y, draws(8))
    check(moved)
    assert (moved != x).flatten(1).any(dim=1).all()


def test_budget_is_used(attack: Attack, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    """Images away from the edge of the range end well away from where they started."""
    x, y = batch
    moved = attack(vit, 0.25 + x / 2, y, draws(8))
    assert (distance(moved, 0.25 + x / 2, attack.norm) >= 0.29 * float(attack.eps)).all()


@pytest.mark.parametrize("bounds", [None, (-1.0, 0.5)])
def test_clips_to_the_model_s_bounds(
    attack: Attack, sure: tuple[nn.Module, Tensor, Tensor], draws: Draws, bounds: tuple[float, float] | None
) -> None:
    model, x, y = sure

    class Shifted:
        """The model in another space, where the images lie at the upper edge of ``bounds``."""

        def __init__(self) -> None:
            self.bounds = bounds

        def __call__(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x + 0.5)
            return logits

    inside = (x - 0.5).clamp(-1.0, 0.5)
    inside[:, :, 0] = 0.5
    moved = attack(Shifted(), inside, y, draws(6))
    if bounds is None:
        assert moved.max() > 0.5
    else:
        assert moved.max() == 0.5
    assert moved.min() < 0  # (0, 1) plays no part here


def test_zero_budget_changes_nothing(attack: Attack, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    x, y = batch
    found = dataclasses.replace(attack, eps=0).run(  # type: ignore[type-var]
        vit, x, y, draws(8)
    )
    assert torch.equal(found.images, x)
    assert torch.equal(vit(found.images), vit(x))
    assert found.images.data_ptr() != x.data_ptr()
    assert (found.queries == 0).all()


def test_seed_decides_the_draws(row: Any, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    first, again, other = (row.attack(vit, *batch, draws(8, seed=seed)) for seed in (3, 3, 4))
    assert first.numpy().tobytes() == again.numpy().tobytes()
    same = (first == other).flatten(1).all(dim=1)
    assert not same.any() if row.random else same.all()


def test_batch_plays_no_part(attack: Attack, per_image: nn.Module, batch: Batch, draws: Draws) -> None:
    """Order and splitting change nothing, to the bit, when the model answers per image."""
    x, y = batch
    ids = [f"image-{i}" for i in range(8)]
    whole = attack.run(per_image, x, y, draws(ids))
    order = torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    shuffled = attack.run(per_image, x[order], y[order], draws([ids[i] for i in order]))
    assert torch.equal(shuffled.images, whole.images[order])
    assert (shuffled.restart == whole.restart[order]).all()
    parts = [
        attack.run(per_image, x[a:b], y[a:b], draws(ids[a:b])) for a, b in ((0, 1), (1, 4), (4, 4), (4, 8))
    ]
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    assert (np.concatenate([part.restart for part in parts]) == whole.restart).all()


def test_model_and_random_state_stay_untouched(
    attack: Attack, vit: nn.Module, batch: Batch, draws: Draws
) -> None:
    def state() -> Any:
        names, generator, position, *rest = np.random.get_state()
        return (
            {name: tensor.numpy().tobytes() for name, tensor in vit.state_dict().items()},
            {name: module.training for name, module in vit.named_modules()},
            {name: (parameter.grad, parameter.requires_grad) for name, parameter in vit.named_parameters()},
            torch.get_rng_state().numpy().tobytes(),
            (names, np.asarray(generator).tobytes(), position, rest),
            random.getstate(),
            torch.is_grad_enabled(),
        )

    before = state()
    frozen = attack(vit, *batch, draws(8))
    assert state() == before
    vit.requires_grad_(True)
    try:
        before = state()
        with torch.no_grad():
            trainable = attack(vit, *batch, draws(8))
        assert state() == before
    finally:
        vit.requires_grad_(False)
    assert torch.equal(frozen, trainable)


def test_loss_of_every_image_rises(
    attack: Attack, sure: tuple[nn.Module, Tensor, Tensor], draws: Draws
) -> None:
    model, x, y = sure
    assert torch.equal(model(x).argmax(dim=1), y)
    moved = attack(model, x, y, draws(6))
    before, after = (F.cross_entropy(model(images), y, reduction="none") for images in (x, moved))
    assert (after > before).all()


@pytest.mark.parametrize("count", [0, 1])
def test_small_batches(
    attack: Attack, sure: tuple[nn.Module, Tensor, Tensor], draws: Draws, count: int
) -> None:
    model, x, y = sure
    found = attack.run(model, x[:count], y[:count], draws(count))
    assert found.images.shape == (count, 3, 12, 20)
    assert found.queries.tolist() == [attack.passes] * count
    assert found.restart.shape == (count,)


def test_other_images_survive_one_that_is_nan(
    attack: Attack, row: Row, per_image: nn.Module, batch: Batch, draws: Draws
) -> None:
    x, y = batch
    x = x.clone()
    x[:, 0, 0, 0] = torch.arange(8) / 8  # marks the image; an attack moves it by less than 1/16

    def broken(x: Tensor) -> Tensor:
        marked = (x[:, 0, 0, 0] * 8).round() == 5
        logits: Tensor = per_image(x)
        return logits * torch.where(marked, torch.nan, 1.0)[:, None]

    whole, hurt = (attack.run(model, x, y, draws(8)) for model in (per_image, broken))
    others = torch.arange(8) != 5
    assert torch.equal(hurt.images[others], whole.images[others])
    assert hurt.images.isfinite().all()
    assert hurt.grad_nonfinite.tolist() == [gradients_of(row) * (i == 5) for i in range(8)]
    assert (hurt.grad_zero == 0).all()
    assert (distance(hurt.images, x, attack.norm) <= float(attack.eps) + ROUNDING).all()


def test_zero_gradients_are_counted(attack: Attack, row: Row, batch: Batch, draws: Draws) -> None:
    x, y = batch

    def flat(x: Tensor) -> Tensor:
        """The same logits everywhere, but with a graph: what a saturated model looks like."""
        return torch.arange(10.0).expand(len(x), 10) + 0 * x.sum(dim=(1, 2, 3))[:, None]

    found = attack.run(flat, x, y, draws(8))
    assert (found.grad_zero == gradients_of(row)).all()
    assert (found.grad_nonfinite == 0).all()
    if not getattr(attack, "random_start", False):
        assert torch.equal(found.images, x)


@pytest.mark.cuda
def test_on_an_accelerator(attack: Attack, vit: nn.Module, batch: Batch, draws: Draws) -> None:
    device = resolve_device("auto")
    if device == HOST:
        pytest.skip("this machine has no accelerator")
    x, y = batch
    found = attack.run(copy.deepcopy(vit).to(device), x.to(device), y.to(device), draws(8))
    assert found.images.device.type == device.type
    assert (distance(found.images.to(HOST), x, attack.norm) <= float(attack.eps) + ROUNDING).all()
    assert (found.queries == attack.passes).all()
    assert (found.grad_zero == 0).all()


def test_repr_can_be_pasted(attack: Attack) -> None:
    pasted = eval(repr(attack), {type(attack).__name__: type(attack)})
    assert pasted == attack
    assert repr(pasted) == repr(attack)
    assert isinstance(attack.eps, Fraction)


def test_settings_rebuild_the_attack(attack: Attack) -> None:
    settings = {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack)}  # type: ignore[arg-type]
    assert type(attack)(**settings) == attack
