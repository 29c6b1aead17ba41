"""Build the model that a plan describes and put the checkpoint's tensors into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import OptionError
from ..types import ModelSpec, OptionValue, Preprocessing
from .architectures import build, fitted_options, input_size
from .checkpoint import Checkpoint
from .classifier import num_classes
from .declaration import FLAG, Declaration
from .detection import Choice, choose_attention, declared_options, declared_user_attention
from .fingerprint import weights_sha256
from .keys import strip_prefixes
from .plan import (
    Request,
    Weights,
    choose_architecture,
    choose_preprocessing,
    choose_weights,
    refuse_other_kinds,
    released_deit,
    timm_source,
)
from .preprocessing import Row, undeclared
from .strict import load_strictly, misfits, resized_positions
from .swap import attention_sites, swap_attention
from .user_attention import swap_user_attention
from .user_code import build_user_model, short_name
from .variants import resolve


@dataclass(frozen=True)
class Loaded:
    """A module with its weights on the host, and everything that was found out on the way."""

    module: nn.Module
    spec: ModelSpec
    rows: tuple[Row, ...]
    dataset: str | None


def assemble(request: Request, checkpoint: Checkpoint, declarations: Sequence[Declaration]) -> Loaded:
    """Return one of timm's architectures with a checkpoint's weights. Draws from the global random states.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``.
    """
    weights = choose_weights(checkpoint, declarations)
    refuse_other_kinds(checkpoint, weights)
    file, tensors = checkpoint.path.name, weights.normalised.tensors
    chosen = choose_architecture(checkpoint, tensors, declarations)
    options = architecture_options(chosen.name, chosen.options, tensors, request.img_size)
    module = build(chosen.name, options)
    preprocessing, rows = choose_preprocessing(
        declarations,
        input_size(module),
        timm_source(chosen.name),
        released_deit(checkpoint, chosen.name),
        file,
    )
    check_size(module, preprocessing)
    choice = swap_declared(module, tensors, declarations, file, preprocessing.size)
    tensors, resized = resized_positions(module, tensors) if request.img_size else (tensors, "")
    load_strictly(module, tensors, file, chosen.name)
    rows = [
        chosen.row,
        *([] if choice is None else [choice.row]),
        weights.row,
        *rows,
    ]
    sources = {row.setting: row.source for row in rows} | ({} if choice is None else dict(choice.sources))
    if resized:
        sources["position embeddings"] = f"resized because of --img-size: {resized}"
    guessed = (*(["arch"] if chosen.guessed else []), *(choice.guessed if choice else ()), *undeclared(rows))
    spec = ModelSpec(
        name=_first("name", declarations) or checkpoint.path.stem,
        checkpoint=checkpoint.sha256,
        arch=chosen.name,
        attention=None if choice is None else choice.spec,
        weights=weights.container,
        preprocessing=preprocessing,
        num_classes=int(options["num_classes"]),
        arch_options=tuple(sorted(options.items())),
        sources=tuple(sources.items()),
        guessed=guessed,
    )
    return Loaded(module, spec, tuple(rows), _first("dataset", declarations))


def assemble_user_model(
    request: Request, checkpoint: Checkpoint | None, declarations: Sequence[Declaration]
) -> Loaded:
    """Return the module of ``--model``, with a checkpoint's weights or its own.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``.
    """
    text, name = str(request.model), short_name(str(request.model))
    module, source_hash = build_user_model(text, request.model_options)
    config = getattr(module, "pretrained_cfg", None)  # timm's models carry theirs
    timm_like = (name, config) if isinstance(config, dict) and "crop_pct" in config else None
    preprocessing, rows = choose_preprocessing(
        declarations, input_size(module), timm_like, None, f"--model {name}"
    )
    check_size(module, preprocessing)
    choice = _swap_into_user_model(module, declarations, preprocessing.size)
    found = [Row("arch", name, FLAG), *([] if choice is None else [choice.row])]
    container = ""
    if checkpoint is not None:
        weights = choose_weights(checkpoint, declarations)
        container = weights.container
        found.append(weights.row)
        load_strictly(module, _under_own_keys(module, weights), checkpoint.path.name, name)
    rows = [*found, *rows]
    spec = ModelSpec(
        name=_first("name", declarations) or (name if checkpoint is None else checkpoint.path.stem),
        checkpoint=weights_sha256(module) if checkpoint is None else checkpoint.sha256,
        arch=name,
        attention=None if choice is None else choice.spec,
        weights=container,
        preprocessing=preprocessing,
        num_classes=num_classes(module, preprocessing),
        arch_options=tuple(sorted(request.model_options.items())),
        source_hash=source_hash,
        sources=tuple((row.setting, row.source) for row in rows),
        guessed=undeclared(rows),
    )
    return Loaded(module, spec, tuple(rows), _first("dataset", declarations))


def architecture_options(
    name: str, declared: Mapping[str, OptionValue], tensors: Mapping[str, Tensor], img_size: int | None
) -> dict[str, OptionValue]:
    """Return the options to build with: as declared, as the tensors have them, and the image size asked for.

    Raises:
        CheckpointError: no classifier, or positions of no square grid.
    """
    options = fitted_options(name, tensors, declared)
    # Without position embeddings an architecture takes any size, and no such option.
    positions = any(key.startswith("pos_embed") for key in tensors)
    return {**options, "img_size": img_size} if img_size is not None and positions else options


def check_size(module: nn.Module, preprocessing: Preprocessing) -> None:
    """Refuse preprocessing of another size than the model is built for.

    Raises:
        OptionError: with the sizes.
    """
    built = input_size(module)
    if built is not None and built != preprocessing.size:
        raise OptionError(
            f"the preprocessing gives {preprocessing.size}x{preprocessing.size} images and the model takes "
            f"{built}x{built}; --img-size {built} keeps the model as it is, --img-size {preprocessing.size} "
            "resizes the position embeddings of timm's architectures"
        )


def swap_declared(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    declarations: Sequence[Declaration],
    file: str,
    size: int,
) -> Choice | None:
    """Replace the attention in place by the file's variant; None for a model without attention.

    Raises:
        CheckpointError, OptionError: as ``detection.choose_attention`` and ``swap.swap_attention``.
    """
    if not attention_sites(module) and _first("attention", declarations) is None:
        return None
    choice = choose_attention(tensors, declarations, file)
    if choice.user is None:
        swap_attention(module, choice.spec)
    else:
        swap_user_attention(module, choice.user, size)
    return choice


def _swap_into_user_model(module: nn.Module, declarations: Sequence[Declaration], size: int) -> Choice | None:
    """Replace the attention of a user's model where a variant is declared; else it keeps its own."""
    declared = next((d for d in declarations if d.attention is not None), None)
    if declared is None:
        return None
    user = declared_user_attention(declarations, "the checkpoint")
    if user is not None:
        swap_user_attention(module, user, size)
        return Choice(user.spec, {"attention": declared.source}, user=user)
    name = str(declared.attention)
    spec = resolve(name, declared_options(name, declarations))
    swap_attention(module, spec)
    return Choice(spec, {"attention": declared.source})


def _under_own_keys(module: nn.Module, weights: Weights) -> Mapping[str, Tensor]:
    """Return the tensors under the keys that a user's model has: as stored, or without wrappers' prefixes."""
    stripped = {strip_prefixes(key): tensor for key, tensor in weights.stored.items()}
    whole = len(stripped) == len(weights.stored)  # else two keys became one
    expected = module.state_dict()
    if whole and misfits(expected, weights.stored) and set(stripped) & set(expected):
        return stripped
    return weights.stored


def _first(setting: str, declarations: Sequence[Declaration]) -> str | None:
    said = (getattr(declaration, setting) for declaration in declarations)
    return next((value for value in said if value is not None), None)
