"""Logits and labels to the columns of records, in float64 on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..device import HOST

Columns = dict[str, Any]

TOP = 5


def score(logits: Tensor, labels: Tensor) -> Columns:
    """Return the score columns of a batch.

    Ties count against the model: where another class has the label's logit, the image is wrong. Rows with a
    NaN or infinite logit are wrong, with infinite NLL, whatever the logits seem to say.

    Args:
        logits: (N, K), any floating dtype and device.
        labels: (N,), int64, in [0, K).
    """
    values = logits.detach().to(HOST).double()  # MPS has no float64
    labels = labels.to(HOST)
    count, classes = values.shape
    rows = torch.arange(count)
    finite = torch.isfinite(values).all(dim=1)
    safe = torch.where(finite[:, None], values, 0.0)
    log_probabilities = safe.log_softmax(dim=1)
    probabilities = log_probabilities.exp()

    # The label's logit is lowered by one unit in the last place of float64, far less than the distance of two
    # float32 values: it now ranks behind every logit that it tied with, and nothing else moves.
    ranked = safe.clone()
    ranked[rows, labels] = torch.nextafter(safe[rows, labels], torch.tensor(-torch.inf, dtype=torch.float64))
    order = ranked.sort(dim=1, descending=True, stable=True).indices[:, :TOP]
    others = safe.clone()
    others[rows, labels] = -torch.inf
    one_hot = torch.zeros_like(probabilities)
    one_hot[rows, labels] = 1.0

    hit = order == labels[:, None]
    return {
        "pred": order.numpy().astype(np.int32),
        "prob": probabilities.gather(1, order).numpy().astype(np.float32),
        "nll": torch.where(finite, -log_probabilities[rows, labels], torch.inf).numpy(),
        "brier": torch.where(finite, (probabilities - one_hot).square().sum(1), 2.0).numpy(),
        "margin": torch.where(finite, safe[rows, labels] - others.amax(dim=1), -torch.inf).numpy(),
        "correct": (hit[:, 0] & finite).numpy(),
        "correct5": (hit.any(dim=1) & finite).numpy() if classes >= TOP else np.array([None] * count),
        "finite": finite.numpy(),
    }


def predictions(columns: Mapping[str, Any]) -> npt.NDArray[np.int32]:
    """Return the predicted class of each row of ``score``'s columns; -1 where the logits are not finite."""
    return np.where(columns["finite"], columns["pred"][:, 0], -1).astype(np.int32)


def cross_entropy(logits: Tensor, labels: Tensor) -> npt.NDArray[np.float64]:
    """Return -log softmax(logits)[label] of each row (N,), float64; NaN where logits are NaN."""
    log_probabilities = logits.detach().to(HOST).double().log_softmax(dim=1)
    picked = log_probabilities.gather(1, labels.to(HOST)[:, None])[:, 0]
    return np.asarray((-picked).numpy())
