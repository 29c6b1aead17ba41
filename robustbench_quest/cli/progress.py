"""Progress of long work: a bar on a terminal, plain lines otherwise. Always on stderr."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..names import cell_title

if TYPE_CHECKING:
    from ..block import Advance
    from ..types import Cell

LINE_EVERY = 10.0  # seconds


@dataclass
class Work:
    """How far a cell is. Only images that are computed count for the rate."""

    title: str
    total: int
    done: float = 0.0
    computed: float = 0.0
    seconds: float = 0.0
    ended: bool = False

    @property
    def count(self) -> int:
        """Whole images done."""
        return int(self.done + 1e-6)  # fractions add up to a whole number, give or take rounding

    @property
    def rate(self) -> str:
        """Images per second, and the time that the rest takes."""
        rate = self.computed / max(self.seconds, 1e-9)
        left = datetime.timedelta(seconds=round((self.total - self.done) / max(rate, 1e-9)))
        return f"{rate:.1f} images/s, {left} left"


class Show(Protocol):
    """Shows how far a cell is."""

    def __call__(self, work: Work) -> None:
        """Show it, unless it was shown a moment ago."""


class Progress:
    """Tells how far the cells of a command are, which take turns.

    Args:
        show: shows the cell that is at work.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._last = time.monotonic()

    def of(self, cell: Cell) -> Advance:
        """Return what is told of a cell's progress."""
        work = Work(cell_title(cell), cell.limit)
        self._last = time.monotonic()

        def advance(images: float, computed: bool = True) -> None:
            # Cells take turns: the time since anything was reported is that of the cell that reports now.
            now = time.monotonic()
            elapsed, self._last = now - self._last, now
            work.done += images
            if computed:
                work.computed += images
                work.seconds += elapsed
            self._show(work)
            if computed and not work.ended and work.done >= work.total - 1e-6:
                work.ended = True
                print(f"{work.title}: {work.total} images in {work.seconds:.1f} s", file=sys.stderr)

        return advance


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Yield the progress of a command, shown as standard error allows."""
    with _bar() if sys.stderr.isatty() else contextlib.nullcontext(_Lines()) as show:
        yield Progress(show)


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, work: Work) -> None:
        now = time.monotonic()
        if work.computed and now - self._last >= LINE_EVERY:
            self._last = now
            print(f"{work.title}: {work.count}/{work.total} images, {work.rate}", file=sys.stderr)


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    # Counts come first: a narrow terminal cuts what comes last.
    rate, name = TextColumn("{task.fields[rate]}"), TextColumn("{task.description}")
    with Bar(
        MofNCompleteColumn(), rate, BarColumn(), name, console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", rate="")

        def show(work: Work) -> None:
            rate = work.rate if work.computed else ""
            bar.update(task, completed=work.count, total=work.total, description=work.title, rate=rate)

        yield show
