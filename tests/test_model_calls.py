"""Batches inside a block: the answers and gradients of one call, the memory of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from robustbench_quest.attacks.objective import CrossEntropy
from robustbench_quest.errors import OptionError
from robustbench_quest.model_calls import ModelCalls
from robustbench_quest.models.space import Space, unchanged

WEIGHT = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.rand(7, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def model(x: Tensor) -> Tensor:
    return (x.flatten(1) @ WEIGHT).tanh()


def calls(
    batch_size: int, seen: list[int] | None = None, outputs: Callable[[Tensor], Tensor] = model
) -> ModelCalls:
    space = Space(outputs, unchanged, unchanged, (0.0, 1.0), (1.0, 1.0, 1.0))
    return ModelCalls(space, batch_size, CrossEntropy(), (seen if seen is not None else []).append)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_answers_do_not_depend_on_the_batch(batch_size: int) -> None:
    seen: list[int] = []
    torch.testing.assert_close(calls(batch_size, seen)(IMAGES), model(IMAGES), rtol=0, atol=1e-15)
    assert sum(seen) == 7
    assert max(seen) <= batch_size


@pytest.mark.parametrize("batch_size", [2, 7])
def test_code_of_others_back_propagates_through_one_call(batch_size: int) -> None:
    seen: list[int] = []
    x, y = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    with torch.enable_grad():
        weights = torch.linspace(-1, 1, 35, dtype=torch.float64).view(7, 5)
        (calls(batch_size, seen)(x) * weights).sum().backward()
        (model(y) * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-14)
    assert max(seen) <= batch_size
    # One forward pass more, and only where the images are more than a batch.
    assert sum(seen) == (14 if batch_size < 7 else 7)


def test_only_a_batch_is_differentiated_at_once() -> None:
    graphs: list[int] = []

    def watched(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            graphs.append(len(x))
        return model(x)

    x = IMAGES.clone().requires_grad_()
    with torch.enable_grad():
        calls(2, outputs=watched)(x).sum().backward()
    assert graphs == [2, 2, 2, 1]


def test_a_model_without_a_gradient_is_named() -> None:
    x = IMAGES.clone().requires_grad_()
    with torch.enable_grad():
        outputs = calls(2, outputs=lambda t: model(t.detach()))(x)
        with pytest.raises(OptionError, match="expected outputs with a gradient to the images, found none"):
            outputs.sum().backward()
