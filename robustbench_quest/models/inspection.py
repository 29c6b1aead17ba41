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

from ..errors import CheckpointError, QuestError
from ..types import OptionValue
from .architectures import META, build, infer, input_size, position_embeddings
from .assembly import architecture_options, check_size
from .checkpoint import Checkpoint, read_checkpoint
from .containers import shown
from .declaration import Declaration
from .detection import Choice, choose_attention, variants_by_keys
from .keys import CLASSIFIER
from .plan import (
    Request,
    Weights,
    choose_architecture,
    choose_preprocessing,
    choose_weights,
    declarations_of,
    refuse_other_kinds,
    released_deit,
    timm_source,
)
from .preprocessing import Row
from .strict import misfits, non_finite, resized_positions
from .swap import swap_attention
from .user_code import fixed_random_state

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
        attention: the variant that would be used, with its options, or None.
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
    attention: str | None = None
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
        with fixed_random_state():
            found = _contents(weights) | _model(request, checkpoint, declarations, weights, attempt)
        problems += filter(None, [non_finite(weights.normalised.tensors)])
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


def _contents(weights: Weights) -> dict[str, Any]:
    tensors = weights.normalised.tensors
    return {
        "weights": shown(weights.container),
        "kind": weights.normalised.kind,
        "attention_candidates": variants_by_keys(tensors) if _has_attention(tensors) else (),
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "dtypes": tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
        "dropped": weights.normalised.dropped,
    }


def _model(
    request: Request,
    checkpoint: Checkpoint,
    declarations: Sequence[Declaration],
    weights: Weights,
    attempt: _Attempt,
) -> dict[str, Any]:
    """Return what is known of the model: as far as the steps of loading it succeed."""
    tensors, file = weights.normalised.tensors, checkpoint.path.name
    sources = {"weights": weights.source}
    if weights.normalised.kind != CLASSIFIER:
        attempt(lambda: refuse_other_kinds(checkpoint, weights))
        backbone = {key: tensor for key, tensor in tensors.items() if not key.startswith("head.")}
        return {"sources": sources, "arch_candidates": tuple(c.name for c in infer(backbone))}
    chosen = attempt(lambda: choose_architecture(checkpoint, tensors, declarations))
    choice = None
    if _has_attention(tensors):
        choice = attempt(lambda: choose_attention(tensors, declarations, file))
    if choice is not None:
        sources |= choice.sources
    found: dict[str, Any] = {"sources": sources, "attention": None if choice is None else str(choice.spec)}
    if chosen is None:
        names = tuple(candidate.name for candidate in infer(tensors))
        likely = _skeleton(names[0], {}, tensors, request) if names else None  # all have its shapes
        return found | {"arch_candidates": names} | ({} if likely is None else _facts(likely))
    sources["arch"] = chosen.source
    found["arch_candidates"] = (chosen.name, *chosen.others)
    model = attempt(lambda: _skeleton(chosen.name, chosen.options, tensors, request))
    if model is None:
        return found
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
        attempt(lambda: check_size(model, decided[0]))
        sources |= {row.setting: row.source for row in decided[1]}
    if choice is None or choice.user is None:
        attempt(lambda: _check_fit(model, tensors, choice, request, f"{file} does not fit {chosen.name}"))
    return found | _facts(model) | {"preprocessing": () if decided is None else tuple(decided[1])}


def _skeleton(
    arch: str, options: Mapping[str, OptionValue], tensors: Mapping[str, Tensor], request: Request
) -> nn.Module:
    return build(arch, architecture_options(arch, options, tensors, request.img_size), device=META)


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
    model: nn.Module, tensors: Mapping[str, Tensor], choice: Choice | None, request: Request, problem: str
) -> None:
    """Raise what loading would raise, from names and shapes."""
    if choice is not None:
        swap_attention(model, choice.spec)
    if request.img_size is not None:
        tensors, _ = resized_positions(model, tensors)
    wrong = misfits(model.state_dict(), tensors)
    if wrong:
        raise CheckpointError(f"{problem}: {wrong}")


def _has_attention(tensors: Mapping[str, Tensor]) -> bool:
    return any(".attn." in key for key in tensors)
