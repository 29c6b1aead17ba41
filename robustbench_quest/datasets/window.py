"""The images that several cells read, each decoded once.

Cells of one model and one data set see the same prepared images. They go through the data set together, a
stretch of its order at a time, and a window holds the images of that stretch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..types import Preprocessing
from .base import Dataset
from .loader import Batch, load_batches


@dataclass(frozen=True, eq=False)
class Window:
    """Prepared images of one block: (N, S, S, 3) uint8, and the CRC-32 of each as float32 pixels (N,)."""

    images: npt.NDArray[np.uint8]
    crcs: npt.NDArray[np.uint32]


class Windows:
    """Gives windows, reading ahead with one set of workers.

    Args:
        dataset: where the images come from.
        preprocessing: what to do with each.
        positions: every position of the data set's order that will be asked for, rising.
        batch_size: images that a worker reads at a time.
        workers: processes that read; 0 reads in this one.
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: Preprocessing,
        positions: Iterable[int],
        batch_size: int,
        workers: int,
    ) -> None:
        self._dataset = dataset
        self._preprocessing = preprocessing
        self._positions = list(positions)
        self._how = (batch_size, workers)
        self._held: dict[int, tuple[npt.NDArray[np.uint8], np.uint32]] = {}
        self._batches: Generator[Batch, None, None] | None = None
        self._coming: list[int] = []

    def window(self, block: range) -> Window:
        """Return the images of a block.

        Raises:
            DataError: one of them cannot be read; the others can be asked for again.
        """
        while lacking := [position for position in block if position not in self._held]:
            try:
                self._read_on(lacking[0])
            except DataError:
                # A batch may reach into the next block: what cannot be read there is no fault of this one.
                with closing(self._reading(lacking)) as batches:
                    for batch in batches:
                        self._hold(lacking, batch)
        held = [self._held[position] for position in block]
        return Window(np.stack([image for image, _ in held]), np.array([crc for _, crc in held]))

    def forget_before(self, position: int) -> None:
        """Let go of images that stand before ``position``."""
        self._held = {place: image for place, image in self._held.items() if place >= position}

    def _read_on(self, start: int) -> None:
        """Read the next batch; from ``start``, where reading has not begun or is past it."""
        if self._batches is None or not self._coming or start < self._coming[0]:
            self.close()
            wanted = [place for place in self._positions if place >= start and place not in self._held]
            self._coming = wanted
            self._batches = self._reading(wanted)
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()
            raise
        self._hold(self._coming, batch)

    def _reading(self, places: list[int]) -> Generator[Batch, None, None]:
        return load_batches(self._dataset, self._preprocessing, self._dataset.order[places], *self._how)

    def _hold(self, coming: list[int], batch: Batch) -> None:
        """Keep a batch, whose images stand at the first places of ``coming``; these are taken from the
        list."""
        count = len(batch.images)
        places, coming[:count] = coming[:count], []
        self._held.update(zip(places, zip(batch.images, batch.input_crc, strict=True), strict=True))

    def close(self) -> None:
        """End the workers."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def __enter__(self) -> Windows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
