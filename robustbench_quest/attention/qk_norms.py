"""Normalisations of queries and keys, always computed in at least float32.

Under autocast, and in half-precision models, the square of an fp16 value overflows or loses a small key
entirely; every function here leaves autocast, computes in float32 (or float64 when given it) and casts back.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# torch.nn.functional.normalize's default, which training code that calls it used; the papers give no value.
L2_EPS = 1e-12


def at_least_float32(t: Tensor) -> Tensor:
    """Return ``t``, as float32 if it is a half-precision tensor."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def l2_normalize(t: Tensor, metric: Tensor | None = None) -> Tensor:
    """Return ``t / |t|`` over the last dimension; |t|^2 is t.t or, for a diagonal metric M >= 0, t.(M t).

    Without a metric the values are those of ``torch.nn.functional.normalize``. A vector of length zero
    becomes zero and has zero gradient.

    Args:
        t: (..., D).
        metric: the diagonal of M, broadcastable to ``t``.
    """
    with torch.autocast(t.device.type, enabled=False):
        wide = at_least_float32(t)
        squares = wide.square() if metric is None else at_least_float32(metric) * wide.square()
        squared_length = squares.sum(dim=-1, keepdim=True)
        # Zero lengths are replaced before the root, whose derivative there is infinite, and masked after it.
        nonzero = squared_length > 0
        length = torch.where(nonzero, squared_length, 1.0).sqrt().clamp_min(L2_EPS)
        return (nonzero * wide / length).to(t.dtype)


class L2Norm(nn.Module):
    """``t / |t|`` over the head dimension; no parameters."""

    def forward(self, t: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return l2_normalize(t)


class DimensionScale(nn.Module):
    """``t / |t|`` times one learned factor per head dimension, shared by the heads.

    RMSNorm with gain g on queries and keys, and logits over sqrt(D), is this with factor D**0.25 * g and
    logit scale 1; the initial value makes a fresh module equal a fresh RMSNorm.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((head_dim,), head_dim**0.25))

    def forward(self, t: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        with torch.autocast(t.device.type, enabled=False):
            wide = at_least_float32(t)
            return (l2_normalize(wide) * self.weight.to(wide.dtype)).to(t.dtype)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm over the head dimension with a learned gain."""

    def forward(self, t: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        with torch.autocast(t.device.type, enabled=False):
            wide = at_least_float32(t)
            weight = self.weight.to(wide.dtype)
            return F.rms_norm(wide, self.normalized_shape, weight, self.eps).to(t.dtype)


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the head dimension with a learned gain and, if ``bias``, an offset."""

    def forward(self, t: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        with torch.autocast(t.device.type, enabled=False):
            wide = at_least_float32(t)
            weight = self.weight.to(wide.dtype)
            bias = None if self.bias is None else self.bias.to(wide.dtype)
            return F.layer_norm(wide, self.normalized_shape, weight, bias, self.eps).to(t.dtype)
