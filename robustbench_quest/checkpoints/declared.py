"""What a checkpoint says about itself, in a sidecar ``<ckpt>.yaml`` or its metadata.

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

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import CheckpointError, unknown
from ..types import OptionValue
from .preprocessing import CROP_MODES, INTERPOLATIONS, Source, is_channels
from .setting import Setting, pick

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
_PREPROCESSING = ("size", "resize", "crop_mode", "interpolation", "mean", "std")


@dataclass(frozen=True)
class Declaration:
    """What one source declares; None where it says nothing.

    Args:
        source: as ``ModelSpec.sources`` shows it.
        attention_options: None where the source names a variant but none of its options.
        preprocessing: the sources of preprocessing that this one implies, in order.
        note: what a reader should know about the attention that is declared.
        unsure: options of the attention that this source leaves to a default.
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
    note: str = ""
    unsure: tuple[str, ...] = ()


def declared(name: str, declarations: Sequence[Declaration]) -> Setting | None:
    """Return a setting from the first source that declares it, or None."""
    return pick(name, ((d.source, getattr(d, name)) for d in declarations))


def sidecar_path(checkpoint: Path) -> Path | None:
    """Return the sidecar of ``vit.pt``: ``vit.pt.yaml`` or ``vit.yaml``, or None.

    Raises:
        CheckpointError: both exist and differ, or one is a directory.
    """
    choices = [checkpoint.with_name(checkpoint.name + ".yaml"), checkpoint.with_suffix(".yaml")]
    found = [path for path in dict.fromkeys(choices) if path.exists()]
    for path in found:
        if not path.is_file():
            raise CheckpointError(
                f"{path} is no file, expected the sidecar of {checkpoint.name}; rename or delete it"
            )
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
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not YAML: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold `key: value` lines; it holds {type(content).__name__}")
    return from_mapping(content, f"sidecar {path.name}", str(path))


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe loader, which by itself lets the last of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is there twice; leave one"
            )
        return super().construct_mapping(node, deep)


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
        if not content.get(key, "").isprintable():
            raise CheckpointError(f"{where}: {key} must be one line of printable text; got {content[key]!r}")
    attention, options = _attention(content, where)
    return Declaration(
        source=source,
        name=content.get("name"),
        arch=content.get("arch"),
        arch_options=checked_options(content.get("arch_options", {}), "arch_options", where),
        attention=attention,
        attention_options=options,
        preprocessing=_preprocessing(content.get("preprocessing"), source, where),
        weights=content.get("weights"),
        dataset=content.get("dataset"),
    )


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
    return value, None if options is None else checked_options(options, "attention_options", where)


def checked_options(value: object, key: str, where: str) -> dict[str, OptionValue]:
    """Return options, which must be texts, numbers or truth values.

    Raises:
        CheckpointError: they are not; the message names ``where`` and the option.
    """
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
    if given.get("crop_mode", "center") not in CROP_MODES:
        text = unknown("crop mode", str(given["crop_mode"]), CROP_MODES)
        raise CheckpointError(f"{where}: preprocessing: {text}")
    for key in ("mean", "std"):
        channels = given.get(key, [1.0, 1.0, 1.0])
        if not is_channels(channels) or (key == "std" and min(channels) <= 0):
            kind = "three positive numbers" if key == "std" else "three numbers"
            raise CheckpointError(f"{where}: preprocessing: {key} must be {kind}; got {channels!r}")
        if key in given:
            given[key] = tuple(float(channel) for channel in channels)
    return (Source(source, **given),)
