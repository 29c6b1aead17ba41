"""Which state dict of a file is used, and when that must be declared.

By default raw weights stand before their moving average (EMA), as in DeiT's main.py and timm's validate.py,
which load the average only when asked; DINO and iBOT evaluate the teacher. What else the file holds is said
with the choice. Where no such convention decides, or the weights that it names are empty, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import CheckpointError, OptionError, unknown
from .containers import EMA, RAW, SELF_SUPERVISED, shown
from .declared import Declaration, declared
from .file import Checkpoint
from .setting import Setting


def choose_weights(checkpoint: Checkpoint, declarations: Sequence[Declaration]) -> tuple[str, Setting]:
    """Return the name of the state dict that is used, and its setting.

    Raises:
        OptionError: the file has no such container, or several that differ and none is declared.
        CheckpointError: tensors without values.
    """
    names = tuple(checkpoint.containers)
    said = declared("weights", declarations)
    asked = "auto" if said is None else str(said.value)
    container = choose_container(names, asked)
    guessed = check_choice(checkpoint.containers, checkpoint.entries, container, asked)
    others = ", ".join(shown(name) for name in names if name != container)
    by_default = f"{_kind_of(container)} by default" if others else "the only state dict in the file"
    source = by_default if said is None else said.source
    _check_plain(checkpoint.containers[container], checkpoint.path.name)
    return container, Setting(
        "weights",
        shown(container),
        f"{source}; the file also holds {others}" if others else source,
        said.others if said else "",
        guessed=("weights",) if guessed else (),
    )


def choose_container(names: tuple[str, ...], weights: str) -> str:
    """Return the container for ``weights``: "auto", "raw", "ema" or a container's name.

    Raises:
        OptionError: the file holds no such container, or "auto" knows none of them.
    """
    if weights in names:
        return weights
    groups = {"raw": (*RAW, "student"), "ema": (*EMA, "teacher"), "auto": (*RAW, *SELF_SUPERVISED, *EMA)}
    if weights not in groups:
        raise OptionError(unknown("weights", weights, {*groups, *(name for name in names if name)}))
    known = [name for name in groups[weights] if name in names]
    if known:
        return known[0]
    if weights == "auto" and len(names) == 1:
        return names[0]
    kind = "known" if weights == "auto" else weights
    listed = ", ".join(shown(name) for name in names)
    raise OptionError(f"the file holds no {kind} weights; give --weights with one of: {listed}")


def check_choice(
    containers: Mapping[str, Mapping[str, Tensor]], entries: Collection[str], chosen: str, weights: str
) -> bool:
    """Refuse a container that was chosen among others of its kind, or in place of one that holds nothing.

    Args:
        containers: the file's state dicts.
        entries: the names of everything in the file.
        chosen: the container that is used.
        weights: what was asked for, as in ``choose_container``.

    Returns:
        Whether the choice is a guess: the file's only state dict, under an unknown name, beside an entry that
        is named as a model's weights and holds none.

    Raises:
        OptionError: another one of its kind differs, or the weights that come before it are empty.
    """
    if weights in containers:
        return False
    kind = next((names for names in (RAW, EMA) if chosen in names), ())
    rivals = [n for n in kind if n in containers and not _same(containers[n], containers[chosen])]
    if rivals:
        listed = ", ".join(name or "'' (the file itself)" for name in (chosen, *rivals))
        raise OptionError(f"the file holds weights that differ; say which with weights, one of: {listed}")
    if weights != "auto" or chosen in RAW:
        return False
    order = (*RAW, *SELF_SUPERVISED, *EMA)
    before = order[: order.index(chosen)] if chosen in order else RAW
    empty = [name for name in before if name in entries and name not in containers]
    if empty and chosen in order:
        raise OptionError(
            f"the file's {', '.join(empty)} holds no weights, and its {chosen} is {_kind_of(chosen)}; to "
            f"evaluate that, say weights: {chosen}"
        )
    return bool(empty)


def _kind_of(name: str) -> str:
    """Return what a container's weights are, in words."""
    if name in SELF_SUPERVISED:
        return f"the {name}"
    return "the moving average" if name in EMA else "raw weights"


def _check_plain(tensors: Mapping[str, Tensor], file: str) -> None:
    """Refuse tensors without values of their own: meta, sparse and quantised ones.

    Raises:
        CheckpointError: with the tensor's name.
    """
    for key, tensor in tensors.items():
        sparse = tensor.layout is not torch.strided
        kind = "is quantised" if tensor.is_quantized else "is sparse" if sparse else "has no values"
        if tensor.is_meta or sparse or tensor.is_quantized:
            raise CheckpointError(f"{file}: {key} {kind}, expected a plain tensor; save the model again")


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two state dicts hold the same names and values."""
    plain = all(not t.is_meta and t.layout is torch.strided for t in (*one.values(), *other.values()))
    return one is other or (
        plain
        and one.keys() == other.keys()
        and all(t.dtype == other[key].dtype and torch.equal(t, other[key]) for key, t in one.items())
    )
