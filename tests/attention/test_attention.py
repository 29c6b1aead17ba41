"""Every variant against the per-token reference, and the explicit path against the fused one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn

from robustbench_quest.attention.core import Attention, SelfAttention, previous_values
from robustbench_quest.attention.elliptical import metric_gradient
from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import VARIANTS, resolve

# (variant, options, layers that use M)
CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("standard", {}, ()),
    ("quest", {}, ()),
    ("qnorm", {}, ()),
    ("qknorm-hs", {}, ()),
    ("qknorm-hs", {"param": "linear"}, ()),
    ("qknorm-hs", {"max_scale": 10.0}, ()),
    ("qknorm-ds", {}, ()),
    ("qknorm-ds", {"mode": "rms"}, ()),
    ("qknorm-ds", {"mode": "ln-nobias"}, ()),
    ("qknorm-ln", {}, ()),
    ("elliptical", {}, (1, 2, 3)),
    ("elliptical", {"estimator": "median"}, (1, 2, 3)),
    ("elliptical", {"gradient": "detached"}, (1, 2, 3)),
    ("elliptical", {"gradient": "detached", "estimator": "median"}, (1, 2, 3)),
    ("elliptical", {"layers": "1,3"}, (1, 3)),
    ("elliptical", {"layers": "2-"}, (2, 3)),
    ("elliptical", {"layers": "1-2"}, (1, 2)),
    ("elliptical-quest", {}, (1, 2, 3)),
    ("elliptical-quest", {"gradient": "detached"}, (1, 2, 3)),
    ("elliptical-quest", {"keys": "ellipse"}, (1, 2, 3)),
    ("elliptical-quest", {"keys": "ellipse", "gradient": "detached", "layers": "3"}, (3,)),
    ("elliptical-quest", {"keys": "ellipse", "estimator": "median"}, (1, 2, 3)),
]


def case_id(value: object) -> str | None:
    if isinstance(value, dict):
        return ",".join(f"{key}={option}" for key, option in value.items()) or "defaults"
    return (
        value if isinstance(value, str) else "-".join(map(str, value)) if isinstance(value, tuple) else None
    )


def swapped(name: str, options: dict[str, Any] | None = None) -> Any:
    # How gradients pass through M is no option of a variant; ``metric_gradient`` switches it.
    own = {key: value for key, value in (options or {}).items() if key != "gradient"}
    model = swap_attention(reference.small_vit(), resolve(name, own))
    reference.randomize(model)
    return model.double()


def input_gradient(logits: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a loss that weighs every class of every image differently."""
    weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)
    return torch.autograd.grad((logits * weights).sum() + logits.square().sum(), x)[0]


@pytest.mark.parametrize(("name", "options", "layers"), CASES, ids=case_id)
def test_logits_and_input_gradients_equal_the_reference(
    name: str, options: dict[str, Any], layers: tuple[int, ...]
) -> None:
    model = swapped(name, options)
    x, y = reference.images().requires_grad_(), reference.images().requires_grad_()
    with metric_gradient(previous_values(model), through=options.get("gradient") != "detached"):
        found = model(x)
    expected = reference.vit(y, model.state_dict(), name, options, layers)
    assert expected.abs().max() > 0.1  # the comparison is not one of zeros
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    gradient = input_gradient(expected, y)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(input_gradient(found, x), gradient, rtol=0, atol=1e-10)


def test_every_option_value_is_compared_with_the_reference() -> None:
    seen = {(name, option, value) for name, options, _ in CASES for option, value in options.items()}
    for name, variant in VARIANTS.items():
        for option, (default, allowed) in variant.options.items():
            others = set(allowed) - {default} if isinstance(allowed, tuple) else set()
            assert all((name, option, value) in seen for value in others), (name, option)
    assert {name for name, *_ in CASES} == set(VARIANTS)


def test_all_variants_differ_on_the_same_weights() -> None:
    # Otherwise agreement with the reference would show little. Cases that differ in layers or gradient are
    # left out, and mode=rms, which on these weights is mode=l2: see the identity below.
    functions = [
        (n, o) for n, o, _ in CASES if not {"layers", "gradient"} & set(o) and o.get("mode") != "rms"
    ]
    assert {name for name, _ in functions} == set(VARIANTS)
    with torch.no_grad():
        logits = [(name, options, swapped(name, options)(reference.images())) for name, options in functions]
    for (*function, a), (*other, b) in combinations(logits, 2):
        assert (a - b).abs().max() > 1e-3, (function, other)


def test_clamp_of_the_head_scale_is_at_max_scale() -> None:
    model = swapped("qknorm-hs", {"max_scale": 10.0})
    stored = torch.cat([block.attn.logit_scale.flatten() for block in model.blocks]).exp()
    assert (stored > 10).any()
    assert (stored < 10).any()
    expected = reference.images(1)
    with torch.no_grad():
        before = model(expected)
        for block in model.blocks:
            block.attn.logit_scale.clamp_(max=torch.tensor(10.0).log())
        torch.testing.assert_close(model(expected), before, rtol=0, atol=1e-5)
        model.blocks[0].attn.logit_scale.sub_(0.1)
        assert (model(expected) - before).abs().max() > 1e-5


def test_l2_with_scaled_factors_is_rms() -> None:
    rms, l2 = swapped("qknorm-ds", {"mode": "rms"}), swapped("qknorm-ds", {"mode": "l2"})
    state = rms.state_dict()
    for name in state:
        if "q_norm" in name or "k_norm" in name:
            state[name] = state[name] * 16**0.25
    l2.load_state_dict(state)
    for block in rms.blocks:  # the identity holds without the small term in RMSNorm's root
        block.attn.q_norm.eps = block.attn.k_norm.eps = 0.0
    torch.testing.assert_close(l2(reference.images()), rms(reference.images()), rtol=0, atol=1e-12)


def test_fresh_l2_is_fresh_rms() -> None:
    l2 = swap_attention(reference.small_vit(), resolve("qknorm-ds", {"mode": "l2"})).double()
    rms = swap_attention(reference.small_vit(), resolve("qknorm-ds", {"mode": "rms"})).double()
    torch.testing.assert_close(l2(reference.images()), rms(reference.images()), rtol=0, atol=1e-5)


def test_fresh_head_scale_is_ten_in_both_forms() -> None:
    log = swap_attention(reference.small_vit(), resolve("qknorm-hs")).double()
    linear = swap_attention(reference.small_vit(), resolve("qknorm-hs", {"param": "linear"})).double()
    assert linear.blocks[0].attn.logit_scale.flatten().tolist() == [10.0] * reference.HEADS
    torch.testing.assert_close(log(reference.images()), linear(reference.images()), rtol=0, atol=1e-5)


def set_explicit(model: nn.Module, explicit: bool) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            module.explicit = explicit


@pytest.mark.parametrize(("name", "options", "layers"), CASES, ids=case_id)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
def test_explicit_path_equals_fused_path(
    name: str, options: dict[str, Any], layers: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    model = swapped(name, options).to(dtype)
    results = []
    for explicit in (False, True):
        set_explicit(model, explicit)
        x = reference.images().to(dtype).requires_grad_()
        logits = model(x)
        results.append((logits.detach(), input_gradient(logits, x)))
    (fused, fused_gradient), (explicit_logits, explicit_gradient) = results
    torch.testing.assert_close(explicit_logits, fused, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(explicit_gradient, fused_gradient, rtol=10 * tolerance, atol=tolerance)


def masks(count: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    seen = torch.rand(count, count, generator=generator) > 0.4
    seen.fill_diagonal_(True)
    added = torch.randn(2, reference.HEADS, count, count, generator=generator, dtype=torch.float64)
    return {"bool": {"attn_mask": seen}, "additive": {"attn_mask": added}, "causal": {"is_causal": True}}


@pytest.mark.parametrize("kind", ["bool", "additive", "causal"])
@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].cross])
def test_masks_agree_between_the_paths_and_with_timm(name: str, kind: str) -> None:
    attention = swapped(name).blocks[0].attn
    assert isinstance(attention, SelfAttention)
    x = torch.randn(2, 7, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = masks(7)[kind]
    fused = attention(x, **mask)
    assert (fused - attention(x)).abs().max() > 1e-3
    attention.explicit = True
    torch.testing.assert_close(attention(x, **mask), fused, rtol=0, atol=1e-12)
    if name == "standard":
        native = reference.small_vit().double().blocks[0].attn
        torch.testing.assert_close(native(x, **mask), fused, rtol=0, atol=1e-12)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_mask_and_the_causal_rule_together_are_refused(explicit: bool) -> None:
    attention = swapped("standard").blocks[0].attn
    attention.explicit = explicit
    x = torch.zeros(1, 3, 48, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"expected attn_mask or is_causal, found both"):
        attention(x, attn_mask=torch.ones(3, 3, dtype=torch.bool), is_causal=True)
