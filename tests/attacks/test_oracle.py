"""What an attack asks the model: logits and gradients, against the closed form of a linear model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from robustbench_quest.attacks.gradient import Oracle

GENERATOR = torch.Generator().manual_seed(6)
WEIGHT = torch.randn(5, 12, generator=GENERATOR, dtype=torch.float64, requires_grad=True)
IMAGES = torch.rand(4, 3, 2, 2, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 4, 2, 2])


def linear(x: Tensor) -> Tensor:
    return x.flatten(1) @ WEIGHT.T


def test_gradient_is_that_of_the_summed_cross_entropy() -> None:
    """For logits W x it is W^T (softmax(W x) - one_hot(label)), whatever else is in the batch."""
    gradient, logits = Oracle(linear, IMAGES).gradient(IMAGES, LABELS)
    weight, x = WEIGHT.detach().numpy(), IMAGES.flatten(1).numpy()
    expected_logits = x @ weight.T
    powers = np.exp(expected_logits)
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    expected = (probabilities - np.eye(5)[LABELS.numpy()]) @ weight
    assert logits.numpy() == pytest.approx(expected_logits, abs=1e-12)
    assert gradient.flatten(1).numpy() == pytest.approx(expected, abs=1e-12)
    assert not gradient.requires_grad
    assert not logits.requires_grad
    assert WEIGHT.grad is None
    assert not IMAGES.requires_grad


def test_logits_have_no_graph() -> None:
    logits = Oracle(linear, IMAGES).logits(IMAGES)
    assert torch.equal(logits, linear(IMAGES))
    assert not logits.requires_grad


def test_labels_of_the_loss() -> None:
    oracle = Oracle(linear, IMAGES)
    assert oracle.loss_labels("true", IMAGES, LABELS) is LABELS
    assert oracle.proposal(IMAGES).queries.tolist() == [0] * 4
    predicted = oracle.loss_labels("predicted", IMAGES, LABELS)
    assert predicted.tolist() == linear(IMAGES).argmax(dim=1).tolist() != LABELS.tolist()
    assert oracle.proposal(IMAGES).queries.tolist() == [1] * 4


def test_every_use_is_counted() -> None:
    oracle = Oracle(linear, IMAGES)
    for _ in range(3):
        oracle.gradient(IMAGES, LABELS)
    oracle.logits(IMAGES)
    found = oracle.proposal(IMAGES, restart=torch.tensor([0, 2, 1, 0]))
    assert found.queries.tolist() == [4] * 4
    assert found.restart.tolist() == [0, 2, 1, 0]
