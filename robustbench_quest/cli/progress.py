"""Progress of long work: a bar on a terminal, plain lines otherwise. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

LINE_EVERY = 10.0  # seconds


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[float], None]]:
    """Yield a function that is told how many images (or fractions) were finished since its last call."""
    with _bar(title, total) if sys.stderr.isatty() else _lines(title, total) as advance:
        yield advance


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    start, done = time.monotonic(), 0.0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, rate="")

        def advance(images: float) -> None:
            nonlocal done
            done += images
            rate = done / max(time.monotonic() - start, 1e-9)
            bar.update(task, completed=int(done + 1e-6), rate=f"{rate:.1f} images/s")

        yield advance


@contextlib.contextmanager
def _lines(title: str, total: int) -> Iterator[Callable[[float], None]]:
    start = last = time.monotonic()
    done = 0.0

    def advance(images: float) -> None:
        nonlocal done, last
        done += images
        now = time.monotonic()
        if now - last >= LINE_EVERY and done > 0:
            last = now
            left = (now - start) * (total - done) / done
            rate = done / (now - start)
            print(
                f"{title}: {done:.0f}/{total} images, {rate:.1f} images/s, {left:.0f} s left", file=sys.stderr
            )

    yield advance
