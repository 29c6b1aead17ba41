"""Bring the key names of published code bases to timm's, and recognise files that are no classifiers.

DeiT and Elliptical use timm's names. DeiT-3 calls layer scale ``gamma_1``; CrossViT numbers its positions
``pos_embed.0``; wrappers put names of their own around the whole model (DistributedDataParallel, Lightning,
DINO) or around each block (torch.compile, FSDP, activation checkpointing).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import CheckpointError

WRAPPERS = ("module.", "_orig_mod.", "model.")  # around a whole model
PREFIXES = (*WRAPPERS, "backbone.", "encoder.")
# What torch calls a module inside a wrapper (the third is an older FSDP's, the last Lightning Fabric's): no
# model names its own parts so.
_INSIDE = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|_forward_module)\."
)
_MODULE = re.compile(r"(?<=\.)module\.")  # a wrapper's inside, or a real name
_LEAST_PARTS = 3  # of a model, below a prefix that all its keys have

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
        dropped: names of tensors that were left out: of pre-training, and a moving average's count of steps.
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
        CheckpointError: two keys become one, or all keys have a prefix that is no known wrapper's.
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
        if (pretrained and name in ("masked_embed", "mask_token")) or _counts_steps(name, tensor):
            dropped.append(key)
            continue
        if name in renamed:
            raise CheckpointError(
                f"two keys of the file mean one tensor: {renamed[name]} and {key} both become {name}; a "
                "model that has both is loaded with --model FILE.py:FUNC"
            )
        renamed[name] = key
        tensors[name] = _per_head(name, tensor)
    prefix = _common_prefix(tensors)
    if prefix and kind == CLASSIFIER:
        raise CheckpointError(
            f"all {len(tensors)} keys of the file begin with {prefix!r}, which is no known wrapper's prefix; "
            "save the state dict without it, or give a model (FILE.py:FUNC) that has it"
        )
    return Normalised(tensors, kind, tuple(dropped))


def timm_name(key: str) -> str:
    """Return timm's name for a key.

    >>> timm_name("module.backbone.blocks.3.gamma_1")
    'blocks.3.ls1.gamma'
    """
    name = strip_prefixes(key)
    if name.startswith("blocks."):  # in other parts, some of timm's architectures have a real "module"
        name = _MODULE.sub("", name)
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def strip_prefixes(key: str, prefixes: tuple[str, ...] = PREFIXES) -> str:
    """Return the key without ``prefixes``, nested ones too, in any order, and without torch's wrappers."""
    key = _INSIDE.sub("", key)
    while key.startswith(prefixes):
        key = key.partition(".")[2]
    return key


def unwrapped(state: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """Give the state dict as stored, then with one more prefix taken off all keys that have it, and so on.

    Then the same without torch's wrappers inside the keys, and without ``module`` inside them. For models
    whose own names are not known: ``backbone.`` may be a wrapper's prefix or a real attribute.
    """
    yield from _shortened(state)
    state = {key: t for key, t in state.items() if not _counts_steps(key.split(".")[-1], t)}
    yield from _shortened(state)
    for pattern in (_INSIDE, _MODULE):
        bare = {pattern.sub("", key): tensor for key, tensor in state.items()}
        if len(bare) != len(state):  # two keys became one, so it is no wrapper's
            return
        state = bare
        yield from _shortened(state)


def _shortened(state: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    yield state
    while prefix := next((p for p in PREFIXES if any(key.startswith(p) for key in state)), ""):
        shorter = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
        if len(shorter) != len(state):
            return
        state = shorter
        yield state


def _counts_steps(name: str, tensor: Tensor) -> bool:
    """Return whether it is the count of torch's ``AveragedModel``, which is no weight."""
    return name == "n_averaged" and tensor.numel() == 1 and not tensor.is_floating_point()


def _common_prefix(keys: Collection[str]) -> str:
    """Return the names that all keys begin with, up to a dot; "" where what follows is not a whole model."""
    parts = [key.split(".") for key in keys]
    count = next((i for i, same in enumerate(zip(*parts, strict=False)) if len(set(same)) > 1), 0)
    whole = len({part[count] for part in parts if len(part) > count}) >= _LEAST_PARTS
    return ".".join(parts[0][:count]) + "." if count and whole else ""


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
