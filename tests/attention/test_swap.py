"""The swap into timm's models: what stays equal, what is refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import reference
import timm
import torch
from timm.layers import AttentionRope
from timm.models.crossvit import CrossAttention as TimmCrossAttention
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn

from robustbench_quest.attention.core import CrossAttention, SelfAttention
from robustbench_quest.attention.swap import (
    attention_sites,
    replace_attention,
    swap_attention,
)
from robustbench_quest.attention.taps import read_attention
from robustbench_quest.attention.variants import VARIANTS, Variant, resolve
from robustbench_quest.errors import OptionError

# name -> (settings that keep it small, side of an image, number of attentions)
ARCHS: dict[str, tuple[dict[str, Any], int, int]] = {
    "vit_tiny_patch16_224": ({"img_size": 32}, 32, 12),
    "deit_tiny_patch16_224": ({"img_size": 32}, 32, 12),
    "deit_tiny_distilled_patch16_224": ({"img_size": 32}, 32, 12),
    "deit3_small_patch16_224": ({"img_size": 32}, 32, 12),
    "crossvit_tiny_240": ({"img_size": 120}, 120, 21),
}
CROSS = [name for name, variant in VARIANTS.items() if variant.cross]


@functools.cache
def _built(arch: str) -> nn.Module:
    settings, _, _ = ARCHS[arch]
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = timm.create_model(arch, pretrained=False, num_classes=7, **settings)
    reference.randomize(model)
    return model.eval()


def timm_model(arch: str) -> nn.Module:
    return copy.deepcopy(_built(arch))


def arch_images(arch: str, count: int = 2) -> Tensor:
    side = ARCHS[arch][1]
    return reference.images(count, side, side).float()


ALLOWED = [(arch, name) for arch in ARCHS for name in (CROSS if arch.startswith("crossvit") else VARIANTS)]


@pytest.mark.parametrize(("arch", "name"), ALLOWED)
def test_every_variant_runs_in_every_architecture(arch: str, name: str) -> None:
    native = timm_model(arch)
    model = swap_attention(timm_model(arch), resolve(name))
    sites = attention_sites(model)
    assert len(sites) == ARCHS[arch][2]
    assert all(isinstance(module, (SelfAttention, CrossAttention)) for _, module in sites)
    added = {f"{path}.{key}" for path, _ in sites for key in VARIANTS[name].parameters}
    assert set(model.state_dict()) == set(native.state_dict()) | added
    assert not added & set(native.state_dict())
    for key, tensor in native.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key

    x = arch_images(arch).requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient.flatten(1).abs().sum(1) > 0).all()
    with torch.no_grad():
        difference = (native(x) - logits).abs().max()
    if name == "standard":
        assert difference < 2e-5
    else:
        assert difference > 1e-3


@pytest.mark.parametrize("arch", ARCHS)
def test_standard_equals_timm_in_float64(arch: str) -> None:
    native = timm_model(arch).double()
    model = swap_attention(copy.deepcopy(native), resolve("standard"))
    results = []
    for either in (native, model):
        x = arch_images(arch, 1).double().requires_grad_()
        logits = either(x)
        results.append((logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0]))
    (expected, expected_gradient), (found, gradient) = results
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


def test_logit_scale_and_norms_are_new_parameters_that_train() -> None:
    for name in VARIANTS:
        model = swap_attention(reference.small_vit(), resolve(name)).train()
        model(reference.images().float()).square().sum().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, (name, key)
            assert parameter.grad.isfinite().all(), (name, key)


def test_layer_norm_variant_equals_timms_qk_norm() -> None:
    native = reference.small_vit(qk_norm=True)
    fresh = swap_attention(reference.small_vit(), resolve("qknorm-ln"))
    kept = swap_attention(copy.deepcopy(native), resolve("qknorm-ln"))
    assert set(fresh.state_dict()) == set(kept.state_dict()) == set(native.state_dict())
    fresh.load_state_dict(native.state_dict())
    returned = reference.small_vit(qk_norm=True)
    reference.randomize(returned, seed=1)
    returned.load_state_dict(fresh.state_dict())
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        x = reference.images().to(dtype)
        expected = native.to(dtype)(x)
        for model in (fresh, kept, returned):
            torch.testing.assert_close(model.to(dtype)(x), expected, rtol=0, atol=tolerance)


def test_rms_mode_equals_timms_qk_norm_with_rms_norm() -> None:
    rms = functools.partial(timm.layers.RmsNorm, eps=1e-6)
    native = reference.small_vit(qk_norm=True, norm_layer=rms).double()
    model = swap_attention(copy.deepcopy(native), resolve("qknorm-ds", {"mode": "rms"}))
    assert set(model.state_dict()) == set(native.state_dict())
    x = reference.images()
    torch.testing.assert_close(model(x), native(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CROSS)
def test_cross_attention_equals_the_reference(name: str) -> None:
    model = swap_attention(timm_model("crossvit_tiny_240"), resolve(name))
    reference.randomize(model)
    attentions = [module for module in model.modules() if isinstance(module, CrossAttention)]
    assert len(attentions) == 6
    attention = attentions[0].double()
    tokens = torch.randn(2, 5, attention.wq.in_features, generator=torch.Generator().manual_seed(0))
    x, y = tokens.double().requires_grad_(), tokens.double().requires_grad_()
    found = attention(x)
    expected = reference.cross_attention(y, attention.state_dict(), attention.num_heads, name, {})
    assert found.shape == (2, 1, attention.wq.in_features)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    gradients = [torch.autograd.grad(out.square().sum(), of)[0] for out, of in ((found, x), (expected, y))]
    assert gradients[1].abs().max() > 1e-3
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
    attention.explicit = True
    torch.testing.assert_close(attention(x), found, rtol=0, atol=1e-12)


def test_cross_attention_can_be_read() -> None:
    model = swap_attention(timm_model("crossvit_tiny_240"), resolve("quest"))
    with torch.no_grad(), read_attention(model) as seen:
        model(arch_images("crossvit_tiny_240", 1))
    assert len(seen) == ARCHS["crossvit_tiny_240"][2]
    rows = [logits.shape[-2] for logits, _ in seen]
    assert rows.count(1) == 6
    for logits, probabilities in seen:
        assert logits.shape == probabilities.shape
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(logits.shape[:-1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["elliptical", "elliptical-quest"])
def test_elliptical_is_refused_for_crossvit_and_the_model_stays_whole(name: str) -> None:
    model = timm_model("crossvit_tiny_240")
    with pytest.raises(
        OptionError, match=rf"attention {name} is not defined for cross-attention \(CrossViT\)"
    ):
        swap_attention(model, resolve(name))
    kinds = {type(module) for _, module in attention_sites(model)}
    assert kinds == {TimmAttention, TimmCrossAttention}


@pytest.mark.parametrize("arch", ARCHS)
def test_all_sites_run_and_in_this_order_but_for_the_branches_of_crossvit(arch: str) -> None:
    model = timm_model(arch)
    sites = [module for _, module in attention_sites(model)]
    ran: list[nn.Module] = []
    for module in sites:
        module.register_forward_hook(lambda module, *_: ran.append(module))
    model(arch_images(arch, 1))
    assert ran == sites or (arch.startswith("crossvit") and set(ran) == set(sites) and len(ran) == len(sites))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_dtype_mode_and_random_state_are_kept(name: str, dtype: torch.dtype) -> None:
    model = reference.small_vit().to(dtype).train()
    model.blocks[1].eval()
    state = torch.get_rng_state()
    swap_attention(model, resolve(name))
    assert torch.equal(torch.get_rng_state(), state)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert [block.attn.training for block in model.blocks] == [True, False, True, True]
    assert [block.attn.qkv.training for block in model.blocks] == [True, False, True, True]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_on_the_meta_device_is_swapped_without_memory(name: str) -> None:
    model = swap_attention(reference.small_vit().to("meta"), resolve(name))
    assert all(parameter.is_meta for parameter in model.parameters())
    filled = swap_attention(reference.small_vit(), resolve(name))
    assert set(model.state_dict()) == set(filled.state_dict())
    model.load_state_dict(filled.state_dict(), assign=True)
    x = reference.images().float()
    torch.testing.assert_close(model(x), filled(x), rtol=0, atol=0)


def test_other_shapes_of_timms_attention() -> None:
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0)).double()
    for settings in ({"qkv_bias": False}, {"proj_bias": False}, {"attn_head_dim": 8}, {"dim_out": 32}):
        native = nn.ModuleDict({"attn": TimmAttention(48, 3, **settings)}).double()
        model = swap_attention(copy.deepcopy(native), resolve("standard"))
        assert set(model.state_dict()) == set(native.state_dict())
        torch.testing.assert_close(model["attn"](x), native["attn"](x), rtol=0, atol=1e-12)


def test_ours_can_be_swapped_again_unless_parameters_would_be_lost() -> None:
    x = reference.images().float()
    expected = swap_attention(reference.small_vit(), resolve("standard"))(x)
    model = swap_attention(swap_attention(reference.small_vit(), resolve("quest")), resolve("standard"))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    learned = swap_attention(reference.small_vit(), resolve("qknorm-hs"))
    with pytest.raises(OptionError, match=r"blocks\.0\.attn has logit_scale, which .* would drop or change"):
        swap_attention(learned, resolve("standard"))


class OwnAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        out: Tensor = self.proj(self.qkv(x).chunk(3, dim=-1)[2].mean(1, keepdim=True).expand_as(x))
        return out


def test_a_variant_may_make_any_module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Variant((), {}, lambda old, layer, _: OwnAttention(old.qkv.in_features, old.num_heads))
    monkeypatch.setitem(VARIANTS, "quest", made)
    native = reference.small_vit()
    model = swap_attention(copy.deepcopy(native), resolve("quest"))
    assert all(type(block.attn) is OwnAttention for block in model.blocks)
    x = reference.images().float()
    assert (model(x) - native(x)).abs().max() > 1e-3


class Subclass(TimmAttention):  # type: ignore[misc]
    pass


class OtherForward(TimmAttention):  # type: ignore[misc]
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        out: Tensor = super().forward(x.flip(1), attn_mask, is_causal)
        return out


def test_an_attention_of_the_users_takes_over_the_weights() -> None:
    model = reference.small_vit()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    replace_attention(model, lambda old, index, count: OwnAttention(old.qkv.in_features, old.num_heads))
    assert all(type(block.attn) is OwnAttention for block in model.blocks)
    assert not any(block.attn.training for block in model.blocks)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert model(reference.images().float()).shape == (2, reference.CLASSES)


def test_a_subclass_of_timms_attention_is_plain_if_it_runs_the_same_forward() -> None:
    model, x = reference.small_vit(attn_layer=Subclass), reference.images().float()
    expected = model(x)
    torch.testing.assert_close(swap_attention(model, resolve("standard"))(x), expected, rtol=0, atol=2e-5)


def _without_affine(**settings: Any) -> nn.Module:
    plain_norm = functools.partial(nn.LayerNorm, elementwise_affine=False)
    attention = TimmAttention(48, 3, norm_layer=plain_norm, **settings)
    return nn.ModuleDict({"attn": attention})


def _qk_norm(**settings: Any) -> Any:
    return reference.small_vit(qk_norm=True, **settings)


REFUSED: list[tuple[Callable[[], nn.Module], str, str]] = [
    (
        lambda: reference.small_vit(attn_layer=OtherForward),
        "quest",
        r"blocks\.0\.attn is a .*OtherForward, which is not",
    ),
    (
        lambda: reference.small_vit(attn_layer="diff"),
        "quest",
        r"\.DiffAttention, which is not timm's plain attention",
    ),
    (
        lambda: nn.ModuleDict({"a": AttentionRope(48, 3)}),
        "quest",
        r"a is a timm\..*\.AttentionRope, which is not",
    ),
    (
        lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1), embed_dim=24),
        "quest",
        r"layers\.0\.blocks\.0\.attn is a timm\..*\.WindowAttention, which is not timm's plain attention",
    ),
    (
        lambda: timm.create_model("beit_base_patch16_224", depth=1, embed_dim=48, num_heads=3),
        "quest",
        r"blocks\.0\.attn is a timm\.models\.beit\.Attention, which is not",
    ),
    (
        lambda: timm.create_model(
            "davit_tiny", depths=(1, 1, 1, 1), embed_dims=(24,) * 4, num_heads=(3,) * 4
        ),
        "standard",
        r"is a timm\.models\.davit\..*, which is not timm's plain attention",
    ),
    (
        lambda: nn.ModuleDict({"attn": TimmAttention(48, 3, gated=True)}),
        "standard",
        r"attn has gate\.weight, which the requested attention would drop or change",
    ),
    (
        lambda: nn.ModuleDict({"attn": TimmAttention(48, 3, scale_norm=True, norm_layer=nn.LayerNorm)}),
        "standard",
        r"attn has norm\.weight, norm\.bias, norm = LayerNorm\(",
    ),
    (lambda: _without_affine(scale_norm=True), "standard", r"attn has norm = LayerNorm\(\(48,\)"),
    (lambda: _without_affine(qk_norm=True), "standard", r"attn has q_norm = LayerNorm\(\(16,\)"),
    (lambda: _qk_norm(), "standard", r"blocks\.0\.attn has q_norm\.weight, q_norm\.bias, k_norm\.weight"),
    (lambda: _qk_norm(), "qknorm-hs", r"blocks\.0\.attn has q_norm\.weight"),
    (lambda: _qk_norm(), "qknorm-ds", r"blocks\.0\.attn has q_norm\.bias"),
    (
        lambda: _qk_norm(norm_layer=functools.partial(nn.LayerNorm, eps=1e-3)),
        "qknorm-ln",
        r"blocks\.0\.attn has q_norm = LayerNorm\(\(16,\), eps=0\.001",
    ),
    (
        lambda: _qk_norm(norm_layer=timm.layers.RmsNorm),
        "qknorm-ln",
        r"blocks\.0\.attn has q_norm = RmsNorm\(",
    ),
    (
        lambda: _qk_norm(norm_layer=timm.layers.RmsNorm),
        "qknorm-ds",
        r"blocks\.0\.attn has q_norm = RmsNorm\(",
    ),
]


@pytest.mark.parametrize(("build", "name", "message"), REFUSED)
def test_attention_that_does_more_is_refused(build: Callable[[], nn.Module], name: str, message: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model = build()
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(OptionError, match=message) as caught:
        swap_attention(model, resolve(name))
    assert "\n" not in str(caught.value)
    assert [type(module) for module in model.modules()] == kinds


def test_a_model_without_attention_is_refused() -> None:
    torchvision = pytest.importorskip("torchvision")
    with torch.random.fork_rng(devices=[]):
        model = torchvision.models.resnet18(weights=None)
    with pytest.raises(OptionError, match=r"ResNet has no attention that can be replaced .*; declare none"):
        swap_attention(model, resolve("quest"))
