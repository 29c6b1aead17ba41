"""The model as a gradient attack sees it: logits and input gradients, every use counted per image."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError
from .base import Model, Proposal

LABELS = ("true", "predicted")


class Oracle:
    """Answers an attack's questions about the images of one batch, and counts them.

    Gradients are taken with respect to the images only, so parameters never get one, frozen or not. Autograd
    is switched on inside, so an attack also works when it is called under ``torch.no_grad()``.
    """

    def __init__(self, model: Model, images: Tensor) -> None:
        self._model = model
        self._bounds: tuple[float, float] | None = getattr(model, "bounds", (0.0, 1.0))
        self._queries = 0
        # Tensors, so that a GPU is not waited for at every step.
        self._grad_zero = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        self._grad_nonfinite = torch.zeros_like(self._grad_zero)

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (N, K) without a graph."""
        self._queries += 1
        with torch.no_grad():
            return self._model(images)

    def loss_labels(self, labels: str, images: Tensor, y: Tensor) -> Tensor:
        """Return the labels (N,) of the loss: ``y``, or for "predicted" the model's answers to ``images``.

        Attacking the prediction is what cleverhans does when it is given no labels; it costs one query.
        """
        return self.logits(images).argmax(dim=1) if labels == "predicted" else y

    def gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of each image's cross-entropy (N, C, H, W) and its logits (N, K), detached.

        Entries that are NaN or infinite become 0, so that an attack stays in its ball.

        Raises:
            OptionError: the logits do not depend on the images as far as autograd can see.
        """
        self._queries += 1
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._model(images)
            # The sum, not the mean: an image's gradient must not depend on how many others share its batch.
            loss = F.cross_entropy(logits, labels, reduction="sum")
            gradient = torch.autograd.grad(loss, images, allow_unused=True)[0] if loss.requires_grad else None
        if gradient is None:
            raise OptionError(
                "expected logits with a gradient to the images, found none (a detach, an argmax or "
                "torch.no_grad inside the model?); use an attack that needs no gradient"
            )
        finite = gradient.isfinite()
        self._grad_zero += (gradient == 0).flatten(1).all(dim=1)
        self._grad_nonfinite += ~finite.flatten(1).all(dim=1)
        return torch.where(finite, gradient, 0), logits.detach()

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
