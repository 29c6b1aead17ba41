"""What the elliptical variants alone have: M, its gradient, and values that travel between layers."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import reference
import torch
from torch import Tensor

from robustbench_quest.attention.core import previous_values
from robustbench_quest.attention.elliptical import elliptical_metric, metric_gradient
from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import resolve

NAMES = ["elliptical", "elliptical-quest"]


def model_with(name: str, gradient: str = "adaptive", **options: Any) -> Any:
    model = swap_attention(reference.small_vit(), resolve(name, options)).double()
    shared = previous_values(model)
    assert shared is not None
    shared.detach = gradient == "detached"
    return model


def held_values(model: Any) -> Tensor | None:
    values: Tensor | None = model.blocks[0].attn.edit.metric.shared.values
    return values


def gradient_of(model: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x).square().sum(), x)[0]


@pytest.mark.parametrize("tokens", [5, 6])
@pytest.mark.parametrize("estimator", ["mean", "median"])
def test_metric_equals_the_reference(estimator: str, tokens: int) -> None:
    draw = torch.Generator().manual_seed(0)
    now, before = (torch.randn(2, 3, tokens, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    found = elliptical_metric(now, before, estimator)
    assert found.shape == (2, 3, 1, 7)
    for b in range(2):
        for h in range(3):
            expected = reference.elliptical_metric(now[b, h], before[b, h], {"estimator": estimator})
            torch.testing.assert_close(found[b, h, 0], expected, rtol=0, atol=1e-14)
    assert (found.amax(-1) == 1).all()
    assert (found >= 0).all()


def test_median_is_the_lower_one_that_torch_gives() -> None:
    now = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0))
    spread = now.abs().median(dim=-2, keepdim=True).values
    expected = spread / spread.amax(-1, keepdim=True)
    torch.testing.assert_close(
        elliptical_metric(now, torch.zeros_like(now), "median"), expected, rtol=0, atol=0
    )


@pytest.mark.parametrize("delta", [0.1, 1.0, 5.0])
def test_delta_cancels(delta: float) -> None:
    draw = torch.Generator().manual_seed(0)
    now, before = (torch.randn(6, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    found = elliptical_metric(now[None, None], before[None, None], "mean")[0, 0, 0]
    torch.testing.assert_close(
        found, reference.elliptical_metric(now, before, {}, delta=delta), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("estimator", ["mean", "median"])
def test_unchanged_values_give_a_zero_metric_with_a_zero_gradient(estimator: str) -> None:
    values = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    metric = elliptical_metric(values, values.detach(), estimator)
    assert (metric == 0).all()
    (gradient,) = torch.autograd.grad(1e30 * metric.sum(), values)
    assert (gradient == 0).all()


def test_metric_of_half_values_is_float32_and_does_not_overflow() -> None:
    now = torch.full((1, 1, 4, 3), 6e4, dtype=torch.float16)
    metric = elliptical_metric(now, -now, "mean")
    assert metric.dtype == torch.float32
    assert metric.flatten().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_detached_has_the_same_logits_and_another_gradient(name: str) -> None:
    x = reference.images()
    adaptive, detached = model_with(name, gradient="adaptive"), model_with(name, gradient="detached")
    torch.testing.assert_close(detached(x), adaptive(x), rtol=0, atol=0)
    a, d = gradient_of(adaptive, x), gradient_of(detached, x)
    assert (a - d).norm() / a.norm() > 1e-2


@pytest.mark.parametrize("gradient", ["adaptive", "detached"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("elliptical", {}),
        ("elliptical", {"estimator": "median"}),
        ("elliptical-quest", {}),
        ("elliptical-quest", {"estimator": "median"}),
        ("elliptical-quest", {"keys": "ellipse"}),
    ],
    ids=str,
)
def test_only_the_adaptive_gradient_is_that_of_finite_differences(
    name: str, gradient: str, options: dict[str, str]
) -> None:
    model, x = model_with(name, gradient=gradient, **options), reference.images(1)
    claimed = gradient_of(model, x)
    step, misses = 1e-6, []
    with torch.no_grad():
        for seed in range(3):
            way = reference.images(1, seed=100 + seed)
            ahead, behind = (model(x + sign * step * way).square().sum() for sign in (1, -1))
            slope = (ahead - behind) / (2 * step)
            misses.append(((claimed * way).sum() / slope - 1).abs().item())
    if gradient == "adaptive":
        assert max(misses) < 1e-5
    else:
        assert max(misses) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_metric_is_per_image(name: str) -> None:
    model, x = model_with(name), reference.images(3)
    whole = model(x)
    for i in range(3):
        torch.testing.assert_close(model(x[i : i + 1]), whole[i : i + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("gradient", ["adaptive", "detached"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_held_after_a_forward_pass(name: str, gradient: str) -> None:
    model, x = model_with(name, gradient=gradient), reference.images()
    first = model(x)
    assert held_values(model) is None
    model(reference.images(1, seed=5))
    torch.testing.assert_close(model(x), first, rtol=0, atol=0)


def interrupt(model: Any, x: Tensor) -> None:
    """Run a forward pass that fails between the second and the third layer."""

    def fail(*_: object) -> None:
        raise RuntimeError("interrupted")

    handle = model.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        model(x)
    handle.remove()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_pass_does_not_change_the_next(name: str) -> None:
    model, x = model_with(name), reference.images()
    expected = model(x)
    interrupt(model, reference.images(3, seed=7))
    assert held_values(model) is not None
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_deep_copy_is_independent_even_after_an_interruption(name: str) -> None:
    model, x = model_with(name), reference.images()
    expected = model(x)
    interrupt(model, x)
    other = copy.deepcopy(model)
    assert held_values(other) is None
    states = {block.attn.edit.metric.shared for block in other.blocks}
    assert len(states) == 1
    assert model.blocks[0].attn.edit.metric.shared not in states
    with torch.no_grad():
        other.blocks[0].attn.qkv.weight.zero_()
    assert (other(x) - expected).abs().max() > 1e-3
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def test_a_saved_whole_model_loads() -> None:
    model, x = model_with("elliptical"), reference.images()
    expected = model(x)
    interrupt(model, x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), expected, rtol=0, atol=0)


def test_layers_that_run_out_of_order_are_an_error() -> None:
    model = model_with("elliptical")
    model(reference.images())
    with pytest.raises(RuntimeError, match=r"previous layer's values are missing; run all layers, in order"):
        model.blocks[1](torch.zeros(1, 4, 48, dtype=torch.float64))


def test_the_state_dict_has_no_key_of_the_values() -> None:
    model = model_with("elliptical")
    interrupt(model, reference.images())
    assert set(model.state_dict()) == set(reference.small_vit().state_dict())


def test_the_gradient_through_m_is_switched_and_switched_back() -> None:
    model, x = model_with("elliptical"), reference.images(1)
    through = gradient_of(model, x)
    shared = previous_values(model)
    with metric_gradient(shared, through=False):
        assert not torch.equal(gradient_of(model, x), through)
    assert torch.equal(gradient_of(model, x), through)
    plain = swap_attention(reference.small_vit(), resolve("quest"))
    assert previous_values(plain) is None
    with metric_gradient(None, through=False):
        assert plain(x.float()).isfinite().all()
