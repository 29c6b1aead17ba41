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

import filecmp
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..types import OptionValue
from ..yaml_edge import checked, read_yaml
from .preprocessing import Source
from .schema import Contents
from .setting import Setting, pick

FLAG = "flag"  # the source of what the user says on the command line or in a call


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
        CheckpointError: both exist and differ, or one is no file: a directory, or a link to nothing.
    """
    choices = [checkpoint.with_name(checkpoint.name + ".yaml"), checkpoint.with_suffix(".yaml")]
    # A name that is too long to exist is absent.
    found = [path for path in dict.fromkeys(choices) if os.path.lexists(path)]
    for path in found:
        if not path.is_file():
            raise CheckpointError(
                f"{path} is no file, expected the sidecar of {checkpoint.name}; rename or delete it"
            )
    try:
        differ = len(found) == 2 and not filecmp.cmp(found[0], found[1], shallow=False)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from error
    if differ:
        raise CheckpointError(
            f"{found[0]} and {found[1]} both describe {checkpoint.name} and differ; delete one"
        )
    return found[0] if found else None


def from_sidecar(path: Path) -> Declaration:
    """Return what a sidecar declares.

    Raises:
        CheckpointError: not YAML, or a key or value that cannot be used; the message names file and key.
    """
    return from_mapping(read_yaml(path, CheckpointError), f"sidecar {path.name}", str(path))


def from_metadata(metadata: Mapping[str, Any], where: str) -> Declaration:
    """Return what the metadata key "rbq" declares; ``where`` names the file for messages."""
    return from_mapping(metadata, "metadata in the file", f"{where}, metadata 'rbq'")


def from_mapping(content: Mapping[str, Any], source: str, where: str) -> Declaration:
    """Return a checked declaration.

    Raises:
        CheckpointError: a key or value that cannot be used.
    """
    found = checked(Contents, content, where, CheckpointError)
    pixels = found.preprocessing
    return Declaration(
        source=source,
        name=found.name,
        arch=found.arch,
        arch_options=found.arch_options,
        attention=found.attention,
        attention_options=found.attention_options,
        preprocessing=() if pixels is None else (Source(source, **pixels.model_dump()),),
        weights=found.weights,
        dataset=found.dataset,
    )
