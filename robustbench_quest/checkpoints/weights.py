"""Which state dict of a file is used, and when that must be declared.

By default raw weights stand before their moving average (EMA), as in DeiT's main.py and timm's validate.py,
which load the average only when asked; DINO and iBOT evaluate the teacher. What else the file holds is said
with the choice. Where no such convention decides, or the weights that it names are empty, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from ..errors import CheckpointError, OptionError, unknown
from .containers import EMA, RAW, SELF_SUPERVISED, shown
from .declared import Declaration, declared
from .file import Checkpoint
from .setting import Setting

_GROUPS = {"raw": (*RAW, "student"), "ema": (*EMA, "teacher"), "auto": (*RAW, *SELF_SUPERVISED, *EMA)}


def choose_weights(checkpoint: Checkpoint, declarations: Sequence[Declaration]) -> tuple[str, Setting]:
    """Return the name of the state dict that is used, and its setting.

    Raises:
        OptionError: as ``choose_container``.
        CheckpointError: tensors without values.
    """
    said = declared("weights", declarations)
    asked = "auto" if said is None else str(said.value)
    container = choose_container(checkpoint.containers, asked, checkpoint.entries)
    others = ", ".join(shown(name) for name in checkpoint.containers if name != container)
    by_default = f"{_kind_of(container)} by default" if others else "the only state dict in the file"
    source = by_default if said is None else said.source
    source += f"; the file also holds {others}" if others else ""
    for key, tensor in checkpoint.containers[container].items():
        if not _is_plain(tensor):
            sparse = tensor.layout is not torch.strided
            kind = "is quantised" if tensor.is_quantized else "is sparse" if sparse else "has no values"
            raise CheckpointError(
                f"{checkpoint.path.name}: {key} {kind}, expected a plain tensor; save the model again"
            )
    return container, Setting("weights", shown(container), source, said.others if said else "")


def choose_container(
    containers: Mapping[str, Mapping[str, Tensor]], weights: str, entries: Collection[str] = ()
) -> str:
    """Return the name of the state dict for ``weights``: "auto", "raw", "ema" or a container's name.

    Args:
        containers: the file's state dicts.
        weights: what is asked for.
        entries: the names of everything in the file.

    Raises:
        OptionError: the file holds no such container, "auto" knows none of them, two of one kind differ, or
            those that come before the chosen one are named and hold nothing.
    """
    if weights in containers:
        return weights
    if weights not in _GROUPS:
        raise OptionError(unknown("weights", weights, {*_GROUPS, *filter(None, containers)}))
    known = [name for name in _GROUPS[weights] if name in containers]
    if not known and (weights != "auto" or len(containers) > 1):
        kind = "known" if weights == "auto" else weights
        listed = ", ".join(map(shown, containers))
        raise OptionError(f"the file holds no {kind} weights; give --weights with one of: {listed}")
    chosen = known[0] if known else next(iter(containers))
    alike = [name for name in known if _kind_of(name) == _kind_of(chosen)]
    if not all(_same(containers[name], containers[chosen]) for name in alike):
        listed = ", ".join(name or "'' (the file itself)" for name in alike)
        raise OptionError(f"the file holds weights that differ; say which with weights, one of: {listed}")
    before = takewhile(lambda name: name != chosen, _GROUPS["auto"])
    empty = [name for name in before if name in entries and name not in containers]
    if empty and weights == "auto" and chosen not in RAW:
        kind = f" ({_kind_of(chosen)})" if known else ""
        raise OptionError(
            f"the file's {', '.join(empty)} holds no weights; to evaluate its {chosen}{kind}, say weights: "
            f"{chosen}"
        )
    return chosen


def _kind_of(name: str) -> str:
    if name in SELF_SUPERVISED:
        return f"the {name}"
    return "the moving average" if name in EMA else "raw weights"


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two state dicts hold the same names and values."""
    return one is other or (
        one.keys() == other.keys()
        and all(map(_is_plain, (*one.values(), *other.values())))
        and all(t.dtype == other[key].dtype and torch.equal(t, other[key]) for key, t in one.items())
    )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has values of its own: no meta, sparse or quantised one."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
