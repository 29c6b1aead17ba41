"""A second implementation of the attention variants, one pair of tokens at a time, and weights to try it on.

Written from the formulas in the papers, for one image and one head; nothing is shared with the package. Slow
on purpose: every logit is its own expression.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch import Tensor, nn

NORM_EPS = 1e-6
HEADS = 3
DEPTH = 4
CLASSES = 5
HEIGHT, WIDTH = 8, 40
TOKENS = 6  # 5 patches and a class token: an even number, so that the lower and the upper median differ

State = Mapping[str, Tensor]
Options = Mapping[str, Any]


def small_vit(**kwargs: Any) -> VisionTransformer:
    """Return timm's own ViT, small, in eval mode, with weights on which attention variants differ."""
    settings = {
        "img_size": (HEIGHT, WIDTH),
        "patch_size": 8,
        "embed_dim": 48,
        "depth": DEPTH,
        "num_heads": HEADS,
    }
    with torch.random.fork_rng(devices=[]):
        model = VisionTransformer(**{**settings, "mlp_ratio": 2, "num_classes": CLASSES, **kwargs})
    randomize(model)
    return model.eval()


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Fill all parameters with values that depend on their names alone.

    Fresh weights give nearly uniform attention, on which all variants agree; here queries and keys are large.
    Gains and scales are varied around their initial values.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        noise = torch.randn(parameter.shape, generator=generator)
        part, _, kind = name.rpartition(".")
        with torch.no_grad():
            if kind == "logit_scale" or ("norm" in part and kind == "weight"):
                parameter.mul_(1 + 0.2 * noise)
            elif part.endswith(("qkv", "wq", "wk")):
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(0.1 * noise)


def images(count: int = 2, height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Tensor:
    """Return normalised images, float64 (count, 3, height, width)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, height, width, generator=generator, dtype=torch.float64)


def unit(t: Tensor) -> Tensor:
    return t / (t * t).sum().sqrt()


def layer_norm(t: Tensor, gain: Tensor, offset: Tensor | None = None) -> Tensor:
    centred = t - t.mean()
    normed = centred / ((centred * centred).mean() + NORM_EPS).sqrt() * gain
    return normed if offset is None else normed + offset


def rms_norm(t: Tensor, gain: Tensor) -> Tensor:
    return t / ((t * t).mean() + NORM_EPS).sqrt() * gain


def head_scale(stored: Tensor, options: Options) -> Tensor:
    if options.get("param", "log") == "linear":
        return stored
    return torch.exp(torch.clamp(stored, max=math.log(options.get("max_scale", 100.0))))


def logit(
    variant: str, q: Tensor, k: Tensor, metric: Tensor | None, weights: State, head: int, options: Options
) -> Tensor:
    """Return the logit of one query (D,) and one key (D,); ``metric`` is M's diagonal, None for identity."""
    root = math.sqrt(len(q))
    m = torch.diag(torch.ones_like(q) if metric is None else metric)
    if variant == "standard":
        return q @ k / root
    if variant == "quest":
        return q @ unit(k)
    if variant == "qnorm":
        return unit(q) @ k
    if variant == "qknorm-hs":
        return head_scale(weights["logit_scale"][head, 0, 0], options) * (unit(q) @ unit(k))
    if variant == "qknorm-ln":
        query = layer_norm(q, weights["q_norm.weight"], weights["q_norm.bias"])
        key = layer_norm(k, weights["k_norm.weight"], weights["k_norm.bias"])
        return query @ key / root
    if variant == "elliptical":
        return q @ m @ k / root
    if variant == "elliptical-quest":
        length = (k @ m @ k).sqrt() if options.get("keys") == "ellipse" else (k @ k).sqrt()
        return q @ m @ k / length
    assert variant == "qknorm-ds"
    c_q, c_k, mode = weights["q_norm.weight"], weights["k_norm.weight"], options.get("mode", "l2")
    if mode == "l2":
        return (c_q * unit(q)) @ (c_k * unit(k))
    norm = {"rms": rms_norm, "ln-nobias": layer_norm}[mode]
    return norm(q, c_q) @ norm(k, c_k) / root


def elliptical_metric(values: Tensor, previous: Tensor, options: Options, delta: float = 5.0) -> Tensor:
    """Return M's diagonal (D,) from two layers' values (N, D), with the reference code's delta."""
    columns = []
    for new, old in zip(values.T, previous.T, strict=True):
        change = torch.stack([(a - b).abs() / delta for a, b in zip(new, old, strict=True)])
        if options.get("estimator") == "median":
            columns.append(change[change.argsort()[(len(change) - 1) // 2]])
        else:
            columns.append(change.sum() / len(change))
    spread = torch.stack(columns)
    metric = spread / spread.max()
    return metric.detach() if options.get("gradient") == "detached" else metric


def one_head(
    variant: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    metric: Tensor | None,
    weights: State,
    head: int,
    options: Options,
) -> Tensor:
    """Return softmax(logits) v of one head, (N_q, D), for q (N_q, D) and k, v (N, D)."""
    rows = []
    for query in q:
        logits = torch.stack([logit(variant, query, key, metric, weights, head, options) for key in k])
        weight = torch.exp(logits - logits.max())
        rows.append((weight / weight.sum()) @ v)
    return torch.stack(rows)


def cross_attention(x: Tensor, weights: State, heads: int, variant: str, options: Options) -> Tensor:
    """Return CrossViT's cross-attention of tokens (B, N, C): its first token, (B, 1, C)."""
    out = []
    for tokens in x:
        q = (tokens[:1] @ weights["wq.weight"].T + weights["wq.bias"]).chunk(heads, dim=-1)
        k = (tokens @ weights["wk.weight"].T + weights["wk.bias"]).chunk(heads, dim=-1)
        v = (tokens @ weights["wv.weight"].T + weights["wv.bias"]).chunk(heads, dim=-1)
        parts = [one_head(variant, q[h], k[h], v[h], None, weights, h, options) for h in range(heads)]
        out.append(torch.cat(parts, dim=-1) @ weights["proj.weight"].T + weights["proj.bias"])
    return torch.stack(out)


def vit(
    x: Tensor, state: State, variant: str, options: Options, metric_layers: Collection[int] = (1, 2, 3)
) -> Tensor:
    """Return the logits of ``small_vit`` with a variant, from its state dict; images (B, 3, H, W)."""
    out = []
    for image in x:
        patches = F.conv2d(image, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=8)
        tokens = torch.cat([state["cls_token"][0], patches.flatten(1).T]) + state["pos_embed"][0]
        previous: list[Tensor] = []
        for i in range(DEPTH):
            prefix = f"blocks.{i}."
            layer = {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}
            weights = {name[5:]: t for name, t in layer.items() if name.startswith("attn.")}
            normed = _norm_tokens(tokens, layer, "norm1")
            qkv = normed @ weights["qkv.weight"].T + weights["qkv.bias"]
            q, k, v = (part.chunk(HEADS, dim=-1) for part in qkv.chunk(3, dim=-1))
            heads = []
            for h in range(HEADS):
                use = variant.startswith("elliptical") and i in metric_layers
                metric = elliptical_metric(v[h], previous[h], options) if use else None
                heads.append(one_head(variant, q[h], k[h], v[h], metric, weights, h, options))
            previous = list(v)
            tokens = tokens + torch.cat(heads, dim=-1) @ weights["proj.weight"].T + weights["proj.bias"]
            hidden = F.gelu(
                _norm_tokens(tokens, layer, "norm2") @ layer["mlp.fc1.weight"].T + layer["mlp.fc1.bias"]
            )
            tokens = tokens + hidden @ layer["mlp.fc2.weight"].T + layer["mlp.fc2.bias"]
        out.append(_norm_tokens(tokens, state, "norm")[0] @ state["head.weight"].T + state["head.bias"])
    return torch.stack(out)


def _norm_tokens(tokens: Tensor, state: State, name: str) -> Tensor:
    return torch.stack([layer_norm(t, state[f"{name}.weight"], state[f"{name}.bias"]) for t in tokens])
