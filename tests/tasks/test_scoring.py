"""Scores against scikit-learn, torchmetrics and hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, top_k_accuracy_score

from robustbench_quest.tasks.scoring import cross_entropy, predictions, score


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(200, 12, generator=g), torch.randint(0, 12, (200,), generator=g)


def test_scores_equal_scikit_learn(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    columns = score(logits, labels)
    probabilities = logits.double().softmax(1).numpy()
    for k, name in ((1, "correct"), (5, "correct5")):
        expected = top_k_accuracy_score(labels, probabilities, k=k, labels=range(12))
        assert columns[name].mean() == pytest.approx(expected, abs=1e-15)
    assert columns["nll"].mean() == pytest.approx(
        log_loss(labels, probabilities, labels=range(12)), abs=1e-12
    )
    one_hot = np.eye(12)[labels.numpy()]
    assert columns["brier"] == pytest.approx(((probabilities - one_hot) ** 2).sum(1), abs=1e-12)


def test_scores_equal_torchmetrics(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    from torchmetrics.functional import classification as functional

    logits, labels = batch
    columns = score(logits, labels)
    for k, name in ((1, "correct"), (5, "correct5")):
        expected = functional.multiclass_accuracy(logits, labels, 12, average="micro", top_k=k)
        assert columns[name].mean() == pytest.approx(expected.item(), abs=1e-7)


def test_predictions_and_probabilities_are_in_falling_order(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    columns = score(logits, labels)
    assert (columns["pred"] == logits.topk(5).indices.numpy()).all()
    assert columns["prob"] == pytest.approx(logits.double().softmax(1).topk(5).values.numpy(), abs=1e-7)
    others = logits.double().numpy().copy()
    others[np.arange(200), labels] = -np.inf
    assert columns["margin"] == pytest.approx(logits.double().numpy()[np.arange(200), labels] - others.max(1))


def test_ties_count_against_the_model() -> None:
    logits = torch.tensor([[1.0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    columns = score(logits, torch.tensor([0, 1, 3]))
    assert columns["correct"].tolist() == [False, False, False]
    # The label comes last of those it ties with: second of two, and sixth of six.
    assert columns["correct5"].tolist() == [True, True, False]
    assert columns["pred"][:, 0].tolist() == [1, 0, 0]
    assert columns["margin"].tolist() == [0, 0, 0]


def test_neighbouring_float32_logits_are_not_a_tie() -> None:
    high = torch.tensor(1.0)
    low = torch.nextafter(high, torch.tensor(0.0))
    logits = torch.stack([torch.stack([high, low, low, low, low]), torch.stack([low, high, low, low, low])])
    assert score(logits, torch.tensor([0, 0]))["correct"].tolist() == [True, False]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_logits_are_wrong_and_counted(bad: float) -> None:
    logits = torch.eye(6)[:2] * 5
    logits[0, 0] = bad
    columns = score(logits, torch.tensor([0, 1]))
    assert columns["finite"].tolist() == [False, True]
    assert columns["correct"].tolist() == [False, True]
    assert columns["correct5"].tolist() == [False, True]
    assert np.isinf(columns["nll"]).tolist() == [True, False]
    assert predictions(columns).tolist() == [-1, 1]


def test_fewer_than_five_classes_have_no_top5() -> None:
    columns = score(torch.eye(3), torch.tensor([0, 1, 2]))
    assert columns["correct5"].tolist() == [None] * 3
    assert columns["pred"].shape == (3, 3)


def test_cross_entropy_equals_torch(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    expected = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    assert cross_entropy(logits, labels) == pytest.approx(expected.numpy(), abs=1e-13)
