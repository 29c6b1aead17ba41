"""Metrics from records against scikit-learn, and the flags beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from support import ATTACK_SCHEMA, CLEAN_SCHEMA, columns

from robustbench_quest import metrics
from robustbench_quest.errors import QuestError
from robustbench_quest.records import Records, make_records
from robustbench_quest.tasks.scoring import score
from robustbench_quest.trust import flags


def scored(logits: torch.Tensor, labels: torch.Tensor, **attack: Any) -> Records:
    n = len(labels)
    values = {**columns(n), "label": labels.numpy(), **score(logits, labels)}
    if attack:
        values |= {name: np.zeros(n) for name in ("linf", "l2", "loss_start", "loss_end")}
        values |= {name: np.zeros(n, int) for name in ("queries", "grad_zero", "grad_nonfinite", "restart")}
        values |= {"clean_pred": labels.numpy(), "broken_by": [""] * n, "violation": np.zeros(n, bool)}
    return make_records({**values, **attack}, ATTACK_SCHEMA if attack else CLEAN_SCHEMA)


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (301,), generator=g)
    logits = torch.randn(301, 10, generator=g) + 2 * torch.nn.functional.one_hot(labels, 10)
    return logits, labels


def test_metrics_equal_scikit_learn(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    records = scored(logits, labels)
    probabilities = logits.double().softmax(1).numpy()
    assert metrics.accuracy(records) == accuracy_score(labels, probabilities.argmax(1))
    expected = top_k_accuracy_score(labels, probabilities, k=5, labels=range(10))
    assert metrics.accuracy5(records) == pytest.approx(expected, abs=1e-15)
    assert metrics.nll(records) == pytest.approx(log_loss(labels, probabilities, labels=range(10)), abs=1e-12)
    assert metrics.clean_accuracy(records) == metrics.accuracy(records)


def test_clean_accuracy_of_an_attacked_cell(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    clean = labels.numpy().copy()
    clean[:31] = -1
    assert metrics.clean_accuracy(scored(logits, labels, clean_pred=clean)) == 270 / 301


def test_no_records_is_an_error(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    with pytest.raises(QuestError, match="expected at least one image, found none"):
        metrics.accuracy(scored(*batch).slice(0, 0))


def test_few_classes_have_no_top5() -> None:
    assert metrics.accuracy5(scored(torch.eye(3), torch.arange(3))) is None


def test_nonfinite_logits_show_in_the_nll_and_as_a_flag(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    broken = logits.clone()
    broken[:7] = float("nan")
    records = scored(broken, labels)
    assert metrics.nonfinite(records) == 7
    assert math.isinf(metrics.nll(records))
    assert [(flag.name, flag.figure) for flag in flags(records, 10)] == [("non-finite logits", "7/301")]


def test_flags_of_a_sound_cell_are_empty(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert flags(scored(*batch), 10) == []
    assert flags(scored(*batch, clean_pred=batch[1].numpy()), 10) == []


def test_guessing_is_flagged(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    labels = batch[1]
    logits = torch.randn(301, 10, generator=torch.Generator().manual_seed(5))
    assert [flag.name for flag in flags(scored(logits, labels), 10)] == ["near chance"]
    assert [str(flag) for flag in flags(scored(*batch), 10, ["arch"])] == ["guessed arch"]


@pytest.mark.parametrize(
    ("right", "n", "classes", "flagged"),
    [
        (1, 1, 10, False),
        (0, 1, 10, True),
        (5, 5, 2, False),
        (1, 2, 10, True),
        (3, 50, 1000, False),
        (0, 50, 1000, True),
        (12, 100, 10, True),
        (30, 100, 10, False),
        (52, 100, 2, True),
        (80, 100, 2, False),
    ],
)
def test_guessing_is_told_from_knowing(right: int, n: int, classes: int, flagged: bool) -> None:
    logits = torch.zeros(n, classes)
    logits[:, 0] = 1
    labels = torch.tensor([0] * right + [1] * (n - right))
    assert ("near chance" in [flag.name for flag in flags(scored(logits, labels), classes)]) is flagged


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("budget violated", {"violation": [True] + [False] * 300}),
        ("zero gradients", {"grad_zero": [1] * 4 + [0] * 297}),
        ("non-finite gradients", {"grad_nonfinite": [1] + [0] * 300}),
    ],
)
def test_attack_flags(name: str, attack: dict[str, Any], batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    assert [flag.name for flag in flags(scored(logits, labels, **attack), 10)] == [name]


def test_a_few_zero_gradients_are_not_flagged(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert flags(scored(*batch, grad_zero=[1] * 3 + [0] * 298), 10) == []
