"""Replace the attention modules of a built model, keeping the names that checkpoints use.

Module surgery works for every timm version and every architecture whose blocks hold a plain attention: ViT,
DeiT, DeiT-3 (``blocks[i].attn``) and CrossViT (self-attention and ``fusion`` cross-attention). What stands
outside the blocks, such as attention pooling, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from timm.layers import RmsNorm
from timm.models.crossvit import CrossAttention as TimmCrossAttention
from timm.models.vision_transformer import Attention as TimmAttention
from torch import nn

from ..errors import OptionError
from ..types import AttentionSpec
from .core import Attention, CrossAttention, SelfAttention
from .elliptical import PreviousValues
from .variants import VARIANTS, Layer, resolve

Model = TypeVar("Model", bound=nn.Module)
Make = Callable[[Any, int, int], nn.Module]
"""From an attention, its index and how many there are to the module that takes its place."""

# The classes known to compute softmax(q.k / sqrt(D)) v over tokens and no more. Others with the same
# parameter names do something else: DaViT attends over channels, Hiera in windows, EVA rotates q and k.
_PLAIN = (TimmAttention, TimmCrossAttention, SelfAttention, CrossAttention)
_PROJECTIONS = ("qkv", "wq", "wk", "wv", "proj")


def attention_sites(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (path, module) of every attention, in the order in which they run.

    A self-attention has ``qkv`` and ``proj``, a CrossViT cross-attention ``wq``, ``wk``, ``wv`` and ``proj``.
    """
    return [(path, module) for path, module in model.named_modules() if _is_self(module) or _is_cross(module)]


def swap_attention(model: Model, spec: AttentionSpec) -> Model:
    """Replace every attention of ``model`` in place by the variant ``spec``, around the same linear layers.

    Raises:
        OptionError: the model has no attention that can be replaced, or one that does more than the variant
            (a gate, an output norm, rotary positions, another query or key norm); the variant is not defined
            for it; or ``spec`` is not one that ``variants.resolve`` gives. The model is left as it was.
    """
    options = dict(resolve(spec.name, dict(spec.options)).options)
    variant = VARIANTS[spec.name]
    shared = PreviousValues()

    def make(old: Any, index: int, count: int) -> nn.Module:
        cross = _is_cross(old)
        if cross and not variant.cross:
            raise OptionError(
                f"attention {spec.name} is not defined for cross-attention (CrossViT): it needs the previous "
                "layer's values of the same tokens"
            )
        width = old.wq.out_features if cross else old.qkv.out_features // 3
        return variant.make(old, Layer(index, count, width // old.num_heads, shared), options)

    return replace_attention(model, make)


def check_replaceable(model: nn.Module) -> None:
    """Refuse a model whose attention is not timm's plain one.

    Raises:
        OptionError: with what it is.
    """
    sites = attention_sites(model)
    if not sites:
        raise OptionError(
            f"{type(model).__name__} has no attention that can be replaced (a module with qkv and proj, as "
            "in timm's ViT, DeiT, DeiT-3 and CrossViT); declare none (--attention or sidecar)"
        )
    for path, old in sites:
        _check_plain(path, old)


def is_replaceable(model: nn.Module) -> bool:
    """Return whether ``replace_attention`` can be tried."""
    try:
        check_replaceable(model)
    except OptionError:
        return False
    return True


def heads_text(model: nn.Module) -> str:
    """Return the number of heads, as "3", or "2, 4" where layers differ; "" for a model without attention."""
    counts = {getattr(module, "num_heads", None) for _, module in attention_sites(model)} - {None}
    return ", ".join(str(count) for count in sorted(counts))  # type: ignore[type-var]


def replace_attention(model: Model, make: Make) -> Model:
    """Replace every attention by ``make(old, index, count)``, copying tensors whose names and shapes agree.

    Raises:
        OptionError: as in ``swap_attention``.
    """
    check_replaceable(model)
    sites = attention_sites(model)
    # All are made before the first is put in place, so that a refusal leaves the model whole.
    made = [_take_over(path, old, make(old, i, len(sites))) for i, (path, old) in enumerate(sites)]
    for (path, _), new in zip(sites, made, strict=True):
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, new)
    return model


def _take_over(path: str, old: nn.Module, new: nn.Module) -> nn.Module:
    """Give ``new`` the device, dtype, mode and tensors of ``old``."""
    lost = _lost_parts(old, new)
    if lost:
        raise OptionError(
            f"{path} has {', '.join(lost)}, which the requested attention would drop or change; choose the "
            "attention that the model was built with, or build the model without it"
        )
    parameter = next(old.parameters())
    new.to(device=parameter.device, dtype=parameter.dtype)
    # A model built in Python keeps its weights; a checkpoint that is loaded later overwrites them.
    shapes = {name: tensor.shape for name, tensor in new.state_dict().items()}
    kept = {name: tensor for name, tensor in old.state_dict().items() if shapes.get(name) == tensor.shape}
    new.load_state_dict(kept, strict=False)
    return new.train(old.training)


def _check_plain(path: str, old: nn.Module) -> None:
    """Refuse a class, or a subclass with another ``forward``, that is not known to be plain attention."""
    if not any(isinstance(old, plain) and type(old).forward is plain.forward for plain in _PLAIN):
        kind = f"{type(old).__module__}.{type(old).__qualname__}"
        raise OptionError(
            f"{path} is a {kind}, which is not timm's plain attention: it may have position rules, windows "
            "or gates that another attention would drop; declare none (--attention or sidecar)"
        )


def _lost_parts(old: Any, new: nn.Module) -> list[str]:
    """Return what ``old`` has beyond its projections that ``new`` does not have in the same form."""
    shapes = {name: parameter.shape for name, parameter in new.named_parameters()}
    lost = [
        name
        for name, parameter in old.named_parameters()
        if name.partition(".")[0] not in _PROJECTIONS and shapes.get(name) != parameter.shape
    ]
    if not isinstance(old, Attention):  # ours may be swapped again: their norms are the variant's
        for name in ("q_norm", "k_norm", "norm"):
            norm = getattr(old, name, None)
            if norm is not None and not _same_norm(norm, getattr(new, name, None)):
                lost.append(f"{name} = {norm}")
    return lost


def _same_norm(old: Any, new: object) -> bool:
    if isinstance(old, nn.Identity):
        return True
    kinds = ((nn.LayerNorm,), (nn.RMSNorm, RmsNorm))
    return any(isinstance(old, kind) and isinstance(new, kind) and old.eps == new.eps for kind in kinds)


def _is_self(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in ("qkv", "proj"))


def _is_cross(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in ("wq", "wk", "wv", "proj"))
