"""``inspect_checkpoint``: what a file holds, what would load, and what stands in the way.

Models are built on the meta device, so no weights are allocated; only a file that cannot be read raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..attention.swap import swap_attention
from ..checkpoints.containers import shown
from ..checkpoints.declared import Declaration
from ..checkpoints.file import Checkpoint, read_checkpoint
from ..checkpoints.setting import Row
from ..checkpoints.state_dict import CLASSIFIER, Normalised
from ..device import META
from ..errors import QuestError
from ..types import OptionValue
from ..user_code import fixed_random_state
from .architectures import VARIANT_KEY, build, infer, input_size, position_embeddings
from .assembly import OWN, architecture_options, attention_rows, check_size, choose_for, heads_rows
from .attention_choice import Choice, choose_attention, variants_by_keys
from .fit import check_fit, non_finite, resized_positions
from .plan import (
    Request,
    Weights,
    choose_architecture,
    choose_preprocessing,
    choose_weights,
    declarations_of,
    in_timms_names,
    refuse_other_kinds,
    released_deit,
    timm_source,
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint holds, as plain values.

    Args:
        containers: name -> number of tensors.
        weights: the container that would be used.
        kind: "classifier", "Segmenter", "mmseg" or "iBOT or DINO".
        arch_candidates: what is declared, else every architecture of these names and shapes.
        attention_candidates: the variants that have these keys.
        architecture: the options that it would be built with, and its heads.
        attention: the variant that would be used, with its options; "own" for one that stays; or None.
        attention_notes: what other sources declare, and what the tensors look like.
        num_classes, image_size: of the model that would be built, or None.
        positions: each position embedding's key and grid.
        tensors, parameters: counts of the chosen container; parameters include buffers.
        dtypes: of its tensors.
        preprocessing: setting, value, source, alternatives.
        sources: setting -> where it came from.
        dropped: tensors that only pre-training uses.
        problems: why it would not load; empty when it would.
    """

    path: str
    format: str
    sha256: str
    containers: Mapping[str, int]
    weights: str | None = None
    kind: str = CLASSIFIER
    arch_candidates: tuple[str, ...] = ()
    attention_candidates: tuple[str, ...] = ()
    architecture: tuple[Row, ...] = ()
    attention: str | None = None
    attention_notes: str = ""
    num_classes: int | None = None
    image_size: int | None = None
    positions: tuple[str, ...] = ()
    tensors: int = 0
    parameters: int = 0
    dtypes: tuple[str, ...] = ()
    preprocessing: tuple[Row, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a dict of plain values, for JSON."""
        return dataclasses.asdict(self)


def inspect_checkpoint(path: str | Path, **options: Any) -> Inspection:
    """Return what a file holds and what would load.

    Args:
        path: the checkpoint.
        options: what ``load_model`` takes about architecture, attention, weights and preprocessing, to see
            its effect. The weights are not compared with an attention class from a user's file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    checkpoint = read_checkpoint(path)
    request = Request(**{name: value for name, value in options.items() if value is not None})
    problems: list[str] = []
    attempt = _Attempt(problems)
    declarations = attempt(lambda: declarations_of(request, checkpoint)) or [request.declaration()]
    weights = attempt(lambda: choose_weights(checkpoint, declarations))
    found: dict[str, Any] = {}
    if weights is not None:
        normalised = attempt(lambda: in_timms_names(checkpoint, weights))
        found = _contents(weights, normalised)
        if normalised is not None:
            with fixed_random_state():
                found |= _model(request, checkpoint, declarations, normalised, attempt)
        found["sources"] = {"weights": weights.source, **found.get("sources", {})}
        problems += filter(None, [non_finite(weights.stored)])
    return Inspection(
        path=str(checkpoint.path),
        format=checkpoint.format,
        sha256=checkpoint.sha256,
        containers={shown(name): len(state) for name, state in checkpoint.containers.items()},
        problems=tuple(dict.fromkeys(problems)),
        **found,
    )


class _Attempt:
    """Call a step of loading; one that fails gives None, and its message is kept."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def __call__(self, step: Callable[[], _T]) -> _T | None:
        try:
            return step()
        except QuestError as error:
            self.problems.append(str(error))
            return None


def _contents(weights: Weights, normalised: Normalised | None) -> dict[str, Any]:
    tensors = weights.stored if normalised is None else normalised.tensors
    found: dict[str, Any] = {
        "weights": shown(weights.container),
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "dtypes": tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
    }
    if normalised is not None:
        found |= {"kind": normalised.kind, "dropped": normalised.dropped}
        found["attention_candidates"] = variants_by_keys(tensors) if _has_attention(tensors) else ()
    return found


def _model(
    request: Request,
    checkpoint: Checkpoint,
    declarations: Sequence[Declaration],
    normalised: Normalised,
    attempt: _Attempt,
) -> dict[str, Any]:
    """Return what is known of the model: as far as the steps of loading it succeed."""
    tensors, file = normalised.tensors, checkpoint.path.name
    if normalised.kind != CLASSIFIER:
        attempt(lambda: refuse_other_kinds(checkpoint, normalised))
        others = ("head.", "head_dist.", "decoder.")
        backbone = {key: tensor for key, tensor in tensors.items() if not key.startswith(others)}
        return {"arch_candidates": tuple(c.name for c in infer(backbone))}
    chosen = attempt(lambda: choose_architecture(checkpoint, tensors, declarations))
    if chosen is None:
        names = tuple(candidate.name for candidate in infer(tensors))
        # All of them have its shapes.
        likely = attempt(lambda: _skeleton(names[0], {}, tensors, request)[0]) if names else None
        found = _attention_by_keys(tensors, declarations, file, attempt) | {"arch_candidates": names}
        return found | ({} if likely is None else _facts(likely))
    found = {"arch_candidates": (chosen.name, *chosen.others), "sources": {"arch": chosen.source}}
    built = attempt(lambda: _skeleton(chosen.name, chosen.options, tensors, request))
    if built is None:
        return _merged(found, _attention_by_keys(tensors, declarations, file, attempt))
    model, options = built
    found |= _facts(model)
    found["architecture"] = (chosen.options_row(options, request.img_size), *heads_rows(model))
    decided = attempt(
        lambda: choose_preprocessing(
            declarations,
            input_size(model),
            timm_source(chosen.name),
            released_deit(checkpoint, chosen.name),
            file,
        )
    )
    if decided is not None:
        attempt(lambda: check_size(model, decided[0], request.img_size))
        rows = tuple(decided[1])
        found = _merged(found, {"preprocessing": rows, "sources": {row.setting: row.source for row in rows}})
    refusals = len(attempt.problems)
    choice = attempt(lambda: choose_for(model, tensors, declarations, file))
    if len(attempt.problems) > refusals:
        # Which of them a variant has is not known.
        tensors = {key: tensor for key, tensor in tensors.items() if not VARIANT_KEY.search(key)}
    elif choice is None and attention_rows(model, None):
        found = _merged(found, {"attention": OWN.value, "sources": {"attention": OWN.source}})
    if choice is None or choice.user is None:
        attempt(lambda: _check_fit(model, tensors, choice, request, file, chosen.name))
    return _merged(found, _attention(choice))


def _merged(found: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return both, with the sources of both."""
    return found | more | {"sources": found.get("sources", {}) | more.get("sources", {})}


def _attention_by_keys(
    tensors: Mapping[str, Tensor], declarations: Sequence[Declaration], file: str, attempt: _Attempt
) -> dict[str, Any]:
    """Return the attention as far as it can be told without a model."""
    if not _has_attention(tensors):
        return {}
    return _attention(attempt(lambda: choose_attention(tensors, declarations, file)))


def _attention(choice: Choice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    return {
        "attention": str(choice.spec),
        "attention_notes": choice.alternatives,
        "sources": {"attention": choice.source},
    }


def _skeleton(
    arch: str, declared: Mapping[str, OptionValue], tensors: Mapping[str, Tensor], request: Request
) -> tuple[nn.Module, dict[str, OptionValue]]:
    options = architecture_options(arch, declared, tensors, request.img_size)
    return build(arch, options, device=META), options


def _facts(model: nn.Module) -> dict[str, Any]:
    positions = position_embeddings(model).items()
    return {
        "num_classes": model.num_classes,
        "image_size": input_size(model),
        "positions": tuple(
            f"{key}: {p.rows}x{p.columns} patches and {p.extra} extra" for key, p in positions
        ),
    }


def _check_fit(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    choice: Choice | None,
    request: Request,
    file: str,
    arch: str,
) -> None:
    """Raise what loading would raise, from names and shapes."""
    if choice is not None:
        swap_attention(model, choice.spec)
    if request.img_size is not None:
        tensors, _ = resized_positions(model, tensors)
    check_fit(model, tensors, file, arch)


def _has_attention(tensors: Mapping[str, Tensor]) -> bool:
    return any(".attn." in key for key in tensors)
