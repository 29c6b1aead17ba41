"""Results arranged as a table of text, before any format is chosen.

One model gives a long grid, a row per threat. Several models give a wide one, a row per model and a group of
Top-1, Top-5 and NLL per threat, as papers print it. Both carry the notes without which the numbers mislead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import QuestError
from .result import Result

MISSING = "-"
MARKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Args:
        groups: (title, number of columns) from left to right; the title is "" above columns that need none.
        columns: column heads.
        rows: cells, one tuple per row.
        text_columns: how many of the first columns hold text (aligned left); the others hold numbers.
        notes: lines that belong below the table.
    """

    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int
    notes: tuple[str, ...]


def make_grid(results: Sequence[Result]) -> Grid:
    """Return the grid of ``results``, at least one: wide for several models, else long."""
    if not results:
        raise QuestError("there are no results to print: expected at least one cell")
    models = {(r.model, r.weights, r.attention, r.dataset) for r in results}
    return _wide(results) if len(models) > 1 else _long(results)


def _long(results: Sequence[Result]) -> Grid:
    marks = _Marks()
    rows = [(r.title, str(r.n), number(r.clean_top1), *_numbers(r, marks)) for r in results]
    first = results[0]
    weights = f", weights {first.weights}" if first.weights else ""
    head = f"model {first.model}{weights}, attention {first.attention}"
    return Grid(
        groups=(("", 6),),
        columns=("threat", "n", "clean Top-1", "Top-1", "Top-5", "NLL"),
        rows=tuple(rows),
        text_columns=1,
        notes=(head, *_notes(results), *marks.notes),
    )


def _wide(results: Sequence[Result]) -> Grid:
    marks = _Marks()
    threats = list(dict.fromkeys(r.title for r in results))
    several = len({r.dataset for r in results}) > 1
    rows = []
    for group in _rows(results):
        first = next(iter(group.values()))
        model = f"{first.model} ({first.weights})" if first.weights else first.model
        head = (model, _attention(first, results), *([first.dataset] if several else []), str(first.n))
        rows.append((*head, *(text for threat in threats for text in _numbers(group.get(threat), marks))))
    columns = ("model", "attention", *(["data set"] if several else []), "n")
    return Grid(
        groups=(("", len(columns)), *((threat, 3) for threat in threats)),
        columns=(*columns, *(("Top-1", "Top-5", "NLL") * len(threats))),
        rows=tuple(rows),
        text_columns=len(columns) - 1,
        notes=(*_notes(results), *marks.notes),
    )


def _rows(results: Sequence[Result]) -> list[dict[str, Result]]:
    """Return the results that share a row, by the title of their threat.

    Different n never share a row: they are not the same experiment. A threat that comes twice begins a new
    row.
    """
    rows: list[tuple[tuple[object, ...], dict[str, Result]]] = []
    for r in results:
        key = (r.model, r.weights, r.attention, r.dataset, r.n)
        place = next((row for found, row in rows if found == key and r.title not in row), None)
        if place is None:
            rows.append((key, place := {}))
        place[r.title] = r
    return [row for _, row in rows]


def _attention(r: Result, results: Sequence[Result]) -> str:
    """Return the variant's name, with its options only where the table holds it with different ones."""
    variants = {other.attention for other in results if other.attention_name == r.attention_name}
    return r.attention if len(variants) > 1 else r.attention_name


def number(value: float | None) -> str:
    """Return a value with two decimals, "-" for None."""
    return MISSING if value is None else f"{value:.2f}"


def _numbers(r: Result | None, marks: _Marks) -> tuple[str, str, str]:
    if r is None:
        return (MISSING, MISSING, MISSING)
    if r.error:
        return (f"failed{marks.add(r.error)}", MISSING, MISSING)
    mark = "".join(marks.add(f"{flag}: {flag.meaning}") for flag in r.flags)
    nll = MISSING if r.nll is None else "inf" if math.isinf(r.nll) else f"{r.nll:.3f}"
    return (number(r.top1) + mark, number(r.top5), nll)


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [
        f"data set {', '.join(dict.fromkeys(r.dataset for r in results))}; Top-1 and Top-5 in percent, "
        "NLL in nats, each over all n images, perturbed where attacked"
    ]
    notes.extend(dict.fromkeys(r.attention for r in results if r.attention != r.attention_name))
    if any(r.top5 is None and not r.error for r in results):
        notes.append("Top-5 needs at least five classes")
    attacked = [r for r in results if r.eps]
    if attacked:
        notes.append(
            f"protocol {', '.join(sorted({r.protocol for r in attacked}))}; eps in units of pixels in [0, 1]"
        )
        notes.extend(dict.fromkeys(f"{r.title}: {r.settings}" for r in attacked))
    seeds = sorted({r.seed for r in attacked if r.seed is not None})
    if seeds:
        notes.append(f"seed {', '.join(map(str, seeds))}")
    return notes


class _Marks:
    """Letters that tie a cell to a note below the table; one letter per distinct note."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def add(self, note: str) -> str:
        """Return the mark for ``note``, such as " [a]"."""
        count = len(self._letters)
        letter = self._letters.setdefault(note, MARKS[count] if count < len(MARKS) else str(count))
        return f" [{letter}]"

    @property
    def notes(self) -> list[str]:
        """The notes, each behind its mark."""
        return [f"[{letter}] {note}" for note, letter in self._letters.items()]
