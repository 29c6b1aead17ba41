"""Batches of prepared images, in the order asked for, from this process or from worker processes.

Workers return what this process would compute, so their number changes speed and nothing else.
"""

from __future__ import annotations

import signal
import sys
import warnings
import zlib
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ..errors import DataError, OptionError, QuestError
from ..types import Preprocessing
from .base import Dataset
from .transform import resize_and_crop, to_unit

# A fork takes milliseconds where a fresh interpreter that imports torch takes seconds, and it works from
# scripts without a __main__ guard. It is safe here although the parent has threads and perhaps a GPU: workers
# run Pillow, NumPy and zlib on one thread and never touch the device. Outside Linux, system libraries do not
# survive a fork.
START_METHOD = "fork" if sys.platform.startswith("linux") else "spawn"


@dataclass(frozen=True, eq=False)
class Batch:
    """Prepared images.

    Args:
        indices: (B,) int64, positions in the data set's listing.
        images: (B, S, S, 3) uint8, RGB; as floats they would be four times the size.
        input_crc: (B,) uint32, the CRC-32 of each image's float32 (3, S, S) bytes.
    """

    indices: npt.NDArray[np.int64]
    images: npt.NDArray[np.uint8]
    input_crc: npt.NDArray[np.uint32]


def load_batches(
    dataset: Dataset,
    preprocessing: Preprocessing,
    indices: Sequence[int] | npt.NDArray[np.int64],
    batch_size: int,
    workers: int,
) -> Generator[Batch, None, None]:
    """Return a generator of the images at ``indices``, in that order, ``batch_size`` at a time.

    The global random state is left alone. At most one batch per worker is ready or in the making, and no
    worker outlives the iterator.

    Args:
        dataset: where the images come from.
        preprocessing: what to do with each.
        indices: positions in the listing.
        batch_size: images per batch, the last may have fewer.
        workers: processes that load; 0 loads in this one.

    Raises:
        OptionError: batch_size below 1, or workers below 0.
        IndexError: an index is outside the listing.
        DataError: while iterating, an image cannot be read or prepared; earlier batches were delivered.
    """
    if batch_size < 1:
        raise OptionError(f"expected a batch size of at least 1, found {batch_size}; change --batch-size")
    if workers < 0:
        raise OptionError(f"expected 0 or more workers, found {workers}; change --workers")
    wanted = [int(index) for index in indices]
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(dataset):
        raise IndexError(
            f"expected indices from 0 to {len(dataset) - 1}, found {min(wanted)} to {max(wanted)}"
        )
    chunks = [wanted[start : start + batch_size] for start in range(0, len(wanted), batch_size)]
    return _batches(_Chunks(dataset, preprocessing, chunks), min(workers, len(chunks)))


Loaded = tuple[Tensor, npt.NDArray[np.uint32]]
"""The 8-bit images of a chunk, (B, S, S, 3), and their CRCs, (B,). Floats would be four times the traffic."""


class _Chunks(TorchDataset[Loaded | QuestError]):
    """The work by number: what a worker is asked for, and what it answers."""

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing, chunks: list[list[int]]) -> None:
        self.dataset = dataset
        self.preprocessing = preprocessing
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> Loaded | QuestError:
        """Load one chunk. An error is an answer: raised, it would reach the parent wrapped in a traceback."""
        try:
            images = [self._load(index) for index in self.chunks[number]]
        except QuestError as error:
            return error
        crcs = [zlib.crc32(to_unit(image).tobytes()) for image in images]
        return torch.from_numpy(np.stack(images)), np.array(crcs, dtype=np.uint32)

    def _load(self, index: int) -> npt.NDArray[np.uint8]:
        image = self.dataset.read(index)
        try:
            return resize_and_crop(image, self.preprocessing)
        except DataError as error:
            raise DataError(f"{self.dataset.image_ids[index]}: {error}") from None


def _batches(work: _Chunks, workers: int) -> Generator[Batch, None, None]:
    answers = _from_workers(work, workers) if workers else (work[number] for number in range(len(work)))
    # Closed by name: a traceback that holds this frame would otherwise hold the workers.
    with closing(answers):
        for chunk, answer in zip(work.chunks, answers, strict=True):
            if isinstance(answer, QuestError):
                raise answer
            images, crcs = answer
            yield Batch(
                indices=np.array(chunk, dtype=np.int64),
                images=images.numpy(),
                input_crc=crcs,
            )


def _from_workers(work: _Chunks, workers: int) -> Generator[Loaded | QuestError, None, None]:
    # Python warns of any fork with threads, and torch of more workers than cores; see START_METHOD, and the
    # number is the user's.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        loader = DataLoader(
            work,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=workers,
            prefetch_factor=1,
            multiprocessing_context=START_METHOD,
            # Without a generator of its own a loader draws its workers' seeds from the global one.
            generator=torch.Generator(),
        )
        with _interrupts_held():
            answers = iter(loader)
    try:
        yield from answers
    finally:
        # Ends the workers now, and not when the last reference to the iterator goes.
        answers._shutdown_workers()  # type: ignore[attr-defined]
        # What torch resorts to for a worker that does not end is a signal that is kept from them.
        for worker in answers._workers:  # type: ignore[attr-defined]
            worker.kill()


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Let Ctrl-C and SIGTERM wait while workers start, and keep them from the workers for good.

    An interrupt in the middle of a fork is lost or leaves half a loader; one that reaches a worker makes it
    print a traceback, or torch print that it died. The parent gets it, and ends the workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unchanged(answer: Any) -> Any:
    return answer
