"""Random starts, directions and projections of the two norms, against NumPy in float64 and SciPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from robustbench_quest.attacks.norms import NORMS
from robustbench_quest.budget import UNITS
from robustbench_quest.rng import ImageRng

Draws = Callable[..., ImageRng]
GENERATOR = torch.Generator().manual_seed(4)


def test_linf_start_is_uniform_in_the_box(draws: Draws) -> None:
    clean = torch.rand(300, 3, 2, 2, generator=GENERATOR, dtype=torch.float64)
    noise = (NORMS["linf"].random_start(clean, 0.1, draws(300), 0) - clean).numpy() / 0.1
    assert np.abs(noise).max() <= 1 + 1e-6
    assert stats.kstest(noise.ravel(), "uniform", args=(-1, 2)).pvalue > 0.01


def test_l2_start_is_uniform_in_the_ball(draws: Draws) -> None:
    """Of a uniform point in d dimensions (radius / eps)^d is uniform, and the direction prefers no axis."""
    clean = torch.rand(1000, 3, 2, 2, generator=GENERATOR, dtype=torch.float64)
    noise = (NORMS["l2"].random_start(clean, 0.1, draws(1000), 0) - clean).flatten(1).numpy() / 0.1
    radius = np.linalg.norm(noise, axis=1)
    assert radius.max() <= 1 + 1e-6
    assert stats.kstest(radius**12, "uniform").pvalue > 0.01
    # The first coordinate of a direction: (1 + it) / 2 is Beta((d - 1) / 2, (d - 1) / 2).
    assert stats.kstest((1 + noise[:, 0] / radius) / 2, "beta", args=(5.5, 5.5)).pvalue > 0.01
    # Radius and direction are independent.
    assert min(stats.spearmanr(noise[:, i] / radius, radius).pvalue for i in range(12)) > 0.001


def test_l2_start_draws_a_new_radius_for_each_restart(draws: Draws) -> None:
    clean = torch.zeros(50, 3, 2, 2, dtype=torch.float64)
    radii = [
        NORMS["l2"].random_start(clean, 1.0, draws(50), restart).flatten(1).norm(dim=1) for restart in (0, 1)
    ]
    assert (radii[0] - radii[1]).abs().median() > 0.02


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_start_depends_on_image_and_restart_alone(draws: Draws, norm: str) -> None:
    clean = torch.rand(3, 3, 4, 5, generator=GENERATOR)
    start = NORMS[norm].random_start
    whole = start(clean, 0.1, draws(["a", "b", "c"]), 0)
    assert torch.equal(start(clean[1:2], 0.1, draws(["b"]), 0), whole[1:2])
    assert not torch.equal(start(clean[1:2], 0.1, draws(["b"]), 1), whole[1:2])
    assert not torch.equal(start(clean[1:2], 0.1, draws(["a"]), 0), whole[1:2])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("given", [1, 3])
def test_start_refuses_an_rng_of_another_length(draws: Draws, norm: str, given: int) -> None:
    with pytest.raises(
        ValueError, match=f"rng has draws for {given} images, the batch has 2; give one id per image"
    ):
        NORMS[norm].random_start(torch.zeros(2, 3, 4, 4), 0.1, draws(given), 0)


# 1e-40 is below the smallest normal float32; the squares of 1e-25 underflow, those of 1e25 overflow.
@pytest.mark.parametrize("size", [1e-40, 1e-25, 1.0, 1e25])
def test_l2_direction_has_length_one_at_every_scale(size: float) -> None:
    gradient = size * torch.randn(4, 3, 5, 6, generator=GENERATOR)
    exact = gradient.double().numpy()
    expected = exact / np.linalg.norm(exact.reshape(4, -1), axis=1)[:, None, None, None]
    assert np.abs(NORMS["l2"].direction(gradient).numpy() - expected).max() < 1e-6


def test_linf_direction_is_the_sign() -> None:
    gradient = torch.tensor([-2.0, -1e-40, 0.0, 1e-40, 3.0, 1e30]).reshape(1, 3, 1, 2)
    assert NORMS["linf"].direction(gradient).flatten().tolist() == [-1, -1, 0, 1, 1, 1]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_zero_gradient_has_no_direction(norm: str) -> None:
    gradient = torch.zeros(2, 3, 4, 4)
    gradient[1] = 1
    direction = NORMS[norm].direction(gradient)
    assert (direction[0] == 0).all()
    assert (direction[1] > 0).all()


def test_projections_against_numpy() -> None:
    clean = torch.rand(6, 3, 4, 5, generator=GENERATOR, dtype=torch.float64)
    scale = torch.tensor([0, 0.01, 0.1, 0.5, 1, 10], dtype=torch.float64)[:, None, None, None]
    images = clean + scale * torch.randn(6, 3, 4, 5, generator=GENERATOR, dtype=torch.float64)
    change = (images - clean).numpy()
    boxed = NORMS["linf"].project(images, clean, 0.3).numpy() - clean.numpy()
    assert np.allclose(boxed, np.clip(change, -0.3, 0.3), atol=1e-12)
    length = np.linalg.norm(change.reshape(6, -1), axis=1)
    factor = np.array([min(1, 0.3 / one) if one else 1 for one in length])
    assert (factor < 1).sum() == 4
    shortened = NORMS["l2"].project(images, clean, 0.3).numpy() - clean.numpy()
    assert np.allclose(shortened, change * factor[:, None, None, None], atol=1e-12)


def test_lengths_equal_numpy() -> None:
    change = torch.randn(4, 3, 5, 7, generator=GENERATOR, dtype=torch.float64)
    flat = change.numpy().reshape(4, -1)
    assert NORMS["linf"].measure(change).tolist() == np.linalg.norm(flat, np.inf, axis=1).tolist()
    assert NORMS["l2"].measure(change).numpy() == pytest.approx(np.linalg.norm(flat, axis=1), rel=1e-14)


def test_every_unit_of_a_budget_has_its_norm() -> None:
    assert set(NORMS) == set(UNITS)
