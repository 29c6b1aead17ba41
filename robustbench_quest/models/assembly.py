"""Build the model that a plan describes and put the checkpoint's tensors into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ..attention.swap import attention_sites, check_replaceable, heads_text, is_replaceable, swap_attention
from ..attention.user import swap_user_attention
from ..attention.variants import for_layers
from ..checkpoints.declared import FLAG, Declaration, first
from ..checkpoints.file import Checkpoint
from ..checkpoints.setting import Row
from ..checkpoints.state_dict import unwrapped
from ..errors import OptionError
from ..identity import weights_sha256
from ..types import ModelSpec, OptionValue, Preprocessing
from ..user_code import build_user_model, short_name
from .architectures import build, fitted_options, input_size
from .attention_choice import (
    Choice,
    choose_attention,
    declared_user_attention,
    named_choice,
    user_choice,
    with_form,
)
from .classifier import num_classes
from .fit import load_strictly, misfits, resized_positions
from .plan import (
    Request,
    Weights,
    choose_architecture,
    choose_preprocessing,
    choose_weights,
    in_timms_names,
    refuse_other_kinds,
    released_deit,
    timm_source,
)
from .preprocessing import undeclared


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
    normalised = in_timms_names(checkpoint, weights)
    refuse_other_kinds(checkpoint, normalised)
    file, tensors = checkpoint.path.name, normalised.tensors
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
    check_size(module, preprocessing, request.img_size)
    found = [chosen.row, chosen.options_row(options, request.img_size), *heads_rows(module)]
    choice = choose_for(module, tensors, declarations, file)
    swap_chosen(module, choice, preprocessing.size)
    tensors, resized = resized_positions(module, tensors) if request.img_size else (tensors, "")
    if resized:
        found.append(Row("position embeddings", "resized", f"because of --img-size: {resized}"))
    load_strictly(module, tensors, file, chosen.name)
    rows = [*found, *attention_rows(module, choice), weights.row, *rows]
    guessed = (*(["arch"] if chosen.guessed else []), *(choice.guessed if choice else ()), *undeclared(rows))
    spec = ModelSpec(
        name=first("name", declarations) or checkpoint.path.stem,
        checkpoint=checkpoint.sha256,
        arch=chosen.name,
        attention=None if choice is None else choice.spec,
        weights=weights.container,
        preprocessing=preprocessing,
        num_classes=int(options["num_classes"]),
        arch_options=tuple(sorted(options.items())),
        sources=_sources(rows),
        guessed=guessed,
    )
    return Loaded(module, spec, tuple(rows), first("dataset", declarations))


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
    check_size(module, preprocessing, request.img_size)
    found = [Row("arch", name, FLAG), *heads_rows(module)]
    converted = _to_float32(module)
    if converted:
        found.append(Row("dtype", "float32", f"converted from {converted}"))
    weights = None if checkpoint is None else choose_weights(checkpoint, declarations)
    choice = _choose_for_user_model(module, {} if weights is None else weights.stored, declarations)
    swap_chosen(module, choice, preprocessing.size)
    found.append(OWN if choice is None else choice.row)
    if checkpoint is not None and weights is not None:
        found.append(weights.row)
        load_strictly(module, _under_own_keys(module, weights), checkpoint.path.name, name)
    rows = [*found, *rows]
    spec = ModelSpec(
        name=first("name", declarations) or (name if checkpoint is None else checkpoint.path.stem),
        checkpoint=weights_sha256(module) if checkpoint is None else checkpoint.sha256,
        arch=name,
        attention=None if choice is None else choice.spec,
        weights="" if weights is None else weights.container,
        preprocessing=preprocessing,
        num_classes=num_classes(module, preprocessing),
        arch_options=tuple(sorted(request.model_options.items())),
        source_hash=source_hash,
        sources=_sources(rows),
        guessed=(*(choice.guessed if choice else ()), *undeclared(rows)),
    )
    return Loaded(module, spec, tuple(rows), first("dataset", declarations))


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


def check_size(module: nn.Module, preprocessing: Preprocessing, asked: int | None) -> None:
    """Refuse preprocessing of another size than the model is built for; ``asked`` is that of --img-size.

    Raises:
        OptionError: with the sizes.
    """
    built, size = input_size(module), preprocessing.size
    if built is None or built == size:
        return
    if asked is not None:
        raise OptionError(
            f"--img-size {size}: the model takes {built}x{built} images, and only position embeddings of "
            f"timm's architectures are resized; leave --img-size out, or build the model for {size}"
        )
    raise OptionError(
        f"the preprocessing gives {size}x{size} images and the model takes {built}x{built}; --img-size "
        f"{built} keeps the model as it is, --img-size {size} resizes the position embeddings of timm's "
        "architectures"
    )


def choose_for(
    module: nn.Module, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration], file: str
) -> Choice | None:
    """Return the file's attention for a model of timm's, in the form for its layers; None: it keeps its own.

    Raises:
        CheckpointError, OptionError: as ``detection.choose_attention``; or a variant or an option is declared
            and the model has no attention that can be replaced.
    """
    if not is_replaceable(module) and first("attention", declarations) is None:
        _refuse_idle_options(declarations)
        return None
    check_replaceable(module)
    choice = choose_attention(tensors, declarations, file)
    return replace(choice, spec=for_layers(choice.spec, len(attention_sites(module))))


def swap_chosen(module: nn.Module, choice: Choice | None, size: int) -> None:
    """Replace the attention in place; ``size`` is the side of the image on which a user's class is tried.

    Raises:
        OptionError: as ``swap.swap_attention`` and ``user_attention.swap_user_attention``.
    """
    if choice is None:
        return
    if choice.user is None:
        swap_attention(module, choice.spec)
    else:
        swap_user_attention(module, choice.user, size)


OWN = Row("attention", "own", "as the model is built")


def attention_rows(module: nn.Module, choice: Choice | None) -> list[Row]:
    """Return the line of ``--explain`` for the attention; none for a model without one."""
    if choice is None:
        return [OWN] if attention_sites(module) else []
    return [choice.row]


def heads_rows(module: nn.Module) -> list[Row]:
    """Return the line of ``--explain`` for the number of heads; none for a model without attention."""
    text = heads_text(module)
    return [Row("heads", text, "the model as built")] if text else []


def _choose_for_user_model(
    module: nn.Module, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration]
) -> Choice | None:
    """Return the attention that is declared for a user's model, in the form for its layers; None: its own."""
    declared = next((d for d in declarations if d.attention is not None), None)
    if declared is None:
        _refuse_idle_options(declarations)
        return None
    check_replaceable(module)
    user = declared_user_attention(declarations, "the checkpoint")
    if user is not None:
        return user_choice(user, declarations)
    choice = with_form(
        named_choice(str(declared.attention), declared.source, declarations), tensors, declarations
    )
    return replace(choice, spec=for_layers(choice.spec, len(attention_sites(module))))


def _refuse_idle_options(declarations: Sequence[Declaration]) -> None:
    for declaration in declarations:
        if declaration.source == FLAG and declaration.attention_options:
            raise OptionError(
                "--attention-option needs --attention NAME or FILE.py:CLASS; without it this model keeps "
                "its own"
            )


def _to_float32(module: nn.Module) -> str:
    """Make the module float32 in place, and return what it was, or "" where it was that already."""
    tensors = (*module.parameters(), *module.buffers())
    other = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()} - {"float32"}
    if other:
        module.float()
    return ", ".join(sorted(other))


def _under_own_keys(module: nn.Module, weights: Weights) -> Mapping[str, Tensor]:
    """Return the tensors under the keys that a user's model has: as stored, or without wrappers' prefixes.

    Where none fits, those that share most keys with the model, for the message.
    """
    expected = module.state_dict()
    forms = list(unwrapped(weights.stored))
    fitting = (form for form in forms if not misfits(expected, form))
    return next(fitting, max(forms, key=lambda form: len(set(form) & set(expected))))


def _sources(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    return tuple((row.setting, row.source) for row in rows)
