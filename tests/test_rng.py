"""Draws depend on their key and on nothing else, and never change."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from robustbench_quest.rng import ImageRng, digest, generator


def test_draws_are_frozen() -> None:
    # Golden values: if these change, every stored result with a random start changes with them.
    assert digest("a", 1).hex()[:16] == "2657442bb4a48d62"
    assert generator(0, "pgd", "img-1", 0).random_sample(3).tolist() == pytest.approx(
        [0.9949042892977831, 0.36590648957733385, 0.035023567181644566], abs=0
    )


def test_draws_do_not_depend_on_the_batch() -> None:
    together = ImageRng(0, "pgd", ["a", "b", "c"]).uniform((3, 4, 4), 0)
    alone = ImageRng(0, "pgd", ["b"]).uniform((3, 4, 4), 0)
    assert (together[1] == alone[0]).all()
    again = ImageRng(0, "pgd", ["c", "b", "a"])
    again.normal((2,), 5)
    assert (again.uniform((3, 4, 4), 0) == together[::-1]).all()


def test_every_part_of_the_key_matters() -> None:
    base = ImageRng(0, "pgd", ["a"]).uniform((8,), 0)
    for other in (
        ImageRng(1, "pgd", ["a"]).uniform((8,), 0),
        ImageRng(0, "spsa", ["a"]).uniform((8,), 0),
        ImageRng(0, "pgd", ["b"]).uniform((8,), 0),
        ImageRng(0, "pgd", ["a"]).uniform((8,), 1),
        ImageRng(0, "pgd", ["a"]).uniform((8,), "0"),
    ):
        assert (base != other).all()
    assert digest("a", "b") != digest("ab") != digest("a,b")


def test_distributions() -> None:
    rng = ImageRng(3, "test", [str(i) for i in range(20)])
    uniform, normal = rng.uniform((5000,)), rng.normal((5000,), "n")
    assert uniform.dtype == normal.dtype == np.float32
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.005)
    assert (normal.mean(), normal.std()) == pytest.approx((0, 1), abs=0.02)


def test_global_random_state_is_untouched() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    ImageRng(0, "pgd", ["a"]).normal((3,))
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[2])
