"""How a model answers more images than it takes at once: in batches, also where someone else differentiates.

An attack receives all images of a block that it has to move. Ours ask an ``Oracle`` for gradients, which goes
through the batches by itself. Code of others calls the model on whatever it holds and back-propagates through
that one call: there the answer is computed batch by batch without a graph, and each batch is computed again
when its gradient is asked for. Memory stays that of a batch; the price is one more forward pass per gradient,
and only where the images of a block are more than a batch (``block_size`` above ``batch_size``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .errors import OptionError

if TYPE_CHECKING:
    from .attacks.objective import Objective
    from .models.space import Space


class ModelCalls:
    """A model in an attack's space, asked about at most ``batch_size`` images at a time.

    Args:
        space: the model.
        batch_size: images per model call.
        objective: what attacks raise.
        report: told of the number of images of each call.
    """

    def __init__(
        self, space: Space, batch_size: int, objective: Objective, report: Callable[[int], None]
    ) -> None:
        self.bounds = space.bounds
        self.batch_size = batch_size
        self.objective = objective
        self._space = space
        self._report = report

    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's outputs for encoded images, differentiable where autograd is on."""
        if len(images) <= self.batch_size:
            return self.one(images)
        if torch.is_grad_enabled() and images.requires_grad:
            outputs: Tensor = _ComputedAgain.apply(images, self)
            return outputs
        return torch.cat([self.one(part) for part in images.split(self.batch_size)])

    def one(self, images: Tensor) -> Tensor:
        """Return the outputs of one batch."""
        outputs = self._space(images)
        self._report(len(images))
        return outputs


class _ComputedAgain(torch.autograd.Function):
    """Forward in batches without a graph; backward computes each batch again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, calls: ModelCalls) -> Tensor:
        ctx.save_for_backward(images)
        ctx.calls = calls
        return torch.cat([calls.one(part) for part in images.split(calls.batch_size)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *wanted: Tensor) -> tuple[Tensor, None]:
        (images,) = ctx.saved_tensors
        calls: ModelCalls = ctx.calls
        gradients = []
        for part, direction in zip(
            images.split(calls.batch_size), wanted[0].split(calls.batch_size), strict=True
        ):
            part = part.detach().requires_grad_()
            with torch.enable_grad():
                outputs = calls.one(part)
            if not outputs.requires_grad:
                raise OptionError(
                    "expected outputs with a gradient to the images, found none (a detach, an argmax or "
                    "torch.no_grad inside the model?); use an attack that needs no gradient"
                )
            gradients.append(torch.autograd.grad(outputs, part, direction)[0])
        return torch.cat(gradients), None
