"""FGSM and PGD against torchattacks and foolbox, on a ViT with QUEST attention.

torchattacks averages the loss over the batch where this package sums it; with a batch of a power of two the
division is exact, and so the comparison can be.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from robustbench_quest.attacks.fgsm import FGSM
from robustbench_quest.attacks.pgd import PGD
from robustbench_quest.rng import ImageRng

Batch = tuple[Tensor, Tensor]
Draws = Callable[..., ImageRng]


@pytest.mark.parametrize("k", [1, 4, 8])
def test_fgsm_equals_torchattacks(
    vit: nn.Module, batch: Batch, draws: Draws, peers: SimpleNamespace, k: int
) -> None:
    expected = peers.torchattacks.FGSM(vit, eps=k / 255)(*batch)
    assert torch.equal(FGSM(f"{k}/255")(vit, *batch, draws(8)), expected)


@pytest.mark.parametrize(("alpha", "factor"), [("0.15eps", 0.15), ("0.25eps", 0.25), ("1/255", 0.25)])
def test_pgd_equals_torchattacks(
    vit: nn.Module, batch: Batch, draws: Draws, peers: SimpleNamespace, alpha: str, factor: float
) -> None:
    eps = 4 / 255
    peer = peers.torchattacks.PGD(vit, eps=eps, alpha=factor * eps, steps=20, random_start=False)
    ours = PGD("4/255", alpha=alpha, random_start=False)
    assert torch.equal(ours(vit, *batch, draws(8)), peer(*batch))


def test_predicted_labels_equal_torchattacks_with_the_predictions(
    vit: nn.Module, batch: Batch, draws: Draws, peers: SimpleNamespace
) -> None:
    x, y = batch
    predictions = vit(x).argmax(dim=1)
    assert not torch.equal(predictions, y)
    peer = peers.torchattacks.PGD(vit, eps=2 / 255, alpha=0.3 / 255, steps=10, random_start=False)
    ours = PGD("2/255", steps=10, random_start=False, labels="predicted")
    assert torch.equal(ours(vit, x, y, draws(8)), peer(x, predictions))
    peer = peers.torchattacks.FGSM(vit, eps=2 / 255)
    assert torch.equal(FGSM("2/255", labels="predicted")(vit, x, y, draws(8)), peer(x, predictions))


@pytest.mark.parametrize("eps", [0.25, 2.0])
def test_pgd_l2_agrees_with_torchattacks(
    vit: nn.Module, batch: Batch, draws: Draws, peers: SimpleNamespace, eps: float
) -> None:
    peer = peers.torchattacks.PGDL2(vit, eps=eps, alpha=0.15 * eps, steps=20, random_start=False)
    ours = PGD(eps, norm="l2", random_start=False)
    assert (ours(vit, *batch, draws(8)) - peer(*batch)).abs().max() <= 1e-6


@pytest.mark.parametrize("eps", [0.25, 2.0])
def test_fgsm_l2_agrees_with_foolbox(
    vit: nn.Module, batch: Batch, draws: Draws, peers: SimpleNamespace, eps: float
) -> None:
    x, y = batch
    host = x.device
    wrapped = peers.foolbox.PyTorchModel(vit, bounds=(0, 1), device=host)
    criterion = peers.foolbox.criteria.Misclassification(y)
    expected = peers.foolbox.attacks.L2FastGradientAttack().run(wrapped, x, criterion, epsilon=eps)
    assert (FGSM(eps, norm="l2")(vit, x, y, draws(8)) - expected).abs().max() <= 1e-6
