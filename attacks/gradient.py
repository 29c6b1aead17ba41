"""The model as a gradient attack sees it: logits and input gradients, every use counted per image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError
from .base import Model, Proposal
from .objective import CrossEntropy, Objective


class Oracle:
    """Answers an attack's questions about its images, and counts them.

    The model is asked about ``batch_size`` images at a time, if it names such a number: the others' answers
    are the same, and memory is that of a batch. Gradients are taken with respect to the images only, so
    parameters never get one, frozen or not. Autograd is switched on inside, so an attack also works when it
    is called under ``torch.no_grad()``.
    """

    def __init__(self, model: Model, images: Tensor) -> None:
        self._model = model
        self._bounds: tuple[float, float] | None = getattr(model, "bounds", (0.0, 1.0))
        self._batch_size: int = getattr(model, "batch_size", None) or max(1, len(images))
        self.objective: Objective = getattr(model, "objective", None) or CrossEntropy()
        self._queries = 0
        # Tensors, so that a GPU is not waited for at every step.
        self._grad_zero = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        self._grad_nonfinite = torch.zeros_like(self._grad_zero)

    def logits(self, images: Tensor) -> Tensor:
        """Return the model's outputs, for classification (N, K), without a graph."""
        self._queries += 1
        with torch.no_grad():
            return _joined([self._model(part) for part in images.split(self._batch_size)])

    def loss_labels(self, labels: str, images: Tensor, y: Tensor) -> Tensor:
        """Return the labels (N,) of the loss: ``y``, or for "predicted" the model's answers to ``images``.

        Attacking the prediction is what cleverhans does when it is given no labels; it costs one query.
        """
        return self.objective.answer(self.logits(images)) if labels == "predicted" else y

    def gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of each image's loss (N, C, H, W) and the outputs for it, detached.

        Entries that are NaN or infinite become 0, so that an attack stays in its ball.

        Raises:
            OptionError: the logits do not depend on the images as far as autograd can see.
        """
        self._queries += 1
        parts = zip(images.split(self._batch_size), labels.split(self._batch_size), strict=True)
        gradients, outputs = zip(*(self._gradient(part, aimed) for part, aimed in parts), strict=True)
        gradient = _joined(gradients)
        finite = gradient.isfinite()
        self._grad_zero += (gradient == 0).flatten(1).all(dim=1)
        self._grad_nonfinite += ~finite.flatten(1).all(dim=1)
        return torch.where(finite, gradient, 0), _joined(outputs)

    def _gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._model(images)
            # The sum, not the mean: an image's gradient must not depend on how many others share its batch.
            loss = self.objective.loss(logits, labels).sum()
            gradient = torch.autograd.grad(loss, images, allow_unused=True)[0] if loss.requires_grad else None
        if gradient is None:
            raise OptionError(
                "expected logits with a gradient to the images, found none (a detach, an argmax or "
                "torch.no_grad inside the model?); use an attack that needs no gradient"
            )
        return gradient, logits.detach()

    def clip(self, images: Tensor) -> Tensor:
        """Clamp ``images`` to the model's range, if it has one."""
        return images if self._bounds is None else images.clamp(*self._bounds)

    def proposal(self, images: Tensor, restart: Tensor | None = None) -> Proposal:
        """Return ``images`` with what was counted; ``restart`` (N,) says where each comes from, default 0."""
        restart = torch.zeros_like(self._grad_zero) if restart is None else restart
        return Proposal(
            images.detach(),
            queries=np.full(len(images), self._queries, dtype=np.int64),
            grad_zero=self._grad_zero.numpy(force=True),
            grad_nonfinite=self._grad_nonfinite.numpy(force=True),
            restart=restart.numpy(force=True),
        )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
