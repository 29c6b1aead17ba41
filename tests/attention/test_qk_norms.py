"""Norms in reduced precision, and where a query or key is zero, tiny or huge."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import reference
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustbench_quest.attention.qk_norms import DimensionScale, L2Norm, LayerNorm, RMSNorm, l2_normalize
from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import VARIANTS, resolve
from robustbench_quest.device import HOST, resolve_device

DIM = 16
HALF_TYPES = [torch.float16, torch.bfloat16]
NORMS: dict[str, Callable[[], nn.Module]] = {
    "l2": L2Norm,
    "dimension-scale": lambda: DimensionScale(DIM),
    "rms": lambda: RMSNorm(DIM, eps=1e-6),
    "layer": lambda: LayerNorm(DIM, 1e-6),
    "layer-nobias": lambda: LayerNorm(DIM, 1e-6, bias=False),
}
DEVICES = [
    pytest.param(HOST, id="host"),
    pytest.param(
        resolve_device(),
        id="accelerator",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
        ],
    ),
]


def norm(name: str) -> nn.Module:
    module = NORMS[name]()
    reference.randomize(nn.ModuleDict({"norm": module}))
    return module


def tokens(scale: float = 1.0) -> Tensor:
    return scale * torch.randn(2, 3, 5, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_autocast_computes_in_float32_and_rounds_once(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    module, t = norm(name).to(device), tokens().to(device, dtype)
    with torch.autocast(device.type, dtype=dtype):
        found = module(t)
        wide = module(t.float())
    assert found.dtype == dtype
    assert wide.dtype == torch.float32
    torch.testing.assert_close(found, module(t.float()).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(wide, module(t.float()), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_half_modules_compute_in_float32_and_round_once(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    module, t = norm(name).to(device, dtype), tokens().to(device, dtype)
    expected = copy.deepcopy(module).float()(t.float()).to(dtype)
    torch.testing.assert_close(module(t), expected, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["l2", "dimension-scale"])
def test_tiny_keys_keep_their_direction(name: str, dtype: torch.dtype, device: torch.device) -> None:
    module, t = norm(name).to(device), tokens(1e-6).to(device, dtype)
    assert (t.float().norm(dim=-1) < 1e-5).all()
    expected = module(F.normalize(t.double(), dim=-1).float())
    torch.testing.assert_close(module(t).float(), expected, rtol=0.01, atol=1e-3)
    assert module(t).float().norm(dim=-1).min() > 0.9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_huge_values_stay_finite(name: str, dtype: torch.dtype, device: torch.device) -> None:
    module, t = norm(name).to(device), tokens().sign().mul(1e4).to(device, dtype)
    module_of_ones = module(t.float().sign())
    torch.testing.assert_close(module(t).float(), module_of_ones, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_zero_vectors_are_finite(name: str, dtype: torch.dtype, device: torch.device) -> None:
    t = tokens().to(device, dtype)
    t[0, 1, 2] = 0
    t.requires_grad_()
    out = norm(name).to(device)(t)
    out.sum().backward()
    assert out.isfinite().all()
    assert t.grad is not None
    assert t.grad.isfinite().all()
    if name in ("l2", "dimension-scale"):
        assert (out[0, 1, 2] == 0).all()
        assert (t.grad[0, 1, 2] == 0).all()
    assert (t.grad[1].abs().sum(-1) > 0).all()


def test_l2_is_torchs_normalize() -> None:
    for scale in (1e-18, 1e-12, 1e-3, 1.0, 1e6):
        t = tokens(scale)
        torch.testing.assert_close(l2_normalize(t), F.normalize(t, dim=-1), rtol=1e-6, atol=1e-7)


def test_length_in_a_metric_and_where_it_vanishes() -> None:
    t = tokens().double()
    metric = torch.linspace(0, 1, DIM, dtype=torch.float64).repeat(2, 3, 1, 1)
    t[0, 0, 0] = 0
    t[0, 0, 1, 1:] = 0  # only the entry that the metric does not see
    t, metric = t.requires_grad_(), metric.requires_grad_()
    out = l2_normalize(t, metric)
    lengths = torch.einsum("bhnd,bhd,bhnd->bhn", out, metric[:, :, 0], out)
    expected = torch.ones_like(lengths)
    expected[0, 0, :2] = 0
    torch.testing.assert_close(lengths, expected, rtol=0, atol=1e-12)
    for gradient in torch.autograd.grad(out.sum(), (t, metric)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_under_autocast_follows_float32(name: str, dtype: torch.dtype, device: torch.device) -> None:
    model = swap_attention(reference.small_vit(), resolve(name)).to(device)
    x = reference.images().float().to(device)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast(device.type, dtype=dtype):
            logits = model(x)
    error = (logits.float() - expected).abs().max().item()
    # Eight significant bits of bfloat16, eleven of float16, and a few layers to add them up.
    allowed = (0.15 if dtype == torch.bfloat16 else 0.02) * expected.abs().max().item()
    assert 0 < error < allowed


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_half_precision_model_is_finite(name: str, dtype: torch.dtype) -> None:
    model = swap_attention(reference.small_vit(), resolve(name)).to(dtype)
    x = reference.images().to(dtype).requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits.float().square().sum(), x)
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("part", ["queries", "keys", "values"])
@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in VARIANTS), ("elliptical-quest", {"keys": "ellipse"})],
    ids=str,
)
def test_zero_queries_keys_or_values_give_finite_logits_and_gradients(
    name: str, options: dict[str, str], part: str
) -> None:
    model = swap_attention(reference.small_vit(), resolve(name, options))
    start = 48 * ("queries", "keys", "values").index(part)
    with torch.no_grad():
        for block in model.blocks[1:3]:  # values that are zero twice do not change: M is zero there
            block.attn.qkv.weight[start : start + 48] = 0
            block.attn.qkv.bias[start : start + 48] = 0
    x = reference.images().float().requires_grad_()
    logits = model(x)
    # A large gradient from above: 0 times infinity must not arise on the way down.
    (gradient,) = torch.autograd.grad(1e6 * logits.square().sum(), x)
    assert logits.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_a_head_dimension_that_never_changes_has_a_finite_gradient() -> None:
    # Such an entry of M is 0, where the square root of M has an infinite derivative.
    model = swap_attention(reference.small_vit(), resolve("elliptical-quest", {"keys": "ellipse"}))
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[100] = 0
            block.attn.qkv.bias[100] = 0
    x = reference.images().float().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
    assert gradient.isfinite().all()


def test_head_scale_of_a_half_parameter_is_computed_in_float32() -> None:
    attention = swap_attention(reference.small_vit(), resolve("qknorm-hs")).half().blocks[0].attn
    scale = attention.edit.head_scale.of(attention.logit_scale)
    assert scale.dtype == torch.float32
    expected = [math.exp(value) for value in attention.logit_scale.flatten().tolist()]
    assert scale.flatten().tolist() == pytest.approx(expected, rel=1e-6)
