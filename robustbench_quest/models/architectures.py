"""timm's architectures: their names, their preprocessing, and building them without weights.

Nothing here can reach a network: timm builds without pretrained weights unless asked, and names that would
fetch are refused.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn

from ..checkpoints.preprocessing import Source
from ..device import META
from ..errors import CheckpointError, OptionError, unknown
from ..types import OptionValue
from .declared_sizes import check_sizes, check_total
from .preprocessing import from_timm

PLAIN = "vision_transformer"  # timm.models.VisionTransformer with every option declared; the demo zoo's


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
        listed = unknown("architecture", name, _near(bare) or timm.list_models("deit_*"))
        raise OptionError(f"{listed} (the name comes from: {source})")
    tags = _tags(bare)
    if tag and tag not in tags:
        raise OptionError(unknown(f"tag of {bare}", tag, tags or ["none"]))
    return name


def timm_config(name: str) -> dict[str, Any] | None:
    """Return timm's configuration: input size, crop, mean, std, classifier ...; None without one."""
    config = None if name == PLAIN else timm.get_pretrained_cfg(name)
    return None if config is None else dict(config.to_dict())


def timm_sources(name: str, classes: int) -> list[Source]:
    """Return timm's preprocessing of an architecture: its own, then that of each of the weights it may mean.

    A tag names one set of weights. A bare name stands for any of them: timm's default is only the newest, and
    a file may be fine-tuned from another. Those with a classifier of another number of classes are left out
    where some have this number: their fine-tuned forms are among these. Backbones without a classifier (MAE,
    DINO) are there to be fine-tuned, to any number.
    """
    config = timm_config(name)
    if config is None:
        return []
    tags = [] if "." in name else _tags(name)
    configs = {f"{name}.{tag}": timm_config(f"{name}.{tag}") or config for tag in tags}
    if any(given.get("num_classes") == classes for given in configs.values()):
        configs = {t: given for t, given in configs.items() if given.get("num_classes") in (classes, 0, None)}
    return [from_timm(name, config), *(replace(from_timm(t, given), name=t) for t, given in configs.items())]


def timm_sources_of(module: nn.Module, name: str) -> list[Source]:
    """Return the preprocessing that a module of timm's carries, as ``timm_sources``; ``name`` is shown.

    timm gives a model that is built by its bare name the tag of its default: that tag says no more.
    """
    config = getattr(module, "pretrained_cfg", None)
    if not isinstance(config, dict) or "crop_pct" not in config:
        return []
    arch = str(config.get("architecture"))
    default = timm_config(arch) if timm.is_model(arch) else None
    bare = default is not None and default.get("tag") == config.get("tag")
    rivals = timm_sources(arch, getattr(module, "num_classes", 0))[1:] if bare else []
    return [from_timm(name, config), *rivals]


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
    plain = name == PLAIN
    model = timm.models.VisionTransformer(**options) if plain else timm.create_model(name, **options)
    return cast(nn.Module, model.eval())


def fitted_options(
    name: str, tensors: Mapping[str, Tensor], declared: Mapping[str, OptionValue], img_size: int | None = None
) -> dict[str, OptionValue]:
    """Return the options to build with: ``img_size`` if asked for, as declared, else as the tensors are.

    Raises:
        CheckpointError: the state dict has no classifier, or positions that are no square grid.
        OptionError: a declared size is above what the tensors have.
    """
    check_sizes(name, declared, tensors)
    options = dict(declared)
    if "num_classes" not in options:
        options["num_classes"] = _classes(name, tensors)
    skeleton = build(name, options, device=META)
    check_total(name, skeleton.state_dict(), tensors)
    if "img_size" not in options:
        size = _image_size(tensors, skeleton)
        if size is not None:
            options["img_size"] = size
    # Without position embeddings an architecture takes any size, and no such option.
    if img_size is not None and any(key.startswith("pos_embed") for key in tensors):
        options["img_size"] = img_size
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
    """Return the image size that the positions were made for, or None where it is the native one."""
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
