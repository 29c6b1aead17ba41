"""What the arguments of a training script, which many checkpoints hold, say about the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError
from ..registry import ATTENTION
from ..types import OptionValue
from .declared import Declaration, checked_options
from .preprocessing import ARGS, from_args, from_container


def declared_by_args(args: Mapping[str, Any], entries: tuple[str, ...]) -> Declaration:
    """Return what the arguments of DeiT's, DeiT-3's, CrossViT's, Elliptical's or timm's training declare.

    Args:
        args: the arguments.
        entries: the file's top-level keys.

    Raises:
        CheckpointError: an argument that decides about the model and cannot be used.
    """
    named = args.get("model")
    # The attack scripts add "_wrapper" to the name of the same model.
    model = named.removesuffix("_wrapper") if isinstance(named, str) else None
    # Without "overlayers" M comes from finite differences: another attention, which nothing here computes.
    elliptical = model is not None and "_mahala_overlayers_" in model
    unused = elliptical and args.get("M_positions") in ([], ())
    attention, options = ("elliptical", _layers(args)) if elliptical else (_named_attention(args), None)
    if unused:
        attention = "standard"
    # DeiT's own evaluation has fixed preprocessing; its arguments are known by these names.
    deit = "model" in entries and model is not None and ("data_set" in args or "eval_crop_ratio" in args)
    sources = [from_args(args)]
    if deit or elliptical:
        sources.append(from_container("Elliptical" if elliptical else "DeiT"))
    return Declaration(
        source=ARGS,
        arch=None if model is None else _timm_arch(model),
        arch_options=_model_options(args),
        attention=attention,
        attention_options=options,
        preprocessing=tuple(sources),
        note="M_positions is empty: M is used in no layer, which is standard attention" if unused else "",
        unsure=("layers",) if elliptical and options is None and not unused else (),
    )


def _timm_arch(model: str) -> str:
    """Return timm's name for an architecture of a published code base."""
    name = re.sub(r"^deit_mahala_(overlayers_)?", "deit_", model)
    name = re.sub(r"^deit_(\w+)_patch(\d+)_LS$", r"deit3_\1_patch\2_224", name)
    # CrossViT names itself by the smaller branch's input, timm by the larger one's.
    name = re.sub(r"^(crossvit_.+)_224$", r"\1_240", name)
    return re.sub(r"^(crossvit_.+)_384$", r"\1_408", name)


def _named_attention(args: Mapping[str, Any]) -> str | None:
    named = args.get("attention")
    return named if isinstance(named, str) and named in ATTENTION else None


def _layers(args: Mapping[str, Any]) -> Mapping[str, OptionValue] | None:
    """Return the layers of Elliptical's ``--M-positions``; None where the arguments name none.

    The code that trains it fails when layer 0 is among them: that layer has no previous values.
    """
    positions = args.get("M_positions")
    if positions is None or positions in ([], ()):
        return None
    if not isinstance(positions, list | tuple) or not all(type(p) is int and p > 0 for p in positions):
        raise CheckpointError(
            f"{ARGS}: M_positions must be a list of layers, from 1; found {positions!r}; save the file again "
            "with the layers that use M"
        )
    return {"layers": ",".join(str(position) for position in positions)}


def _model_options(args: Mapping[str, Any]) -> dict[str, OptionValue]:
    """Return the keyword arguments that timm's training script hands to the model."""
    given = args.get("model_kwargs") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"{ARGS}: model_kwargs must be a mapping; found {given!r}")
    options = checked_options({k: v for k, v in given.items() if v is not None}, "model_kwargs", ARGS)
    pool = args.get("gp")  # --gp: the pooling before the classifier
    return {**({"global_pool": pool} if isinstance(pool, str) else {}), **options}
