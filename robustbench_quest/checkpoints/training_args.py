"""What the arguments of a training script, which many checkpoints hold, say about the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import CheckpointError, brief
from ..registry import ATTENTION
from ..types import OptionValue
from ..yaml_edge import checked
from .declared import Declaration
from .preprocessing import ARGS, DEIT_CROP_RATIO, Source, from_args, from_container, input_size
from .schema import ModelArguments

_PLAIN = re.compile(r"vit_(tiny|small|base|large)")  # DINO's, iBOT's and MoCo-v3's names
_SIZELESS = re.compile(r"vit_(tiny|small|base|large|huge)_patch\d+")  # MAE's: without the image size


def declared_by_args(args: Mapping[str, Any], entries: tuple[str, ...]) -> Declaration:
    """Return what the arguments of a known training code declare.

    Known are DeiT's, DeiT-3's, CrossViT's, Elliptical's, MAE's, BEiT's, ConvNeXt's, DINO's, iBOT's,
    MoCo-v3's and timm's.

    Args:
        args: the arguments.
        entries: the file's top-level keys.

    Raises:
        CheckpointError: an argument that decides about the model and cannot be used.
    """
    model = _model(args)
    # Without "overlayers" M comes from finite differences: another attention, which nothing here computes.
    elliptical = model is not None and "_mahala_overlayers_" in model
    unused = elliptical and args.get("M_positions") in ([], ())
    attention, options = ("elliptical", _layers(args)) if elliptical else (_named_attention(args), None)
    if unused:
        attention = "standard"
    evaluation = None if model is None else _evaluation(model, args, entries)
    return Declaration(
        source=ARGS,
        arch=None if model is None else _timm_arch(model),
        arch_options=_model_options(model, args, entries),
        attention=attention,
        attention_options=options,
        preprocessing=(from_args(args), *([evaluation] if evaluation else [])),
        note="M_positions is empty: M is used in no layer, which is standard attention" if unused else "",
        unsure=("layers",) if elliptical and options is None and not unused else (),
    )


def _model(args: Mapping[str, Any]) -> str | None:
    """Return the model's name in the code that trained it."""
    named, arch, patch = args.get("model"), args.get("arch"), args.get("patch_size")
    if isinstance(named, str):
        # The attack scripts add "_wrapper" to the name of the same model.
        return named.removesuffix("_wrapper")
    # DINO and iBOT: --arch vit_small --patch_size 16.
    if isinstance(arch, str) and _PLAIN.fullmatch(arch) and isinstance(patch, int):
        return f"{arch}_patch{patch}"
    return None


def _evaluation(model: str, args: Mapping[str, Any], entries: tuple[str, ...]) -> Source | None:
    """Return how the code evaluates, which its arguments show by names that only it has; None for timm's."""
    size = input_size(args) or 224
    if "_mahala_overlayers_" in model:
        return from_container("Elliptical")
    # main_lincls.py of facebookresearch/moco-v3, with torchvision's default filter
    if _is_moco(model, entries):
        return from_container("MoCo-v3", interpolation="bilinear")
    # datasets.py of microsoft/unilm/beit and of facebookresearch/ConvNeXt, which warps from 384 on
    if "imagenet_default_mean_and_std" in args:
        ratio, beit = DEIT_CROP_RATIO if size < 384 else 1.0, "beit" in model
        found = from_container(
            "BEiT" if beit else "ConvNeXt", ratio=ratio, inception=not args["imagenet_default_mean_and_std"]
        )
        return found if beit or size < 384 else replace(found, crop_mode="squash")
    if _is_mae(model, args):  # util/datasets.py of facebookresearch/mae
        return from_container("MAE", ratio=DEIT_CROP_RATIO if size <= 224 else 1.0)
    if not isinstance(args.get("model"), str):  # eval_linear.py of facebookresearch/dino, and iBOT's
        return from_container("DINO")
    deit = "model" in entries and ("data_set" in args or "eval_crop_ratio" in args)
    return from_container("DeiT") if deit else None


def _is_mae(model: str, args: Mapping[str, Any]) -> bool:
    """Return whether these are arguments of MAE's main_finetune.py or a code that follows it."""
    return (
        isinstance(args.get("global_pool"), bool)
        and "nb_classes" in args
        and _SIZELESS.fullmatch(model) is not None
    )


def _is_moco(model: str, entries: tuple[str, ...]) -> bool:
    """Return whether it is a file of MoCo-v3's main_lincls.py, which stores a name like DINO's as "arch"."""
    return "arch" in entries and _PLAIN.fullmatch(model) is not None


def _timm_arch(model: str) -> str:
    """Return timm's name for an architecture of a published code base."""
    name = re.sub(r"^deit_mahala_(overlayers_)?", "deit_", model)
    if _PLAIN.fullmatch(name):  # MoCo-v3's have patches of 16
        name += "_patch16"
    if _SIZELESS.fullmatch(name):
        name += "_224"
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
            f"{ARGS}: M_positions must be a list of layers, from 1; found {brief(positions)}; save the file "
            "again with the layers that use M"
        )
    return {"layers": ",".join(str(position) for position in positions)}


def _model_options(
    model: str | None, args: Mapping[str, Any], entries: tuple[str, ...]
) -> dict[str, OptionValue]:
    """Return what the training script hands to the model: timm's keyword arguments, classes, pooling."""
    given = args.get("model_kwargs") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"{ARGS}: model_kwargs must be a mapping; found {brief(given)}")
    content = {"model_kwargs": {key: value for key, value in given.items() if value is not None}}
    options: dict[str, OptionValue] = {}
    classes, pool = args.get("nb_classes"), args.get("gp")  # --gp: the pooling before the classifier
    if isinstance(classes, int) and not isinstance(classes, bool):
        options["num_classes"] = classes
    if isinstance(pool, str):
        options["global_pool"] = pool
    if model is not None and _is_mae(model, args):
        options["global_pool"] = "avg" if args["global_pool"] else "token"
    if model == "vit_small" and _is_moco(model, entries):
        options["num_heads"] = 12  # vits.py of facebookresearch/moco-v3; everybody else's has 6
    return options | checked(ModelArguments, content, ARGS, CheckpointError).model_kwargs
