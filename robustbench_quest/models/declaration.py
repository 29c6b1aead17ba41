"""What a checkpoint says about itself: in a sidecar ``<ckpt>.yaml``, its metadata, or its training arguments.

A sidecar and the metadata key "rbq" hold the same keys:

    name: vit_ti_quest
    arch: vit_tiny_patch16_224
    arch_options: {depth: 12}
    attention: quest              # or {name: elliptical, estimator: median}
    preprocessing: {size: 224, resize: 256, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}
    weights: model_ema
    dataset: imagenet
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import CheckpointError, unknown
from ..types import OptionValue
from .preprocessing import INTERPOLATIONS, Source, from_args, from_container, is_channels
from .variants import VARIANTS

FLAG = "flag"  # the source of what the user says on the command line or in a call
KEYS = (
    "name",
    "arch",
    "arch_options",
    "attention",
    "attention_options",
    "preprocessing",
    "weights",
    "dataset",
    "seed",
    "recipe",
    "accuracy",
)
_TEXTS = ("name", "arch", "weights", "dataset")
_PREPROCESSING = ("size", "resize", "interpolation", "mean", "std")


@dataclass(frozen=True)
class Declaration:
    """What one source declares; None where it says nothing.

    Args:
        source: as ``ModelSpec.sources`` shows it.
        attention_options: None where the source names a variant but none of its options.
        preprocessing: the sources of preprocessing that this one implies, in order.
    """

    source: str
    name: str | None = None
    arch: str | None = None
    arch_options: Mapping[str, OptionValue] = field(default_factory=dict)
    attention: str | None = None
    attention_options: Mapping[str, OptionValue] | None = None
    preprocessing: tuple[Source, ...] = ()
    weights: str | None = None
    dataset: str | None = None


def sidecar_path(checkpoint: Path) -> Path | None:
    """Return the sidecar of ``vit.pt``: ``vit.pt.yaml`` or ``vit.yaml``, or None.

    Raises:
        CheckpointError: both exist and differ.
    """
    choices = [checkpoint.with_name(checkpoint.name + ".yaml"), checkpoint.with_suffix(".yaml")]
    found = [path for path in dict.fromkeys(choices) if path.is_file()]
    if len(found) == 2 and found[0].read_bytes() != found[1].read_bytes():
        raise CheckpointError(
            f"{found[0]} and {found[1]} both describe {checkpoint.name} and differ; delete one"
        )
    return found[0] if found else None


def from_sidecar(path: Path) -> Declaration:
    """Return what a sidecar declares.

    Raises:
        CheckpointError: not YAML, or a key or value that cannot be used; the message names file and key.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not YAML: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold `key: value` lines; it holds {type(content).__name__}")
    return from_mapping(content, f"sidecar {path.name}", str(path))


def from_metadata(metadata: Mapping[str, Any], where: str) -> Declaration:
    """Return what the metadata key "rbq" declares; ``where`` names the file for messages."""
    return from_mapping(metadata, "metadata in the file", f"{where}, metadata 'rbq'")


def from_mapping(content: Mapping[str, Any], source: str, where: str) -> Declaration:
    """Return a checked declaration.

    Raises:
        CheckpointError: a key or value that cannot be used.
    """
    for key in content:
        if key not in KEYS:
            raise CheckpointError(f"{where}: {unknown('key', str(key), KEYS)}")
    for key in _TEXTS:
        if not isinstance(content.get(key, ""), str):
            raise CheckpointError(f"{where}: {key} must be text; got {content[key]!r}")
    attention, options = _attention(content, where)
    return Declaration(
        source=source,
        name=content.get("name"),
        arch=content.get("arch"),
        arch_options=_options(content.get("arch_options", {}), "arch_options", where),
        attention=attention,
        attention_options=options,
        preprocessing=_preprocessing(content.get("preprocessing"), source, where),
        weights=content.get("weights"),
        dataset=content.get("dataset"),
    )


def declared_by_args(args: Mapping[str, Any], entries: tuple[str, ...]) -> Declaration:
    """Return what the arguments of DeiT's, DeiT-3's, CrossViT's, Elliptical's or timm's training declare.

    Args:
        args: the arguments.
        entries: the file's top-level keys.
    """
    model = args.get("model")
    model = model if isinstance(model, str) else None
    elliptical = model is not None and "_mahala_" in model
    attention, options = _args_attention(args, elliptical)
    # DeiT's own evaluation has fixed preprocessing; its arguments are known by these names.
    deit = "model" in entries and model is not None and ("data_set" in args or "eval_crop_ratio" in args)
    sources = [from_args(args)]
    if deit or elliptical:
        sources.append(from_container("Elliptical" if elliptical else "DeiT"))
    return Declaration(
        source="args in the file",
        arch=None if model is None else _timm_arch(model),
        attention=attention,
        attention_options=options,
        preprocessing=tuple(sources),
    )


def _timm_arch(model: str) -> str:
    """Return timm's name for an architecture of a published code base."""
    name = re.sub(r"^deit_mahala_(overlayers_)?", "deit_", model)
    name = re.sub(r"^deit_(\w+)_patch(\d+)_LS$", r"deit3_\1_patch\2_224", name)
    # CrossViT names itself by the smaller branch's input, timm by the larger one's.
    name = re.sub(r"^(crossvit_.+)_224$", r"\1_240", name)
    return re.sub(r"^(crossvit_.+)_384$", r"\1_408", name)


def _args_attention(
    args: Mapping[str, Any], elliptical: bool
) -> tuple[str | None, Mapping[str, OptionValue] | None]:
    if elliptical:
        positions = args.get("M_positions")
        if isinstance(positions, list | tuple) and positions:
            return "elliptical", {"layers": ",".join(str(position) for position in positions)}
        return "elliptical", None
    named = args.get("attention")
    return (named, None) if isinstance(named, str) and named in VARIANTS else (None, None)


def _attention(content: Mapping[str, Any], where: str) -> tuple[str | None, Mapping[str, OptionValue] | None]:
    value = content.get("attention")
    options = content.get("attention_options")
    if isinstance(value, dict):
        if options is not None:
            raise CheckpointError(f"{where}: attention holds options already; leave attention_options out")
        options = {key: option for key, option in value.items() if key != "name"} or None
        value = value.get("name")
        if value is None:
            raise CheckpointError(
                f"{where}: attention needs a name, as in {{name: elliptical, estimator: median}}"
            )
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{where}: attention must be a name or a mapping with one; got {value!r}")
    return value, None if options is None else _options(options, "attention_options", where)


def _options(value: object, key: str, where: str) -> dict[str, OptionValue]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {key} must be a mapping; got {value!r}")
    for option, given in value.items():
        if not isinstance(option, str) or not isinstance(given, bool | int | float | str):
            raise CheckpointError(
                f"{where}: {key}: {option} must be text, a number or true/false; got {given!r}"
            )
    return dict(value)


def _preprocessing(value: object, source: str, where: str) -> tuple[Source, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: preprocessing must be a mapping; got {value!r}")
    for key in value:
        if key not in _PREPROCESSING:
            raise CheckpointError(f"{where}: preprocessing: {unknown('key', str(key), _PREPROCESSING)}")
    given = dict(value)
    for key, least in (("size", 1), ("resize", 0)):
        side = given.get(key, least)
        if isinstance(side, bool) or not isinstance(side, int) or side < least:
            raise CheckpointError(
                f"{where}: preprocessing: {key} must be a whole number of pixels; got {side!r}"
            )
    if given.get("interpolation", "bicubic") not in INTERPOLATIONS:
        text = unknown("interpolation", str(given["interpolation"]), INTERPOLATIONS)
        raise CheckpointError(f"{where}: preprocessing: {text}")
    for key in ("mean", "std"):
        channels = given.get(key, [1.0, 1.0, 1.0])
        if not is_channels(channels) or (key == "std" and min(channels) <= 0):
            kind = "three positive numbers" if key == "std" else "three numbers"
            raise CheckpointError(f"{where}: preprocessing: {key} must be {kind}; got {channels!r}")
        if key in given:
            given[key] = tuple(float(channel) for channel in channels)
    return (Source(source, **given),)
