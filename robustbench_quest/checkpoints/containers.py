"""The state dicts in a checkpoint: raw weights, their moving average (EMA), a teacher and a student."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..errors import CheckpointError
from .bounds import check_hollow

# In the order in which ``weights.choose_weights`` tries them.
RAW = ("", "model", "state_dict", "net", "network", "model_state_dict")
SELF_SUPERVISED = ("teacher", "student")
EMA = ("model_ema", "state_dict_ema", "ema", "ema_state_dict", "ema_model")


def find_containers(path: Path, loaded: object) -> dict[str, dict[str, Tensor]]:
    """Return name -> state dict; the name is "" where the file is a state dict itself.

    Tensors at the top level, beside other state dicts, are one of their own when they form one.

    Raises:
        CheckpointError: the file holds no state dict, a model's entry holds more than tensors, or a tensor
            claims a size that the file cannot hold.
    """
    if not isinstance(loaded, dict):
        raise CheckpointError(
            f"{path} holds a {type(loaded).__name__}, expected a state dict or a dict that holds one"
        )
    found = {
        str(name): state for name, value in loaded.items() if (state := _state_dict(path, str(name), value))
    }
    top = {str(key): value for key, value in loaded.items() if isinstance(value, Tensor)}
    if top and (not found or _has_weights(top)):
        found = {"": top, **found}
    if not found:
        keys = ", ".join(" ".join(str(key).split())[:40] for key in list(loaded)[:8]) or "nothing"
        raise CheckpointError(f"{path} holds no tensors that form a state dict; its keys: {keys}")
    for name, state in found.items():
        check_hollow(path, state, shown(name))
    return found


def shown(name: str) -> str:
    """Return a container's name for messages."""
    return name or "the file itself"


def _state_dict(path: Path, name: str, value: object) -> dict[str, Tensor] | None:
    """Return ``value`` when it is a state dict: names to tensors and nothing else, and weights among them.

    Loss modules store tensors too (iBOT's centres); they count only under a name that stands for a model.

    Raises:
        CheckpointError: under such a name, tensors and other things: to skip it would evaluate other weights.
    """
    if not isinstance(value, Mapping) or not value:
        return None
    known = name in (*RAW, *SELF_SUPERVISED, *EMA)
    state = {str(key): tensor for key, tensor in value.items() if isinstance(tensor, Tensor)}
    if len(state) != len(value):
        if known and _holds_tensors(value):
            key, other = next((k, v) for k, v in value.items() if not isinstance(v, Tensor))
            raise CheckpointError(
                f"{path}: {name}[{str(key)!r}] is a {type(other).__name__}, expected a state dict of tensors "
                "only; take it out and save the file again"
            )
        return None
    return state if known or _has_weights(state) else None


def _has_weights(state: Mapping[str, Tensor]) -> bool:
    return any(key.endswith(".weight") for key in state)


def _holds_tensors(value: object) -> bool:
    """Return whether tensors are in ``value``, at any depth of mappings; one of them may hold itself."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            return True
        if isinstance(item, Mapping) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values()
    return False
