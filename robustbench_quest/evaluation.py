"""Cells of one model and one data set: which blocks are missing, compute them, keep them."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .block import Advance, Block, Images, Job, compute_block
from .datasets.window import Windows
from .environment import environment
from .errors import DataError, OptionError, unknown
from .protocols import load_protocol
from .records import Records, column
from .run import How, Run
from .store import Store, StoredCell, write_atomically
from .tasks import task_of
from .threats import kind_of
from .types import CLEAN, AttackSide, Cell, DatasetSpec, ModelSpec, Note, Threat

if TYPE_CHECKING:
    from .datasets.base import Dataset
    from .models.classifier import Classifier

STRETCH = 1024  # images that are held, as 8-bit pixels, for the jobs that read them


def evaluate(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    store: str | Store | None = None,
    advance: Advance | None = None,
    **settings: Any,
) -> Records:
    """Return the records of a cell: read from the store where they are there, computed where they are not.

    Args:
        model: a Classifier; its state, training flags and gradients are left as they were.
        dataset: images and labels.
        threat: CLEAN, or what ``threat(name, ...)`` returns.
        store: folder of the result store; None keeps nothing.
        advance: told of progress.
        settings: fields of ``Run`` (limit, seed, block_size, protocol, adaptive) and of ``How`` (batch_size,
            workers, keep_images), by name.

    Raises:
        QuestError: the model was changed after it was wrapped.
        OptionError: no such setting, or a size that makes no sense.
        DataError: labels that the model cannot predict, or an image that cannot be read.
        StoreError: the store is damaged or cannot be written to.
    """
    model.check_unchanged()
    run, how = _split(settings)
    kept = Store(store) if isinstance(store, str) else store
    if kept is not None:
        dataset.remember_contents_in(kept.contents)
    if how.keep_images and kept is None:
        raise OptionError(f"keep_images={how.keep_images} needs a store to keep them in")
    cell = make_cell(model.spec, dataset, threat, run)
    job = Job(model, dataset, cell, how, advance or _ignore)
    if kept is None:
        wanted = set(range(len(cell.blocks)))
        return pa.concat_tables([_unfailed(done)[0] for done in compute([job], [wanted])])
    stored = kept.cell(cell)
    for error in complete([job], [stored]):
        if error is not None:
            raise error
    return stored.read()


def make_cell(
    model: ModelSpec,
    dataset: Dataset,
    threat: Threat = CLEAN,
    run: Run | None = None,
    spec: DatasetSpec | None = None,
) -> Cell:
    """Return the cell of a model, a data set and a threat, after checking that they fit together.

    A cell holds of ``run`` what can change its numbers: the seed where the threat draws, the space and the
    gradient of an attack where it sees the model. Clean cells are the same under every seed and protocol.
    ``spec`` is the data set's, for who asked it already; finding it out looks at every file.

    Raises:
        OptionError: a threat that makes no sense for the model.
        DataError: labels that the model cannot predict.
    """
    run = run or Run()
    kind = kind_of(threat)
    if not len(dataset):
        raise DataError(f"data set {dataset.name} holds no images")
    spec = dataset.spec if spec is None else spec
    task_of(spec).check(model, dataset)
    kind.check(threat, model)
    protocol = load_protocol(run.protocol)
    adaptive = protocol.adaptive if run.adaptive is None else run.adaptive
    return Cell(
        model=model,
        dataset=spec,
        threat=threat,
        limit=len(dataset) if run.limit is None else min(run.limit, len(dataset)),
        block_size=run.block_size or kind.block_size,
        seed=run.seed if kind.seeded else None,
        side=AttackSide(protocol.space, adaptive) if kind.sees_model else None,
        protocol=protocol.name if kind.sees_model else "",
    )


@dataclass(frozen=True)
class Done:
    """A block that was computed, or the error that ended its cell."""

    job: int
    number: int
    records: Records | None = None
    images: Images = dataclasses.field(default_factory=dict)
    error: Exception | None = None


def compute(
    jobs: Sequence[Job], wanted: Sequence[set[int]], stored: Sequence[StoredCell] | None = None
) -> Iterator[Done]:
    """Yield the wanted blocks of jobs of one model and one data set, each image read once for all of them.

    The jobs go through the data set together, a stretch at a time, in the order given: clean images first, so
    that a model that is no good is seen before it is attacked. An error ends its own job and no other.

    Args:
        jobs: what to compute; they share ``how``.
        wanted: of each job, the numbers of its blocks.
        stored: where each job is kept, for stages; None keeps none.
    """
    first = jobs[0]
    stretch = max(STRETCH, *(job.cell.block_size for job in jobs))
    plan = sorted(
        (job.cell.blocks[number].start // stretch, index, number)
        for index, job in enumerate(jobs)
        for number in wanted[index]
    )
    positions = sorted({p for _, index, number in plan for p in jobs[index].cell.blocks[number]})
    ended: set[int] = set()
    how = first.how
    with Windows(first.dataset, first.model.preprocessing, positions, how.batch_size, how.workers) as windows:
        for place, index, number in plan:
            if index in ended:
                continue
            job = jobs[index]
            windows.forget_before(place * stretch)
            try:
                window = windows.window(job.cell.blocks[number])
                stages = stored[index].stages(number) if stored else None
                records, images = compute_block(Block(job, number, window, stages))
            except Exception as error:
                ended.add(index)
                yield Done(index, number, error=error)
            else:
                yield Done(index, number, records, images)


def complete(
    jobs: Sequence[Job], stored: Sequence[StoredCell], note: Note | None = None
) -> list[Exception | None]:
    """Compute what the store lacks of jobs of one model and one data set; return the error of each, or None.

    ``note`` is told what a user should know, one line each.

    Raises:
        StoreError: the store cannot be written to.
    """
    errors: list[Exception | None] = [None] * len(jobs)
    missing: list[set[int]] = []
    wanted: list[set[int]] = []
    for index, (job, cell) in enumerate(zip(jobs, stored, strict=True)):
        cell.write_cell(_names(job))
        missing.append(set(cell.missing()))
        wanted.append(missing[index] | _without_images(job.how, cell))
        for number, block in enumerate(job.cell.blocks):
            if number not in wanted[index]:
                job.advance(len(block), computed=False)
    for done in compute(jobs, wanted, stored):
        try:
            records, images = _unfailed(done)
            _keep(jobs[done.job], stored[done.job], done.number, records, images, missing[done.job])
        except Exception as error:
            errors[done.job] = errors[done.job] or error
    for index, cell in enumerate(stored):
        if errors[index] is None:
            cell.finish()
    return errors


def is_complete(stored: StoredCell, how: How) -> bool:
    """Return whether the store has all of a cell that is asked for."""
    return not stored.missing() and not _without_images(how, stored)


def _keep(
    job: Job, stored: StoredCell, number: int, records: Records, images: Images, missing: set[int]
) -> None:
    """Write a block, unless it is there and only its images were asked for."""
    if number in missing:
        if images:
            write_atomically(_images_path(stored, number), _npz(images))
        how = {"batch_size": job.how.batch_size, "workers": job.how.workers}
        stored.write_block(number, records, {**environment(job.model.device), **how})
        return
    _same_pixels(stored.read_block(number), records)
    write_atomically(_images_path(stored, number), _npz(images))


def _same_pixels(before: Records, now: Records) -> None:
    """Refuse images whose pixels are no longer those of the records that are kept.

    Raises:
        DataError: naming the first.
    """
    changed = np.flatnonzero(column(before, "input_crc") != column(now, "input_crc"))
    if len(changed):
        name = column(now, "image_id")[changed[0]]
        raise DataError(
            f"{name} has other pixels than when its records were made: another decoder, or a file that was "
            "replaced; use another store, or give the data as it was"
        )


def _without_images(how: How, stored: StoredCell) -> set[int]:
    """Return the blocks whose images are asked for and not kept; their records are left as they are."""
    wanted = how.keep_images
    return {
        number
        for number, block in enumerate(stored.cell.blocks)
        if block.start < wanted and not _holds(_images_path(stored, number), block, wanted)
    }


def _unfailed(done: Done) -> tuple[Records, Images]:
    if done.error is not None or done.records is None:
        raise done.error or ValueError("a block without records and without an error")
    return done.records, done.images


def _split(settings: dict[str, Any]) -> tuple[Run, How]:
    """Return the settings of a run, and how it is done."""
    names = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (Run, How)}
    for name in settings:
        if name not in names[Run] | names[How]:
            raise OptionError(unknown("setting", name, names[Run] | names[How]))
    run, how = ({name: settings[name] for name in settings if name in names[kind]} for kind in (Run, How))
    return Run(**run), How(**how)


def _names(job: Job) -> dict[str, Any]:
    """Return what people read of a cell."""
    model = job.cell.model
    return {
        "model": model.name,
        "attention": str(model.attention or "own"),
        "protocol": job.cell.protocol,
        "threat": kind_of(job.cell.threat).text(job.cell.threat),
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


def _ignore(images: float, computed: bool = True) -> None:
    return None
