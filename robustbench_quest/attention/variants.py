"""The attention variants by name, their options, and what each makes of one layer.

``version`` is raised when a variant's numbers change; it is part of every cell id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..errors import OptionError, unknown
from ..registry import ATTENTION
from ..types import AttentionSpec, OptionValue
from .core import Edit, HeadScale, around
from .elliptical import Metric, PreviousValues, canonical_layers, uses_metric
from .qk_norms import DimensionScale, L2Norm, LayerNorm, RMSNorm

NORM_EPS = 1e-6  # timm's LayerNorm in vision transformers


@dataclass(frozen=True)
class Layer:
    """Where an attention module stands.

    Args:
        index: its place in the order in which the attention modules run.
        count: how many there are.
        head_dim: its head dimension D.
        shared: what the model's elliptical layers share.
    """

    index: int
    count: int
    head_dim: int
    shared: PreviousValues


Make = Callable[[Any, Layer, Mapping[str, OptionValue]], nn.Module]


@dataclass(frozen=True)
class Variant:
    """One attention variant.

    Args:
        parameters: names of the parameters beyond a standard attention's, relative to the attention module.
        options: name -> (default, the allowed values or, where they cannot be listed, what they mean).
        make: makes the module that takes the place of an attention, from that attention, where it stands and
            the options.
        cross: whether the variant is defined for cross-attention.
    """

    parameters: tuple[str, ...]
    options: Mapping[str, tuple[OptionValue, tuple[str, ...] | str]]
    make: Make
    cross: bool = True
    version: int = 1


def _edits(edit: Callable[[Layer, Mapping[str, OptionValue]], Edit]) -> Make:
    """Return the ``make`` of a variant that edits queries and keys and keeps the rest."""
    return lambda old, layer, options: around(old, edit(layer, options))


@_edits
def _standard(layer: Layer, _: Mapping[str, OptionValue]) -> Edit:
    return Edit(nn.Identity(), nn.Identity(), layer.head_dim**-0.5)


@_edits
def _quest(_: Layer, __: Mapping[str, OptionValue]) -> Edit:
    return Edit(nn.Identity(), L2Norm(), 1.0)


@_edits
def _qnorm(_: Layer, __: Mapping[str, OptionValue]) -> Edit:
    return Edit(L2Norm(), nn.Identity(), 1.0)


@_edits
def _head_scale(_: Layer, options: Mapping[str, OptionValue]) -> Edit:
    scale = HeadScale(str(options["param"]), float(options["max_scale"]))
    return Edit(L2Norm(), L2Norm(), 1.0, head_scale=scale)


@_edits
def _dimension_scale(layer: Layer, options: Mapping[str, OptionValue]) -> Edit:
    dim, mode = layer.head_dim, options["mode"]
    if mode == "l2":
        return Edit(DimensionScale(dim), DimensionScale(dim), 1.0)
    if mode == "rms":
        return Edit(RMSNorm(dim, eps=NORM_EPS), RMSNorm(dim, eps=NORM_EPS), dim**-0.5)
    return Edit(LayerNorm(dim, NORM_EPS, bias=False), LayerNorm(dim, NORM_EPS, bias=False), dim**-0.5)


@_edits
def _layer_norm(layer: Layer, _: Mapping[str, OptionValue]) -> Edit:
    dim = layer.head_dim
    return Edit(LayerNorm(dim, NORM_EPS), LayerNorm(dim, NORM_EPS), dim**-0.5)


def _metric(layer: Layer, options: Mapping[str, OptionValue]) -> Metric:
    return Metric(
        layer.shared,
        active=uses_metric(layer.index, layer.count, str(options["layers"])),
        last=layer.index == layer.count - 1,
        estimator=str(options["estimator"]),
    )


@_edits
def _elliptical(layer: Layer, options: Mapping[str, OptionValue]) -> Edit:
    return Edit(nn.Identity(), nn.Identity(), layer.head_dim**-0.5, metric=_metric(layer, options))


@_edits
def _elliptical_quest(layer: Layer, options: Mapping[str, OptionValue]) -> Edit:
    on_sphere = options["keys"] == "sphere"
    k_norm = L2Norm() if on_sphere else nn.Identity()
    return Edit(nn.Identity(), k_norm, 1.0, metric=_metric(layer, options), elliptical_keys=not on_sphere)


_ELLIPTICAL_OPTIONS: dict[str, tuple[OptionValue, tuple[str, ...] | str]] = {
    "estimator": ("mean", ("mean", "median")),
    "layers": ("1-", "layers that use M, such as 1-11, 1,3,5 or 1- (to the last); layer 0 has none"),
}

STANDARD = Variant((), {}, _standard)
QUEST = Variant((), {}, _quest)
QNORM = Variant((), {}, _qnorm)
QKNORM_HS = Variant(
    ("logit_scale",),
    {"param": ("log", ("log", "linear")), "max_scale": (100.0, "largest scale of the log form")},
    _head_scale,
)
QKNORM_DS = Variant(
    ("q_norm.weight", "k_norm.weight"), {"mode": ("l2", ("l2", "rms", "ln-nobias"))}, _dimension_scale
)
QKNORM_LN = Variant(("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"), {}, _layer_norm)
ELLIPTICAL = Variant((), _ELLIPTICAL_OPTIONS, _elliptical, cross=False)
ELLIPTICAL_QUEST = Variant(
    (), {**_ELLIPTICAL_OPTIONS, "keys": ("sphere", ("sphere", "ellipse"))}, _elliptical_quest, cross=False
)

# The names are the registry's, which can be listed without importing torch.
VARIANTS: dict[str, Variant] = {name: ATTENTION.load(name) for name in ATTENTION}


def resolve(name: str, options: Mapping[str, OptionValue] | None = None) -> AttentionSpec:
    """Return the variant's specification with every option filled in and checked.

    Raises:
        OptionError: no such variant, no such option, or a value that the option does not take.
    """
    if name not in VARIANTS:
        raise OptionError(unknown("attention", name, VARIANTS) + ", or FILE.py:CLASS")
    variant = VARIANTS[name]
    values = {option: default for option, (default, _) in variant.options.items()}
    for option, value in (options or {}).items():
        if option not in variant.options:
            raise OptionError(unknown(f"option of attention {name}", option, variant.options or ("none",)))
        values[option] = _checked(name, option, value, *variant.options[option])
    return AttentionSpec(name, tuple(sorted(values.items())), variant.version)


def _checked(
    name: str, option: str, value: OptionValue, default: OptionValue, allowed: tuple[str, ...] | str
) -> OptionValue:
    if isinstance(allowed, tuple):
        if value not in allowed:
            raise OptionError(f"attention {name}: {option}={value} is not one of {', '.join(allowed)}")
        return value
    if isinstance(default, float):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 < number < float("inf"):
            raise OptionError(f"attention {name}: {option}={value} is not a positive number ({allowed})")
        return number
    return canonical_layers(str(value))


def for_layers(spec: AttentionSpec, count: int) -> AttentionSpec:
    """Return ``spec`` as it is for a model of ``count`` attention layers: one form for one set of layers."""
    options = tuple(
        (option, canonical_layers(str(value), count) if option == "layers" else value)
        for option, value in spec.options
    )
    return replace(spec, options=options) if spec.name in VARIANTS else spec
