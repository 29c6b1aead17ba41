"""Bring the key names of published code bases to timm's, and recognise files that are no classifiers.

DeiT and Elliptical use timm's names. DeiT-3 calls layer scale ``gamma_1``; CrossViT numbers its positions
``pos_embed.0``; wrappers put prefixes in front (DistributedDataParallel, torch.compile, Lightning, DINO).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import CheckpointError

WRAPPERS = ("module.", "_orig_mod.", "model.")  # around a whole model
PREFIXES = (*WRAPPERS, "backbone.", "encoder.")

_RENAMES = (
    (re.compile(r"^(blocks\.\d+)\.gamma_([12])$"), r"\1.ls\2.gamma"),
    (re.compile(r"^(pos_embed|cls_token)\.(\d+)$"), r"\1_\2"),
    (re.compile(r"(^|\.)attn\.logit_scale\.weight$"), r"\1attn.logit_scale"),
)

CLASSIFIER, SEGMENTER, MMSEG, SELF_SUPERVISED = "classifier", "Segmenter", "mmseg", "iBOT or DINO"

REASONS = {
    SEGMENTER: "it is a Segmenter segmentation model (keys decoder.*): a segmentation decoder, not a "
    "classifier",
    MMSEG: "it is an mmseg segmentation model (keys decode_head.* or attn.attn.in_proj*): a segmentation "
    "decoder, not a classifier",
    SELF_SUPERVISED: "it is a self-supervised backbone (iBOT or DINO): no classifier head. Train a linear "
    "head on it and save both together",
}


@dataclass(frozen=True)
class Normalised:
    """A state dict in timm's names.

    Args:
        tensors: name -> tensor.
        kind: what the file is: a key of ``REASONS``, or "classifier".
        dropped: names of tensors that only pre-training uses and that were left out.
    """

    tensors: Mapping[str, Tensor]
    kind: str
    dropped: tuple[str, ...] = ()


def normalise(state: Mapping[str, Tensor], containers: Collection[str] = ()) -> Normalised:
    """Return the state dict in timm's names.

    Args:
        state: as stored.
        containers: the names of all state dicts of the file; a teacher and a student mean DINO or iBOT.

    Raises:
        CheckpointError: two keys become one.
    """
    kind = _kind(state, containers)
    renamed: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    dropped: list[str] = []
    pretrained = (
        kind == SELF_SUPERVISED or "teacher" in containers or any("masked_embed" in key for key in state)
    )
    for key, tensor in state.items():
        name = timm_name(key)
        if pretrained and name in ("masked_embed", "mask_token"):
            dropped.append(key)
            continue
        if name in renamed:
            raise CheckpointError(
                f"two keys of the file mean one tensor: {renamed[name]} and {key} both become {name}; a "
                "model that has both is loaded with --model FILE.py:FUNC"
            )
        renamed[name] = key
        tensors[name] = _per_head(name, tensor)
    return Normalised(tensors, kind, tuple(dropped))


def timm_name(key: str) -> str:
    """Return timm's name for a key.

    >>> timm_name("module.backbone.blocks.3.gamma_1")
    'blocks.3.ls1.gamma'
    """
    name = strip_prefixes(key)
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def strip_prefixes(key: str, prefixes: tuple[str, ...] = PREFIXES) -> str:
    """Return the key without ``prefixes``, nested ones too, in any order."""
    while key.startswith(prefixes):
        key = key.partition(".")[2]
    return key


def unwrapped(state: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """Give the state dict as stored, then with one more prefix taken off all keys that have it, and so on.

    For models whose own names are not known: ``backbone.`` may be a wrapper's prefix or a real attribute.
    """
    yield state
    while prefix := next((p for p in PREFIXES if any(key.startswith(p) for key in state)), ""):
        shorter = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
        if len(shorter) != len(state):  # two keys became one, so it is no wrapper's
            return
        state = shorter
        yield state


def _per_head(name: str, tensor: Tensor) -> Tensor:
    """Return a logit scale in Swin V2's shape (H, 1, 1); other tensors as they are."""
    if name.endswith("attn.logit_scale") and tensor.ndim and tensor.numel() == max(tensor.shape):
        return tensor.reshape(-1, 1, 1)
    return tensor


def _kind(state: Mapping[str, Tensor], containers: Collection[str]) -> str:
    bare = [strip_prefixes(key, WRAPPERS) for key in state]
    if any(key.startswith(("decode_head.", "auxiliary_head.")) or "attn.attn.in_proj" in key for key in bare):
        return MMSEG
    if any(key.startswith("decoder.") for key in bare):
        return SEGMENTER
    names = {strip_prefixes(key) for key in state}
    if any(name.startswith(("head.last_layer", "head.mlp")) for name in names):
        return SELF_SUPERVISED
    headless = not any(name.startswith(("head.", "fc.", "classifier.")) for name in names)
    marked = "masked_embed" in names or {"teacher", "student"} & set(containers)
    return SELF_SUPERVISED if headless and marked else CLASSIFIER
