"""What an attack raises, and when it has succeeded."""

from __future__ import annotations

import math
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Objective(Protocol):
    """What attacks ask of a task. Outputs are the model's for N images, targets one entry per image."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each image (N,), which an attack raises."""
        ...

    def failed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the model fails on each image (N,), bool; ``targets`` are the true ones."""
        ...

    def answer(self, outputs: Tensor) -> Tensor:
        """Return the targets that the model itself gives."""
        ...


class CrossEntropy:
    """Classification: logits (N, K), labels (N,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each image."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def failed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which images are misclassified.

        A tie of the label with another class is a failure, and so is a NaN or infinite logit.
        """
        label = targets.unsqueeze(1)
        best_other = outputs.scatter(1, label, -math.inf).amax(dim=1)
        right = outputs.gather(1, label).squeeze(1) > best_other
        return ~(right & outputs.isfinite().all(dim=1))

    def answer(self, outputs: Tensor) -> Tensor:
        """Return the predicted labels."""
        return outputs.argmax(dim=1)
