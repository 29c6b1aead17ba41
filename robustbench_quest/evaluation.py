"""One cell: which blocks are missing, compute them, keep them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .block import Advance, Images, Job, compute_block
from .environment import environment
from .errors import DataError, OptionError
from .records import Records
from .store import Store, StoredCell, write_atomically
from .types import CLEAN, Cell, Threat

if TYPE_CHECKING:
    from .datasets.base import Dataset
    from .models.classifier import Classifier

CLEAN_BLOCK = 1024
ATTACK_BLOCK = 256
DEFAULT_BATCH = 32


def evaluate(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    store: str | Store | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = DEFAULT_BATCH,
    block_size: int | None = None,
    protocol: str = "pixel",
    workers: int = 0,
    keep_images: int = 0,
    advance: Advance | None = None,
) -> Records:
    """Return the records of a cell: read from the store where they are there, computed where they are not.

    Args:
        model: a Classifier; its state, training flags and gradients are left as they were.
        dataset: images and labels.
        threat: CLEAN, or what ``threat(name, ...)`` returns.
        store: folder of the result store; None keeps nothing.
        limit: number of images, a prefix of the data set's fixed order; None is all.
        seed: of every draw.
        batch_size: images per model call; splits a block and changes no draw.
        block_size: images per block, the unit of work and resume; default 1,024, for attacks 256.
        protocol: named attack settings; decides the space in which attacks run.
        workers: processes that read images; 0 reads in this one.
        keep_images: clean and perturbed pixels of the first images to keep beside the cell as npz.
        advance: told of progress.

    Raises:
        QuestError: the model was changed after it was wrapped.
        OptionError: a size that makes no sense.
        DataError: labels that the model cannot predict, or an image that cannot be read.
        StoreError: the store is damaged or cannot be written to.
    """
    model.check_unchanged()
    check_sizes(batch_size, workers, keep_images)
    if keep_images and store is None:
        raise OptionError(f"keep_images={keep_images} needs a store to keep them in")
    cell = make_cell(model, dataset, threat, limit=limit, seed=seed, block_size=block_size, protocol=protocol)
    job = Job(model, dataset, cell, batch_size, workers, keep_images, advance or _ignore)
    if store is None:
        return pa.concat_tables([compute_block(job, number)[0] for number in range(len(cell.blocks))])
    return _complete(job, (store if isinstance(store, Store) else Store(store)).cell(cell))


def make_cell(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    limit: int | None = None,
    seed: int = 0,
    block_size: int | None = None,
    protocol: str = "pixel",
) -> Cell:
    """Return the cell of a model, a data set and a threat, after checking that they fit together.

    Raises:
        OptionError: ``limit`` or ``block_size`` is not positive.
        DataError: labels that the model cannot predict.
    """
    _check_at_least(1, {"--limit": limit, "--block-size": block_size})
    _check_labels(model, dataset)
    size = len(dataset.image_ids)
    return Cell(
        model=model.spec,
        dataset=dataset.spec,
        threat=threat,
        limit=size if limit is None else min(limit, size),
        seed=seed,
        block_size=block_size or (CLEAN_BLOCK if threat.is_clean else ATTACK_BLOCK),
        protocol=protocol,
    )


def check_sizes(batch_size: int, workers: int, keep_images: int) -> None:
    """Refuse sizes that make no sense; they change no number.

    Raises:
        OptionError: one is too small.
    """
    _check_at_least(1, {"--batch-size": batch_size})
    _check_at_least(0, {"--workers": workers, "--keep-images": keep_images})


def _complete(job: Job, stored: StoredCell) -> Records:
    """Compute what the store lacks, block by block; return everything."""
    blocks = job.cell.blocks
    missing = set(stored.missing())
    # Images that are asked for once a cell is finished are computed again, and its records left as they are.
    without_images = {
        number
        for number, block in enumerate(blocks)
        if block.start < job.keep_images and not _holds(_images_path(stored, number), block, job.keep_images)
    }
    stored.write_cell(_names(job))
    for number, block in enumerate(blocks):
        if number not in missing | without_images:
            job.advance(len(block), computed=False)
            continue
        records, images = compute_block(job, number)
        if images:
            write_atomically(_images_path(stored, number), _npz(images))
        if number in missing:
            side = {**environment(job.model.device), "batch_size": job.batch_size, "workers": job.workers}
            stored.write_block(number, records, side)
    return stored.finish()


def _names(job: Job) -> dict[str, Any]:
    """Return what people read of a cell."""
    model = job.cell.model
    return {
        "model": model.name,
        "attention": str(model.attention or "own"),
        "dataset": job.dataset.name,
        "threat": repr(job.attack) if job.attack else "clean",
        "sources": dict(model.sources),
        "guessed": list(model.guessed),
        "num_classes": model.num_classes,
    }


def _images_path(stored: StoredCell, number: int) -> Path:
    return stored.path / f"block-{number:05d}.images.npz"


def _holds(path: Path, block: range, keep_images: int) -> bool:
    """Return whether a file of kept images has all that is asked for of its block."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return len(arrays["image_id"]) >= min(len(block), keep_images - block.start)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # absent, or damaged: made again
        return False


def _npz(images: Images) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **images)  # type: ignore[arg-type]  # numpy types allow_pickle as one of them
    return buffer.getvalue()


def _check_labels(model: Classifier, dataset: Dataset) -> None:
    labels = dataset.labels
    if not len(labels):
        raise DataError(f"data set {dataset.name} holds no images")
    if int(labels.max()) >= model.num_classes or int(labels.min()) < 0:
        worst = int(labels.argmax()) if int(labels.max()) >= model.num_classes else int(labels.argmin())
        raise DataError(
            f"label {int(labels[worst])} of {dataset.image_ids[worst]} is out of range: the model has "
            f"classes 0-{model.num_classes - 1}; check the labels, or take the checkpoint for this data"
        )
    if dataset.num_classes is not None and dataset.num_classes != model.num_classes:
        raise DataError(
            f"data set {dataset.name} has {dataset.num_classes} classes, the model {model.num_classes}; "
            "check --data and --ckpt"
        )


def _check_at_least(least: int, values: Mapping[str, int | None]) -> None:
    for flag, value in values.items():
        if value is not None and value < least:
            raise OptionError(f"{flag} must be at least {least}, but is {value}")


def _ignore(images: float, computed: bool = True) -> None:
    return None
