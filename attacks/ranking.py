"""Which of two perturbed versions of an image is worse for the model, and the worst one seen so far.

One on which the model fails beats one on which it does not; among equals the larger loss wins, then the
earlier one. Both are measured against the true labels, whatever labels the attack itself used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .objective import Objective


class Worst:
    """The worst version of each image so far.

    Args:
        y: true labels (N,).
        objective: what failing is, and the loss.
    """

    def __init__(self, y: Tensor, objective: Objective) -> None:
        self._y = y
        self._objective = objective
        self._seen: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def offer(self, images: Tensor, logits: Tensor, restart: int) -> None:
        """Take those of ``images`` (N, C, H, W) that are worse than what is held, by ``logits`` (N, K)."""
        wrong = self._objective.failed(logits, self._y)
        # A NaN loss ranks last: an image that breaks the arithmetic must not hide one that fools the model.
        loss = self._objective.loss(logits, self._y)
        loss = torch.where(loss.isnan(), -math.inf, loss)
        restarts = torch.full((len(images),), restart, dtype=torch.int64, device=images.device)
        if self._seen is None:
            self._seen = images, wrong, loss, restarts
            return
        old_images, old_wrong, old_loss, old_restarts = self._seen
        worse = (wrong & ~old_wrong) | ((wrong == old_wrong) & (loss > old_loss))
        self._seen = (
            torch.where(worse[:, None, None, None], images, old_images),
            torch.where(worse, wrong, old_wrong),
            torch.where(worse, loss, old_loss),
            torch.where(worse, restarts, old_restarts),
        )

    @property
    def images(self) -> Tensor:
        """The worst version of each image, (N, C, H, W)."""
        return self._held()[0]

    @property
    def restart(self) -> Tensor:
        """The restart that each comes from, (N,)."""
        return self._held()[3]

    def _held(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self._seen is None:
            raise ValueError("no image has been offered yet")
        return self._seen
