"""Which architecture a state dict belongs to: the declared one, else those of its names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from ..checkpoints.declared import FLAG, Declaration, declared
from ..checkpoints.setting import Setting, joined, merge
from ..device import META
from ..errors import CheckpointError, OptionError
from ..identity import structure
from ..types import OptionValue
from .architectures import build, check_architecture, fitted_options, timm_config
from .preprocessing import implied_crop

FAMILIES = ("vit_*", "deit_*", "deit3_*")  # what inference tries
CROSS = "crossvit_*"

# Parameters that attention variants add; an architecture is recognised without them.
VARIANT_KEY = re.compile(r"\.attn\.(logit_scale|[qk]_norm\.(weight|bias))$")


@dataclass(frozen=True)
class Architecture:
    """The architecture that is used, the options declared for it, and every architecture that it may be."""

    name: str
    setting: Setting
    declared: Mapping[str, Setting]
    candidates: tuple[str, ...]

    def given(self) -> dict[str, OptionValue]:
        """Return the declared options."""
        return {name: option.value for name, option in self.declared.items()}

    def options_setting(self, options: Mapping[str, OptionValue], asked: int | None) -> Setting:
        """Return all ``options`` as one setting; ``asked`` is the image size that is asked for, or None."""
        rest = {name: Setting(name, value, "tensors in the file") for name, value in options.items()}
        parts = {**rest, **self.declared}
        if asked is not None and "img_size" in options:
            parts["img_size"] = Setting("img_size", asked, FLAG)
        text = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
        return joined("arch options", text, parts.values())


@dataclass(frozen=True)
class Candidate:
    """An architecture whose names and shapes a state dict has.

    Args:
        name: timm's.
        function: equal for architectures that compute the same (see ``identity.structure``).
        config: timm's preprocessing.
    """

    name: str
    function: str
    config: Mapping[str, Any]


def choose_architecture(
    file: Path, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration]
) -> Architecture:
    """Return the first architecture that is declared, else the one that names and shapes show.

    Options belong to the architecture that they were declared with; those declared with none, such as
    flags, to whichever is used.

    Raises:
        OptionError: no such architecture, or several fit and they differ in function or preprocessing.
        CheckpointError: none fits.
    """
    setting = declared("arch", declarations)
    names: list[str] = []
    if setting is not None:
        check_architecture(setting.value, setting.source)
    else:
        candidates = infer(tensors)
        if not candidates:
            raise CheckpointError(
                f"{file} declares no architecture, and its {len(tensors)} tensors are those of no vit, deit, "
                "deit3 or crossvit of timm; give --arch NAME, or --model FILE.py:FUNC"
            )
        _refuse_ambiguity(file.name, candidates, declarations)
        first, *names = (candidate.name for candidate in candidates)
        same = f"of the same function: {', '.join(names)}" if names else ""
        setting = Setting("arch", first, "inferred from shapes", same, guessed=("arch",))
    name = str(setting.value)
    bare = name.partition(".")[0]  # a tag names weights
    fitting = [d for d in declarations if d.arch is None or d.arch.partition(".")[0] == bare]
    options = merge([(d.source, d.arch_options) for d in fitting])
    return Architecture(name, setting, options, (name, *names))


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


def _refuse_ambiguity(
    file: str, candidates: Sequence[Candidate], declarations: Sequence[Declaration]
) -> None:
    names = ", ".join(candidate.name for candidate in candidates)
    if len({candidate.function for candidate in candidates}) > 1:
        raise OptionError(
            f"{file}: several architectures have its shapes and compute different things "
            f"({names}); give --arch"
        )
    said = [source for declaration in declarations for source in declaration.preprocessing]
    said += implied_crop(said)
    for setting in ("mean", "std", "resize", "crop_mode", "interpolation"):
        key = "crop_pct" if setting == "resize" else setting
        undeclared = all(source.value(setting, 1) is None for source in said)
        if undeclared and len({str(candidate.config.get(key)) for candidate in candidates}) > 1:
            values = "; ".join(f"{candidate.name}: {candidate.config.get(key)}" for candidate in candidates)
            raise OptionError(
                f"{file}: its shapes fit {names}, which were trained with different preprocessing "
                f"({setting}: {values}); say which with --arch"
            )


def _shortlist(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names worth building in full: by patch size, then by a model of one block."""
    depth: object
    if "pos_embed_0" in tensors:
        names, depth = timm.list_models(CROSS), ((1, 1, 0),)
    else:
        patch_embed = tensors.get("patch_embed.proj.weight")
        if patch_embed is None or patch_embed.ndim != 4:
            return []
        size = re.compile(rf"patch{patch_embed.shape[-1]}(_|$)")
        names = [name for family in FAMILIES for name in timm.list_models(family) if size.search(name)]
        depth = 1
    return [name for name in names if _first_block_fits(name, {"depth": depth}, tensors)]


def _first_block_fits(name: str, options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the tensors hold a model of one block."""
    try:
        model = build(name, options, device=META)
    except OptionError:
        # Other kinds of model refuse the depth; timm's crossvit_18_240 does for a fault of its own.
        return name.startswith("crossvit")
    # The head and the positions depend on the data set and the image size.
    return all(
        key.startswith("head")
        or (key in tensors and (key.startswith("pos_embed") or tensors[key].shape == t.shape))
        for key, t in model.state_dict().items()
    )


def _same_shapes(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> bool:
    extra = [key for key in found if key not in expected and not VARIANT_KEY.search(key)]
    return not extra and all(key in found and found[key].shape == expected[key].shape for key in expected)
