"""Cells of one model and one data set into their store: what lacks is computed, what is there verified."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .block import Block, Images, Job, compute_block
from .datasets.window import Windows
from .environment import environment
from .errors import DataError, StoreError
from .names import names_of
from .records import Records, column
from .run import How
from .stored_cell import StoredCell
from .types import Note
from .verified_files import silent, write_atomically

STRETCH = 1024  # images that are held, as 8-bit pixels, for the jobs that read them


@dataclass
class Lacks:
    """What a store lacks of a cell.

    Args:
        missing: the numbers of the blocks that are not there, or are there and damaged.
        wanted: those, and the blocks whose images are asked for and not kept.
        error: why it cannot be known, or why the cell failed.
    """

    missing: set[int] = dataclasses.field(default_factory=set)
    wanted: set[int] = dataclasses.field(default_factory=set)
    error: Exception | None = None


def lacking(stored: StoredCell, how: How, note: Note = silent) -> Lacks:
    """Return what the store lacks of a cell that is asked for; every block that is there is verified.

    Writes the cell's cell.json. ``note`` is told of damage, which is computed again.
    """
    try:
        stored.write_cell(names_of(stored.cell), note)
        missing = _unusable(stored, note)
        return Lacks(missing, missing | _without_images(how, stored))
    except StoreError as error:
        return Lacks(error=error)


def complete(
    jobs: Sequence[Job], stored: Sequence[StoredCell], lacks: Sequence[Lacks], note: Note = silent
) -> list[Exception | None]:
    """Compute what the store lacks of jobs of one model and data set; return the error of each, or None."""
    for job, lack in zip(jobs, lacks, strict=True):
        for number, block in enumerate(job.cell.blocks):
            if lack.error is None and number not in lack.wanted:
                job.advance(len(block), computed=False)
    for done in compute(jobs, [lack.wanted for lack in lacks], stored):
        lack = lacks[done.job]
        try:
            records, images = unfailed(done)
            _keep(jobs[done.job], stored[done.job], done.number, records, images, lack.missing)
        except Exception as error:
            lack.error = lack.error or error
    return finish(stored, lacks, note)


def finish(
    stored: Sequence[StoredCell], lacks: Sequence[Lacks], note: Note = silent
) -> list[Exception | None]:
    """State of every cell without an error that it is done; return the error of each, or None."""
    for cell, lack in zip(stored, lacks, strict=True):
        try:
            if lack.error is None:
                cell.finish(note)
        except StoreError as error:
            lack.error = error
    return [lack.error for lack in lacks]


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


def _unusable(stored: StoredCell, note: Note) -> set[int]:
    """Return the numbers of the blocks that are missing or damaged."""
    foreign = stored.foreign()
    if foreign:
        note(f"{stored.path} holds files that are not the store's, and leaves them: {_few(foreign)}")
    damaged = stored.damaged()
    for _, path, reason in damaged:
        note(f"{path} {reason}; it is computed again")
    return {*stored.missing(), *(number for number, _, _ in damaged)}


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


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


def unfailed(done: Done) -> tuple[Records, Images]:
    """Return a block's records and kept images, or raise the error that ended its cell."""
    if done.error is not None or done.records is None:
        raise done.error or ValueError("a block without records and without an error")
    return done.records, done.images


def _images_path(stored: StoredCell, number: int) -> Path:
    return stored.path / f"block-{number:05d}.images.npz"


def _holds(path: Path, block: range, keep_images: int) -> bool:
    """Return whether a file of kept images is whole and has all that is asked for of its block."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path) as arrays:
            enough = len(arrays["image_id"]) >= min(len(block), keep_images - block.start)
            return enough and archive.testzip() is None
    except Exception:  # absent, or damaged: a zip reader has many ways to fail on that; made again
        return False


def _npz(images: Images) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **images)  # type: ignore[arg-type]  # numpy types allow_pickle as one of them
    return buffer.getvalue()
