"""Results arranged as a table of values, before any format is chosen.

One model gives a long grid, a row per threat. Several models give a wide one, a row per model and a group of
the task's metrics per threat, as papers print it. Both carry the notes without which the numbers mislead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import QuestError
from ..metrics import metric
from .result import ABSENT, DONE, Result, Value

MISSING = "-"
MARKS = "abcdefghijklmnopqrstuvwxyz"
UNITS = {"%": "in percent", "": "without unit"}

Entry: TypeAlias = str | Value


@dataclass(frozen=True)
class Grid:
    """A table of values.

    Args:
        groups: (title, number of columns) from left to right; the title is "" above columns that need none.
        columns: column heads.
        rows: text and values, one tuple per row.
        text_columns: how many of the first columns hold text (aligned left); the others hold numbers.
        notes: lines that belong below the table.
    """

    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    text_columns: int
    notes: tuple[str, ...]

    def printed(self) -> tuple[list[tuple[str, ...]], list[str]]:
        """Return rows and notes as text; flags and errors become marks that a note explains."""
        marks = _Marks()
        rows = [
            tuple(
                printable(entry) if isinstance(entry, str) else value_text(entry) + marks.of(entry)
                for entry in row
            )
            for row in self.rows
        ]
        return rows, [printable(note) for note in (*self.notes, *marks.notes)]


def printable(text: str) -> str:
    """Return ``text`` with what would break a line of a table, such as a newline in a file's name, escaped.

    >>> printable("vit\\nti")
    'vit\\\\nti'
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def value_text(value: Value) -> str:
    """Return a value as tables print it, without marks."""
    if value.state in (DONE, ABSENT):
        decimals = metric(value.metric).decimals
        return MISSING if value.number is None else f"{value.number:.{decimals}f}"
    return value.state


def make_grid(results: Sequence[Result]) -> Grid:
    """Return the grid of ``results``, at least one, of one task: wide for several models, else long."""
    if not results:
        raise QuestError("there are no results to print: expected at least one cell")
    models = {(r.model, r.weights, r.attention, r.dataset) for r in results}
    return _wide(results) if len(models) > 1 else _long(results)


def _long(results: Sequence[Result]) -> Grid:
    shown = _shown(results)
    clean = next((r.clean_metric for r in results if r.clean_metric), "")
    first = results[0]
    weights = f", weights {first.weights}" if first.weights else ""
    head = f"model {first.model}{weights}, attention {first.attention}"
    beside = [clean] if clean else []
    return Grid(
        groups=(("", 2 + len(beside) + len(shown)),),
        columns=("threat", "n", *(metric(name).title for name in (*beside, *shown))),
        rows=tuple(
            (r.title, str(r.n), *(_bare(r, name) for name in beside), *_values(r, shown)) for r in results
        ),
        text_columns=1,
        notes=(head, *_notes(results)),
    )


def _wide(results: Sequence[Result]) -> Grid:
    shown = _shown(results)
    threats = list(dict.fromkeys(r.title for r in results))
    several = len({r.dataset for r in results}) > 1
    rows: list[tuple[Entry, ...]] = []
    for group in _rows(results):
        first = next(iter(group.values()))
        model = f"{first.model} ({first.weights})" if first.weights else first.model
        head = (model, _attention(first, results), *([first.dataset] if several else []), str(first.n))
        rows.append((*head, *(value for threat in threats for value in _values(group.get(threat), shown))))
    columns = ("model", "attention", *(["data set"] if several else []), "n")
    return Grid(
        groups=(("", len(columns)), *((printable(threat), len(shown)) for threat in threats)),
        columns=(*columns, *([metric(name).title for name in shown] * len(threats))),
        rows=tuple(rows),
        text_columns=len(columns) - 1,
        notes=tuple(_notes(results)),
    )


def _shown(results: Sequence[Result]) -> list[str]:
    """Return the metrics of all results, in order; at least one, for the state of those that failed."""
    return list(dict.fromkeys(name for r in results for name in r.shown)) or ["top1"]


def _values(r: Result | None, shown: Sequence[str]) -> list[Value]:
    """Return the values of a threat; the first carries the flags, or the error, of all."""
    if r is None:
        return [Value(name, None, 0, ABSENT) for name in shown]
    first = replace(_bare(r, shown[0]), state=r.state, flags=r.flags, error=r.error)
    return [first, *(_bare(r, name) for name in shown[1:])]


def _bare(r: Result, name: str) -> Value:
    state = DONE if r.state == DONE else ABSENT
    return Value(name, r.numbers.get(name), r.n, state)


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


def _notes(results: Sequence[Result]) -> list[str]:
    shown = _shown(results)
    notes = [
        f"data set {', '.join(dict.fromkeys(r.dataset for r in results))}; {_units(shown)}, "
        "each over all n images, perturbed where attacked"
    ]
    notes.extend(dict.fromkeys(r.attention for r in results if r.attention != r.attention_name))
    done = [r for r in results if r.state == DONE]
    absent = [name for name in shown if any(r.numbers.get(name) is None for r in done)]
    notes.extend(metric(name).absent for name in absent if metric(name).absent)
    threatened = [r for r in results if r.settings != r.title]
    protocols = sorted({r.protocol for r in threatened if r.protocol})
    if protocols:
        unit = "; eps in units of pixels in [0, 1]" if any(r.eps for r in threatened) else ""
        notes.append(f"protocol {', '.join(protocols)}{unit}")
    notes.extend(dict.fromkeys(f"{r.title}: {r.settings}" for r in threatened))
    seeds = sorted({r.seed for r in threatened if r.seed is not None})
    if seeds:
        notes.append(f"seed {', '.join(map(str, seeds))}")
    return notes


def _units(shown: Sequence[str]) -> str:
    """Return the units of metrics: "Top-1 and Top-5 in percent, NLL in nats"."""
    by_unit: dict[str, list[str]] = {}
    for name in shown:
        by_unit.setdefault(metric(name).unit, []).append(metric(name).title)
    return ", ".join(
        f"{' and '.join(titles)} {UNITS.get(unit, f'in {unit}')}" for unit, titles in by_unit.items()
    )


class _Marks:
    """Letters that tie a value to a note below the table; one letter per distinct note."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def of(self, value: Value) -> str:
        """Return the marks of a value, such as " [a]"."""
        notes = [value.error] if value.error else [f"{flag}: {flag.meaning}" for flag in value.flags]
        return "".join(map(self._add, notes))

    def _add(self, note: str) -> str:
        count = len(self._letters)
        letter = self._letters.setdefault(note, MARKS[count] if count < len(MARKS) else str(count))
        return f" [{letter}]"

    @property
    def notes(self) -> list[str]:
        """The notes, each behind its mark."""
        return [f"[{letter}] {note}" for note, letter in self._letters.items()]
