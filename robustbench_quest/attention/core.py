"""One attention module for every variant.

All variants are: (1) an edit of queries and keys per head, (2) softmax(scale * q k^T) v with an explicit
scale, (3) the output projection. With q, k, v (B, H, N, D), unit(t) = t / |t| over D:

=================  ====================================  =========  ==================================
variant            logits                                scale      keys beyond a standard ViT's
=================  ====================================  =========  ==================================
standard           q.k                                   1/sqrt(D)  none
quest              q.unit(k)                             1          none
qnorm              unit(q).k                             1          none
qknorm-hs          c_h unit(q).unit(k)                   1          logit_scale (H, 1, 1)
qknorm-ds          (c_q unit(q)).(c_k unit(k))           1          q_norm.weight, k_norm.weight (D)
qknorm-ln          LN(q).LN(k)                           1/sqrt(D)  q_norm., k_norm. weight, bias (D)
elliptical         (m q).k                               1/sqrt(D)  none
elliptical-quest   (m q).unit(k)                         1          none
=================  ====================================  =========  ==================================

Sources: QUEST, arXiv:2604.00199 (Table 1); qknorm-hs, Swin V2 (Liu et al., 2022); qknorm-ds, ViT-22B
(Dehghani et al., 2023) as QUEST writes it; qknorm-ln, timm's ``qk_norm``; elliptical, arXiv:2406.13770. The
forms that the papers leave open are options; see ``variants.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .elliptical import Metric, PreviousValues
from .qk_norms import at_least_float32, l2_normalize

SWIN_INITIAL_SCALE = 10.0


@dataclass(frozen=True)
class HeadScale:
    """The per-head logit scale of qknorm-hs as a function of its stored parameter.

    "log": exp(min(parameter, log max_scale)), Swin V2's; "linear": the parameter itself.
    """

    parametrisation: str
    max_scale: float

    def initial(self) -> float:
        """Return the stored value that gives Swin V2's initial scale of 10."""
        return math.log(SWIN_INITIAL_SCALE) if self.parametrisation == "log" else SWIN_INITIAL_SCALE

    def of(self, stored: Tensor) -> Tensor:
        """Return the scale, shape as stored, in at least float32."""
        wide = at_least_float32(stored)
        return wide.clamp(max=math.log(self.max_scale)).exp() if self.parametrisation == "log" else wide


@dataclass(frozen=True)
class Edit:
    """What one variant does to the queries and keys of one layer; made by a ``variants.Variant``.

    Args:
        q_norm, k_norm: modules applied to queries and keys (B, H, N, D).
        scale: factor on the logits.
        head_scale: the learned scale per head, for qknorm-hs.
        metric: this layer's metric, for the elliptical variants.
        elliptical_keys: keys of unit length in the metric, k / sqrt(k.(M k)); where there is none, k / |k|.
    """

    q_norm: nn.Module
    k_norm: nn.Module
    scale: float
    head_scale: HeadScale | None = None
    metric: Metric | None = None
    elliptical_keys: bool = False


class Attention(nn.Module):
    """What self- and cross-attention share: the edit of queries and keys, and softmax(scale * q k^T) v.

    ``explicit = True`` computes logits and probabilities as tensors and passes them through ``logits_tap``
    and ``probabilities_tap``, where forward hooks can read them; otherwise one fused call is made. Both agree
    to rounding. The taps hold no parameters. There is no dropout: it does nothing in evaluation.
    """

    def __init__(self, num_heads: int, head_dim: int, edit: Edit) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.edit = edit
        # Also as attributes: modules must be registered, under the names that checkpoints use.
        self.q_norm = edit.q_norm
        self.k_norm = edit.k_norm
        if edit.head_scale is not None:
            self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), edit.head_scale.initial()))
        self.explicit = False
        self.logits_tap = nn.Identity()
        self.probabilities_tap = nn.Identity()

    def edited(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys (B, H, N, D) as the variant uses them, in the dtype of ``v``."""
        metric = None if self.edit.metric is None else self.edit.metric.of(v)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.edit.head_scale is not None:
            q = q * self.edit.head_scale.of(self.logit_scale)
        if self.edit.elliptical_keys:
            k = l2_normalize(k, metric)
        if metric is not None:
            q = q * metric
        return q.to(v.dtype), k.to(v.dtype)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return softmax(scale * q k^T) v for edited queries and keys, shape (B, H, N, D).

        Args:
            q, k, v: (B, H, N, D).
            attn_mask: True where a query may look at a key, or a term to add to the logits; broadcastable to
                (B, H, N, N). Not together with ``is_causal``.
            is_causal: whether each query sees only itself and the keys before it.

        Raises:
            ValueError: both a mask and ``is_causal`` are given.
        """
        if is_causal and attn_mask is not None:
            raise ValueError("expected attn_mask or is_causal, found both; put the causal rule into the mask")
        scale = self.edit.scale
        if not self.explicit:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
            )
        logits: Tensor = self.logits_tap((q @ k.transpose(-2, -1)) * scale)  # (B, H, N, N)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            logits = logits + attn_mask
        probabilities: Tensor = self.probabilities_tap(logits.softmax(dim=-1))
        return probabilities @ v

    def _by_head(self, t: Tensor) -> Tensor:
        """Cut (B, N, H * D) into (B, H, N, D)."""
        return t.reshape(*t.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)


def previous_values(model: nn.Module) -> PreviousValues | None:
    """Return what the elliptical layers of a model share; None for a model without such layers."""
    metrics = (part.edit.metric for part in model.modules() if isinstance(part, Attention))
    return next((metric.shared for metric in metrics if metric is not None), None)


class SelfAttention(Attention):
    """Multi-head self-attention around two linear layers, under timm's parameter names.

    Args:
        qkv: C to 3 * H * D; rows q, k, v, each by head.
        proj: H * D to C.
        num_heads: H.
        edit: what the variant does to queries and keys.
    """

    def __init__(self, qkv: nn.Linear, proj: nn.Linear, num_heads: int, edit: Edit) -> None:
        super().__init__(num_heads, qkv.out_features // 3 // num_heads, edit)
        self.qkv = qkv
        self.proj = proj

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Map tokens (B, N, C) to (B, N, C)."""
        q, k, v = (self._by_head(part) for part in self.qkv(x).chunk(3, dim=-1))  # each (B, H, N, D)
        q, k = self.edited(q, k, v)
        heads = self.attend(q, k, v, attn_mask, is_causal)  # (B, H, N, D)
        out: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return out


class CrossAttention(Attention):
    """CrossViT's cross-attention (Chen et al., 2021): the first token asks, all tokens answer.

    Args:
        wq, wk, wv: C to H * D, by head.
        proj: H * D to C.
        num_heads: H.
        edit: what the variant does to queries and keys.
    """

    def __init__(
        self, wq: nn.Linear, wk: nn.Linear, wv: nn.Linear, proj: nn.Linear, num_heads: int, edit: Edit
    ) -> None:
        super().__init__(num_heads, wq.out_features // num_heads, edit)
        self.wq = wq
        self.wk = wk
        self.wv = wv
        self.proj = proj

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to the new first token (B, 1, C)."""
        q, k, v = self._by_head(self.wq(x[:, :1])), self._by_head(self.wk(x)), self._by_head(self.wv(x))
        q, k = self.edited(q, k, v)
        heads = self.attend(q, k, v)  # (B, H, 1, D)
        out: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return out


def around(old: Any, edit: Edit) -> Attention:
    """Return the attention with ``edit`` around the linear layers of ``old``, a self- or cross-attention."""
    if hasattr(old, "qkv"):
        return SelfAttention(old.qkv, old.proj, old.num_heads, edit)
    return CrossAttention(old.wq, old.wk, old.wv, old.proj, old.num_heads, edit)
