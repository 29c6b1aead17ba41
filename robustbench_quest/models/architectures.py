"""timm architectures: building them without weights, and finding the one that a state dict belongs to.

Nothing here can reach a network: models are built with ``pretrained=False``, and names that would fetch are
refused.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..device import META
from ..errors import CheckpointError, OptionError, unknown
from ..identity import structure
from ..types import OptionValue

PLAIN = "vision_transformer"  # timm.models.VisionTransformer with every option declared; the demo zoo's
FAMILIES = ("vit_*", "deit_*", "deit3_*")  # what inference tries
CROSS = "crossvit_*"

# Parameters that attention variants add; an architecture is recognised without them.
VARIANT_KEY = re.compile(r"\.attn\.(logit_scale|[qk]_norm\.(weight|bias))$")


@dataclass(frozen=True)
class Candidate:
    """An architecture whose names and shapes a state dict has.

    Args:
        name: timm's.
        function: equal for architectures that compute the same (see ``fingerprint.structure``).
        config: timm's preprocessing.
    """

    name: str
    function: str
    config: Mapping[str, Any]


def check_architecture(name: str, source: str) -> str:
    """Return ``name`` when timm, or this package, can build it; ``source`` says who named it, for messages.

    Raises:
        OptionError: it cannot; the message lists close names.
    """
    if name == PLAIN:
        return name
    if ":" in name or "/" in name:
        raise OptionError(
            f"architecture {name!r} ({source}) would be fetched; give a name that timm has built in"
        )
    bare, _, tag = name.partition(".")
    if not timm.is_model(bare):
        listed = unknown("architecture", name, _near(bare) or timm.list_models(FAMILIES[1]))
        raise OptionError(f"{listed} (the name comes from: {source})")
    tags = _tags(bare)
    if tag and tag not in tags:
        raise OptionError(unknown(f"tag of {bare}", tag, tags or ["none"]))
    return name


def timm_config(name: str) -> dict[str, Any] | None:
    """Return timm's configuration: input size, crop, mean, std, classifier ...; None without one."""
    config = None if name == PLAIN else timm.get_pretrained_cfg(name)
    return None if config is None else dict(config.to_dict())


def build(name: str, options: Mapping[str, Any], *, device: torch.device | None = None) -> nn.Module:
    """Return an untrained model in eval mode; the caller guards the global random state.

    Args:
        name: a checked architecture.
        options: keyword arguments of the architecture.
        device: ``META`` builds shapes only; default the host.

    Raises:
        OptionError: the architecture refuses an option.
    """
    if device == META:
        # Shapes need no initial values, which are most of the time; not every architecture can skip them.
        with contextlib.suppress(Exception), device:
            return _constructed(name, {**options, "weight_init": "skip"})
    try:
        with contextlib.nullcontext() if device is None else device:
            return _constructed(name, options)
    except Exception as error:  # each of timm's constructors raises what it likes
        given = ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
        text = " ".join(str(error).split())[:160]
        raise OptionError(f"architecture {name} refuses its options ({given}): {text}") from error


def _constructed(name: str, options: Mapping[str, Any]) -> nn.Module:
    if name == PLAIN:
        model: nn.Module = timm.models.VisionTransformer(**options)
    else:
        model = timm.create_model(name, pretrained=False, **options)
    return model.eval()


def fitted_options(
    name: str, tensors: Mapping[str, Tensor], declared: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the options with the number of classes and the image size that the tensors have.

    Raises:
        CheckpointError: the state dict has no classifier, or positions that are no square grid.
    """
    options = dict(declared)
    if "num_classes" not in options:
        options["num_classes"] = _classes(name, tensors)
    if "img_size" not in options:
        size = _image_size(tensors, build(name, options, device=META))
        if size is not None:
            options["img_size"] = size
    return options


@dataclass(frozen=True)
class Positions:
    """A position embedding of a model: (1, count, C), of which ``extra`` stand before the grid of patches."""

    count: int
    extra: int
    rows: int
    columns: int
    patch: int


def position_embeddings(model: nn.Module) -> dict[str, Positions]:
    """Return the model's learned absolute position embeddings by key; CrossViT has one per branch."""
    embed = getattr(model, "patch_embed", None)
    found: dict[str, Positions] = {}
    for key, tensor in model.state_dict().items():
        if not key.startswith("pos_embed") or tensor.ndim != 3 or embed is None:
            continue
        part: Any = embed[int(key.rpartition("_")[2])] if isinstance(embed, nn.ModuleList) else embed
        # CrossViT's patch embedding names no grid.
        rows, columns = (side // patch for side, patch in zip(part.img_size, part.patch_size, strict=True))
        count = tensor.shape[1]
        found[key] = Positions(count, count - rows * columns, rows, columns, int(part.patch_size[0]))
    return found


def input_size(model: nn.Module) -> int | None:
    """Return the side of the images that a model is built for, or None when it does not say."""
    size = getattr(model, "img_size", None)  # CrossViT
    if size is None:
        size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if isinstance(size, tuple | list) and size and size[0] == size[-1]:
        size = size[0]
    return int(size) if isinstance(size, int) else None


def infer(tensors: Mapping[str, Tensor]) -> list[Candidate]:
    """Return the architectures of ``FAMILIES`` that have the names and shapes of ``tensors``.

    Those meant for the image size of the tensors come first, then those that can be built for it; not the
    latter where the same name with another size is among the former. A state dict without a classifier is
    compared with headless models.
    """
    headless = not any(key.startswith("head.") for key in tensors)
    declared: dict[str, Any] = {"num_classes": 0} if headless else {}
    native: list[Candidate] = []
    resized: list[Candidate] = []
    for name in _shortlist(tensors):
        try:
            options = fitted_options(name, tensors, declared)
            model = build(name, options, device=META)
        except (CheckpointError, OptionError):
            continue
        if _same_shapes(model.state_dict(), tensors):
            candidate = Candidate(name, structure(model), timm_config(name) or {})
            (resized if "img_size" in options else native).append(candidate)
    meant = {_sizeless(candidate.name) for candidate in native}
    return native + [candidate for candidate in resized if _sizeless(candidate.name) not in meant]


def _sizeless(name: str) -> str:
    """Return the name without an image size: ``vit_tiny_patch16`` for ``vit_tiny_patch16_384``."""
    return re.sub(r"_\d{3}(?=_|$)", "", name)


def distilled_hint(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Return what to say where a distilled DeiT meets another architecture, else ""."""
    if "dist_token" not in found or "dist_token" in expected:
        return ""
    return "; its dist_token is a distilled model's, whose --arch is deit_*_distilled_*"


def _near(name: str) -> list[str]:
    """Return up to eight of timm's names like ``name``: those that begin with it, else close ones."""
    models = timm.list_models()
    begun = sorted((model for model in models if model.startswith(name)), key=len)
    return begun[:8] or get_close_matches(name, models, n=8, cutoff=0.5)


def _tags(name: str) -> list[str]:
    return [full.partition(".")[2] for full in timm.list_models(f"{name}.*", pretrained=True) if "." in full]


def _classes(name: str, tensors: Mapping[str, Tensor]) -> int:
    heads = (timm_config(name) or {}).get("classifier") or "head"
    heads = (heads,) if isinstance(heads, str) else heads
    for head in heads:
        if f"{head}.weight" not in tensors or not tensors[f"{head}.weight"].ndim:
            raise CheckpointError(f"no classifier head: {name} needs {head}.weight and the file has none")
    return len(tensors[f"{heads[0]}.weight"])


def _image_size(tensors: Mapping[str, Tensor], native: nn.Module) -> int | None:
    """Return the image size that the positions were made for, or None where it is the native one.

    Raises:
        CheckpointError: they form no square grid.
    """
    for key, positions in position_embeddings(native).items():
        if key not in tensors or tensors[key].ndim != 3:
            continue
        count = tensors[key].shape[1]
        if count == positions.count:
            return None
        side = math.isqrt(max(count - positions.extra, 0))
        if side < 1 or side * side != count - positions.extra:
            raise CheckpointError(
                f"{key} has {count} entries, which are no square grid and {positions.extra} extra; give "
                f"another --arch{distilled_hint(native.state_dict(), tensors)}"
            )
        return side * positions.patch
    return None


def _shortlist(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names worth building in full: by patch size, then by a model of one block."""
    if "pos_embed_0" in tensors:
        branches = {"depth": ((1, 1, 0),)}  # which timm's crossvit_18_240 refuses for a fault of its own
        return [
            name
            for name in timm.list_models(CROSS)
            if _first_block_fits(name, branches, tensors, unsure=True)
        ]
    patch_embed = tensors.get("patch_embed.proj.weight")
    if patch_embed is None or patch_embed.ndim != 4:
        return []
    size = re.compile(rf"patch{patch_embed.shape[-1]}(_|$)")
    names = [name for family in FAMILIES for name in timm.list_models(family) if size.search(name)]
    depth = {"depth": 1}  # which other kinds of model refuse
    return [name for name in names if _first_block_fits(name, depth, tensors, unsure=False)]


def _first_block_fits(
    name: str, options: Mapping[str, Any], tensors: Mapping[str, Tensor], *, unsure: bool
) -> bool:
    """Return whether the tensors hold a model of one block; ``unsure`` for models that refuse the options."""
    try:
        model = build(name, options, device=META)
    except OptionError:
        return unsure
    # The head and the positions depend on the data set and the image size.
    free = ("head", "pos_embed")
    return all(
        key.startswith("head") or (key in tensors and (key.startswith(free) or tensors[key].shape == t.shape))
        for key, t in model.state_dict().items()
    )


def _same_shapes(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> bool:
    extra = [key for key in found if key not in expected and not VARIANT_KEY.search(key)]
    return not extra and all(key in found and found[key].shape == expected[key].shape for key in expected)
