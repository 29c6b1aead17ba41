"""One block of a cell: prepared images through the threat and the model to records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .datasets.transform import to_unit
from .device import full_precision
from .errors import DataError
from .records import Records, make_records
from .run import How
from .tasks import Task, schema_of, task_of
from .threats import kind_of
from .types import Cell

if TYPE_CHECKING:
    from .datasets.base import Dataset
    from .datasets.window import Window
    from .models.classifier import Classifier

Columns = dict[str, Any]
Images = dict[str, npt.NDArray[Any]]
"""Kept images: ``image_id`` (N,), ``clean`` and, where they were changed, ``perturbed`` (N, 3, H, W)
float32."""


class Advance(Protocol):
    """Told of progress."""

    def __call__(self, images: float, computed: bool = True) -> None:
        """Take note of images, or a fraction of one, finished since the last call; or found in the store."""


class StageFiles(Protocol):
    """Where the stages of one block are kept, so that a run that dies between two of them goes on."""

    def read(self, stage: int, name: str) -> Records | None:
        """Return the block's records as they were after a stage, or None."""

    def write(self, stage: int, name: str, records: Records) -> None:
        """Keep the block's records as they are after a stage."""


@dataclass(frozen=True)
class Job:
    """A cell to compute, and how; what is not in the cell changes no number."""

    model: Classifier
    dataset: Dataset
    cell: Cell
    how: How
    advance: Advance

    @cached_property
    def task(self) -> Task:
        """What the data set asks of the model."""
        return task_of(self.cell.dataset)


@dataclass(frozen=True)
class Block:
    """One block of a job, with its images.

    Args:
        job: what it belongs to.
        number: of the block.
        window: its prepared images.
        stages: where stages are kept, if anywhere.
    """

    job: Job
    number: int
    window: Window
    stages: StageFiles | None = None

    @cached_property
    def positions(self) -> range:
        """Where its images stand in the data set's order."""
        return self.job.cell.blocks[self.number]

    @cached_property
    def listing(self) -> npt.NDArray[np.int64]:
        """Where its images stand in the data set's listing (N,)."""
        return self.job.dataset.order[self.positions.start : self.positions.stop]

    @cached_property
    def image_ids(self) -> tuple[str, ...]:
        """The ids of its images."""
        return tuple(self.job.dataset.image_ids[index] for index in self.listing.tolist())

    @cached_property
    def targets(self) -> Tensor:
        """What the model should answer, on the host."""
        return self.job.task.targets(self.job.dataset, self.listing)

    @property
    def kept(self) -> int:
        """How many of its images, from the first, are kept."""
        return max(0, min(len(self.positions), self.job.how.keep_images - self.positions.start))

    def batches(self) -> Iterator[slice]:
        """Yield the block in parts of the model's batch size."""
        size, count = self.job.how.batch_size, len(self.positions)
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def pixels(self, part: slice) -> Tensor:
        """Return images of the block as float32 (N, 3, S, S) in [0, 1], on the model's device.

        Raises:
            DataError: pixels outside [0, 1].
        """
        x = torch.from_numpy(to_unit(self.window.images[part]))
        check_pixels(x, self.image_ids[part])
        return x.to(self.job.model.device)


def compute_block(block: Block) -> tuple[Records, Images]:
    """Return the records of a block, and those of its images that are kept.

    Raises:
        DataError: pixels outside [0, 1].
    """
    cell = block.job.cell
    # Attacks need autograd, which cannot be switched on inside a caller's inference mode.
    with full_precision(block.job.model.device), torch.inference_mode(False), torch.no_grad():
        columns, images = kind_of(cell.threat).computing()(block)
    return block_records(block, columns), images


def block_records(block: Block, columns: Mapping[str, Any]) -> Records:
    """Return records from the columns that the task and the threat fill; the common ones are added."""
    positions, cell = block.positions, block.job.cell
    common = {
        "index": np.arange(positions.start, positions.stop, dtype=np.int32),
        "image_id": np.array(block.image_ids, dtype=object),
        "input_crc": block.window.crcs,
    }
    return make_records({**common, **columns}, schema_of(cell.dataset, cell.threat))


def clean(block: Block) -> tuple[Columns, Images]:
    """Score the images as they are."""
    job = block.job
    parts = []
    for part in block.batches():
        outputs = job.model(block.pixels(part))
        parts.append(job.task.score(outputs, block.targets[part]))
        job.advance(part.stop - part.start)
    return joined(parts), kept_images(block)


def kept_images(block: Block) -> Images:
    """Return ids and clean pixels of the block's images that are kept, {} for none."""
    if not block.kept:
        return {}
    pixels = block.pixels(slice(0, block.kept)).numpy(force=True)
    return {"image_id": np.array(block.image_ids[: block.kept]), "clean": pixels}


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the columns of all parts, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check_pixels(x: Tensor, image_ids: Sequence[str]) -> None:
    """Refuse a batch with values outside [0, 1], naming the first such image and the likely cause.

    Raises:
        DataError: a value is below 0, above 1 or NaN.
    """
    inside = in_range(x, (0.0, 1.0))
    if not bool(inside.all()):
        first = int((~inside).nonzero()[0])
        low, high = float(x[first].min()), float(x[first].max())
        raise DataError(
            f"pixels must lie in [0, 1], but {image_ids[first]} has values from {low:.3g} to {high:.3g}: "
            "probably normalised already; normalisation belongs in the Classifier (mean=, std=)"
        )


def in_range(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return whether all values of each image (N,) lie within ``bounds``; NaN is outside."""
    return ((x >= bounds[0]) & (x <= bounds[1])).flatten(1).all(dim=1)
