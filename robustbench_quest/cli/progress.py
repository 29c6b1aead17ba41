"""Progress of long work: a bar on a terminal, plain lines otherwise. Always on stderr."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..block import Advance

LINE_EVERY = 10.0  # seconds


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Yield a function that is told of finished images; those from the store do not count for the rate."""
    state = _State(total)
    with _bar(title, state) if sys.stderr.isatty() else _lines(title, state) as advance:
        yield advance


class _State:
    """How far the work is."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.start = time.monotonic()
        self.done = 0.0
        self.computed = 0.0

    def add(self, images: float, computed: bool) -> None:
        self.done += images
        self.computed += images if computed else 0.0

    @property
    def count(self) -> int:
        return int(self.done + 1e-6)  # fractions add up to a whole number, give or take rounding

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def rate(self) -> float:
        """Images computed per second."""
        return self.computed / max(self.seconds, 1e-9)

    @property
    def left(self) -> str:
        """The time that the rest takes at this rate."""
        if not self.computed:
            return "-:--:--"
        return str(datetime.timedelta(seconds=round((self.total - self.done) / self.rate)))


@contextlib.contextmanager
def _bar(title: str, state: _State) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    # Counts come first: a narrow terminal cuts what comes last.
    rate, name = TextColumn("{task.fields[rate]}"), TextColumn("{task.description}")
    columns = (MofNCompleteColumn(), rate, BarColumn(), name)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=state.total, rate="")

        def advance(images: float, computed: bool = True) -> None:
            state.add(images, computed)
            bar.update(task, completed=state.count, rate=f"{state.rate:.1f} images/s, {state.left} left")

        yield advance


@contextlib.contextmanager
def _lines(title: str, state: _State) -> Iterator[Advance]:
    last = state.start

    def advance(images: float, computed: bool = True) -> None:
        nonlocal last
        state.add(images, computed)
        now = time.monotonic()
        if now - last >= LINE_EVERY and state.computed:
            last = now
            rate = f"{state.rate:.1f} images/s, {state.left} left"
            print(f"{title}: {state.count}/{state.total} images, {rate}", file=sys.stderr)

    yield advance
    if state.computed:
        print(f"{title}: {state.count} images in {state.seconds:.1f} s", file=sys.stderr)
