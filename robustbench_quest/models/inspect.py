"""``inspect_checkpoint``: what a file holds, what would load, and what stands in the way.

Models are built on the meta device, so no weights are allocated; only a file that cannot be read raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.containers import shown
from ..checkpoints.setting import Setting
from ..checkpoints.state_dict import CLASSIFIER, Normalised
from ..device import META
from ..errors import QuestError
from .architectures import build, fitted_options, input_size, position_embeddings
from .attention_choice import variants_by_keys
from .fit import non_finite
from .infer import infer
from .request import ModelRequest
from .resolve import Findings, resolve


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint holds, as plain values.

    Args:
        containers: name -> number of tensors.
        kind: "classifier", "Segmenter", "mmseg" or "iBOT or DINO".
        arch_candidates: what is declared, else every architecture of these names and shapes.
        attention_candidates: the variants that have these keys.
        num_classes, image_size: of the model that would be built, or None.
        positions: each position embedding's key and grid.
        tensors, parameters: counts of the chosen container; parameters include buffers.
        dtypes: of its tensors.
        dropped: tensors that only pre-training uses.
        settings: as far as they are known: weights, arch, arch options, attention, size ...
        problems: why it would not load; empty when it would.
    """

    path: str
    format: str
    sha256: str
    containers: Mapping[str, int]
    kind: str = CLASSIFIER
    arch_candidates: tuple[str, ...] = ()
    attention_candidates: tuple[str, ...] = ()
    num_classes: int | None = None
    image_size: int | None = None
    positions: tuple[str, ...] = ()
    tensors: int = 0
    parameters: int = 0
    dtypes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    problems: tuple[str, ...] = ()

    def setting(self, name: str) -> Setting | None:
        """Return a setting, or None where it is not known."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a dict of plain values, for JSON."""
        return dataclasses.asdict(self)


def inspect_checkpoint(path: str | Path, **options: Any) -> Inspection:
    """Return what a file holds and what would load.

    Args:
        path: the checkpoint.
        options: what ``load_model`` takes, to see its effect. The weights are not compared with an attention
            class from a user's file.

    Raises:
        CheckpointError: the file cannot be read.
        OptionError: options that exclude each other.
    """
    given = {name: value for name, value in options.items() if value is not None}
    problems: list[str] = []
    found = resolve(ModelRequest(checkpoint=str(path), **given), problems)
    facts = _contents(found) | _model(found, problems)
    checkpoint = found.checkpoint
    assert checkpoint is not None  # a file that cannot be read raises
    if found.stored is not None:
        problems += filter(None, [non_finite(found.stored)])
    return Inspection(
        path=str(checkpoint.path),
        format=checkpoint.format,
        sha256=checkpoint.sha256,
        containers={shown(name): len(state) for name, state in checkpoint.containers.items()},
        settings=found.ordered(),
        problems=tuple(dict.fromkeys(problems)),
        **facts,
    )


def _contents(found: Findings) -> dict[str, Any]:
    """Return what the chosen state dict holds."""
    if found.stored is None:
        return {}
    normalised = found.normalised or Normalised(found.stored, CLASSIFIER)
    tensors = normalised.tensors
    has_attention = any(".attn." in key for key in tensors) and found.normalised is not None
    return {
        "kind": normalised.kind,
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "dtypes": tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
        "dropped": normalised.dropped,
        "attention_candidates": variants_by_keys(tensors) if has_attention else (),
    }


def _model(found: Findings, problems: list[str]) -> dict[str, Any]:
    """Return what is known of the model: of the one that would be built, else of one of its shapes."""
    names, module = () if found.arch is None else found.arch.candidates, found.module
    if found.arch is None and found.normalised is not None:
        tensors = found.normalised.tensors
        if found.normalised.kind != CLASSIFIER:
            others = ("head.", "head_dist.", "decoder.")
            tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(others)}
        names = tuple(candidate.name for candidate in infer(tensors))
        if names and found.normalised.kind == CLASSIFIER:
            try:
                module = build(names[0], fitted_options(names[0], tensors, {}), device=META)
            except QuestError as error:
                problems.append(str(error))
    if module is None:
        return {"arch_candidates": names}
    positions = position_embeddings(module).items()
    return {
        "arch_candidates": names,
        "num_classes": getattr(module, "num_classes", None),
        "image_size": input_size(module),
        "positions": tuple(
            f"{key}: {p.rows}x{p.columns} patches and {p.extra} extra" for key, p in positions
        ),
    }
