"""What counts as misclassified, and which of two results is worse."""

from __future__ import annotations

import math

import pytest
import torch

from robustbench_quest.attacks.objective import CrossEntropy
from robustbench_quest.attacks.ranking import Worst

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("logits", "fails"),
    [
        ([2.0, 1.0, 0.0], False),
        ([1.0, 2.0, 0.0], True),
        ([1.0, 1.0, 0.0], True),  # a tie counts against the model
        ([0.0, 0.0, 0.0], True),
        ([2.0, 1.0, NAN], True),
        ([NAN, 1.0, 0.0], True),
        ([2.0, 1.0, -INF], True),
        ([INF, 1.0, 0.0], True),
        ([-1.0, -2.0, -3.0], False),
        ([2.0], False),
    ],
)
def test_misclassified(logits: list[float], fails: bool) -> None:
    assert CrossEntropy().failed(torch.tensor([logits]), torch.tensor([0])).tolist() == [fails]


def test_misclassified_reads_each_image_s_label() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, 3)
    assert CrossEntropy().failed(logits, torch.tensor([0, 1, 2])).tolist() == [True, True, False]


SURE, UNSURE = [3.0, 0.0, 0.0], [0.1, 0.0, 0.0]  # right, with a loss of 0.1 and of 1.03
BARELY, FAR = [0.0, 0.1, -100.0], [0.0, 3.0, 0.0]  # wrong, with a loss of 0.74 and of 3.1
BROKEN = [NAN, 0.0, 0.0]


@pytest.mark.parametrize(
    ("offers", "kept"),
    [
        ([SURE, UNSURE], 1),
        ([UNSURE, SURE], 0),
        ([UNSURE, BARELY], 1),  # misclassified beats the larger loss
        ([BARELY, UNSURE], 0),
        ([BARELY, FAR, SURE], 1),
        ([FAR, FAR], 0),  # the earlier of equals
        ([SURE, BROKEN], 1),
        ([BROKEN, SURE], 0),
        ([BROKEN, BARELY], 1),  # a real adversarial image beats one that only breaks the arithmetic
        ([BARELY, BROKEN], 0),
        ([BROKEN, BROKEN], 0),
    ],
)
def test_worst_of_several(offers: list[list[float]], kept: int) -> None:
    """The second image, always right and ever surer, keeps its first version: images do not mix."""
    worst = Worst(torch.tensor([0, 0]), CrossEntropy())
    for i, logits in enumerate(offers):
        images = torch.full((2, 3, 1, 1), float(i))
        worst.offer(images, torch.tensor([logits, [5.0 + i, 0.0, 0.0]]), restart=i)
    assert worst.images[:, 0, 0, 0].tolist() == [kept, 0]
    assert worst.restart.tolist() == [kept, 0]


def test_worst_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no image has been offered yet"):
        _ = Worst(torch.tensor([0]), CrossEntropy()).images
