"""One block: images through the threat and the model to records.

The evaluator judges what an attack proposes. It checks the range of the input once per batch and the eps ball
and range of every returned image, scores each image once, and records what it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .device import full_precision
from .errors import DataError
from .records import Records, make_records
from .rng import ImageRng
from .scoring import Columns, cross_entropy, distances, predictions, score
from .threats import build_attack
from .types import Cell

if TYPE_CHECKING:
    from .attacks.base import Attack, Model, Proposal
    from .datasets.base import Dataset
    from .datasets.loader import Batch
    from .models.classifier import Classifier

# float32 rounds a sum such as pixel + eps by up to 6e-8 in every pixel; who is off by more has left the ball.
ROUNDING = 1e-7

Images = dict[str, npt.NDArray[Any]]
"""Kept images: ``image_id`` (N,), ``clean`` and, with an attack, ``perturbed`` (N, 3, H, W) float32."""


class Advance(Protocol):
    """Told of progress."""

    def __call__(self, images: float, computed: bool = True) -> None:
        """Take note of images, or a fraction of one, finished since the last call; or found in the store."""


@dataclass(frozen=True)
class Job:
    """A cell to compute, and how; what is not in the cell changes no number.

    Args:
        model, dataset, cell: what to compute.
        batch_size: images per model call.
        workers: processes that read images; 0 reads in this one.
        keep_images: of how many images, from the first, pixels are kept.
        advance: told of progress.
    """

    model: Classifier
    dataset: Dataset
    cell: Cell
    batch_size: int
    workers: int
    keep_images: int
    advance: Advance

    @cached_property
    def attack(self) -> Attack | None:
        """The cell's attack; None for clean images."""
        return None if self.cell.threat.is_clean else build_attack(self.cell.threat)


def compute_block(job: Job, number: int) -> tuple[Records, Images]:
    """Return the records of block ``number`` of the job's cell, and those of its images that are kept.

    Raises:
        DataError: an image cannot be read, or has pixels outside [0, 1].
    """
    from .datasets.loader import load_batches

    block = job.cell.blocks[number]
    indices = job.dataset.order[block.start : block.stop].tolist()
    parts: list[Columns] = []
    kept: list[Images] = []
    position = block.start
    # Attacks need autograd, which cannot be switched on inside a caller's inference mode.
    with full_precision(job.model.device), torch.inference_mode(False), torch.no_grad():
        batches = load_batches(job.dataset, job.model.preprocessing, indices, job.batch_size, job.workers)
        with contextlib.closing(batches):
            for batch in batches:
                columns, images = _batch(job, batch, position)
                parts.append(columns)
                wanted = job.keep_images - position
                if wanted > 0:
                    kept.append({name: array[:wanted] for name, array in images.items()})
                position += len(batch.image_ids)
    return make_records(_joined(parts), attacked=job.attack is not None), _joined(kept)


def check_pixels(x: Tensor, image_ids: Sequence[str]) -> None:
    """Refuse a batch with values outside [0, 1], naming the first such image and the likely cause.

    Raises:
        DataError: a value is below 0, above 1 or NaN.
    """
    inside = _in_range(x)
    if not bool(inside.all()):
        first = int((~inside).nonzero()[0])
        low, high = float(x[first].min()), float(x[first].max())
        raise DataError(
            f"pixels must lie in [0, 1], but {image_ids[first]} has values from {low:.3g} to {high:.3g}: "
            "probably normalised already; normalisation belongs in the Classifier (mean=, std=)"
        )


def _batch(job: Job, batch: Batch, position: int) -> tuple[Columns, Images]:
    x, y = batch.pixels.to(job.model.device), batch.labels.to(job.model.device)
    check_pixels(x, batch.image_ids)
    count = len(batch.image_ids)
    columns: Columns = {
        "index": np.arange(position, position + count, dtype=np.int32),
        "image_id": np.array(batch.image_ids, dtype=object),
        "input_crc": batch.input_crc,
        "label": batch.labels.numpy().astype(np.int32),
    }
    images: Images = {"image_id": np.array(batch.image_ids), "clean": batch.pixels.numpy()}
    clean_logits = job.model(x)
    if job.attack is None:
        job.advance(count)
        return {**columns, **score(clean_logits, y)}, images
    attacked, adversarial = _attacked(job, job.attack, x, y, clean_logits, batch.image_ids)
    images["perturbed"] = adversarial.numpy(force=True)
    return {**columns, **attacked}, images


def _attacked(
    job: Job, attack: Attack, x: Tensor, y: Tensor, clean_logits: Tensor, image_ids: Sequence[str]
) -> tuple[Columns, Tensor]:
    """Return the columns of attacked images, and the images that were scored."""
    rng = ImageRng(job.cell.seed, job.cell.threat.name, image_ids)
    with _reporting(job.model.space(job.cell.protocol), attack, len(x), job.advance) as space:
        proposal = attack.run(space, x, y, rng)
    adversarial, logits = proposal.images, job.model(proposal.images)
    clean, final = score(clean_logits, y), score(logits, y)
    # The clean image lies in every ball. Where the model is wrong on it and right on what the attack
    # returned, the clean image is the result: robust accuracy never exceeds clean accuracy.
    clean_fails = final["correct"] & ~clean["correct"]
    if clean_fails.any():
        use_clean = torch.from_numpy(clean_fails).to(x.device)
        adversarial = torch.where(use_clean[:, None, None, None], x, adversarial)
        logits = torch.where(use_clean[:, None], clean_logits, logits)
        final = score(logits, y)
    used = clean_logits.argmax(dim=1) if attack.labels == "predicted" else y
    broken_by = np.where(final["correct"], "", job.cell.threat.name)
    columns = {
        **final,
        **_judged(attack, x, adversarial, proposal),
        "clean_pred": predictions(clean),
        "loss_start": cross_entropy(clean_logits, used),
        "loss_end": cross_entropy(logits, used),
        "broken_by": np.where(clean["correct"], broken_by, "clean").astype(object),
    }
    return columns, adversarial


def _judged(attack: Attack, x: Tensor, adversarial: Tensor, proposal: Proposal) -> Columns:
    """Return what the attack took, how far it went, and whether it kept to its budget and the range."""
    linf, l2 = distances(x, adversarial)
    moved, rounding = (linf, ROUNDING) if attack.norm == "linf" else (l2, ROUNDING * x[0].numel() ** 0.5)
    eps = float(attack.eps)
    in_ball = moved <= (eps * (1 + ROUNDING) + rounding if eps else 0.0)
    return {
        "linf": linf,
        "l2": l2,
        "queries": proposal.queries,
        "grad_zero": proposal.grad_zero,
        "grad_nonfinite": proposal.grad_nonfinite,
        "restart": proposal.restart,
        "violation": ~(_in_range(adversarial).numpy(force=True) & in_ball),
    }


def _in_range(x: Tensor) -> Tensor:
    return ((x >= 0) & (x <= 1)).flatten(1).all(dim=1)  # NaN is outside


@contextlib.contextmanager
def _reporting(space: Model, attack: Attack, count: int, advance: Advance) -> Iterator[Model]:
    """Pass on ``space``, reporting each call as its share of the attack's expected forward passes."""
    done = 0.0

    class Reporting:
        bounds = getattr(space, "bounds", (0.0, 1.0))

        def __call__(self, x: Tensor) -> Tensor:
            nonlocal done
            logits = space(x)
            share = min(len(x) / attack.passes, count - done)
            done += share
            advance(share)
            return logits

    yield Reporting()
    advance(count - done)


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
