"""Tables from results: arranged once, printed in any format. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import OptionError, QuestError, unknown
from .grid import make_grid
from .latex import to_latex
from .result import Result, Value, failed, result_of
from .terminal import to_text
from .tidy import to_csv, to_json

__all__ = ["FORMATS", "Result", "Value", "failed", "render", "result_of"]

FORMATS: dict[str, Callable[[Sequence[Result]], str]] = {
    "table": lambda results: to_text(make_grid(results)),
    "csv": to_csv,
    "latex": lambda results: to_latex(make_grid(results)),
    "json": to_json,
}


def render(results: Sequence[Result], form: str) -> str:
    """Return ``results`` as text in the format ``form``: table, csv, latex or json.

    Raises:
        OptionError: no such format.
        QuestError: there are no results, or they are of several tasks, whose numbers do not compare.
    """
    if form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    tasks = sorted({r.task for r in results})
    if len(tasks) > 1:
        raise QuestError(f"a table holds one task, but these results are of {' and '.join(tasks)}")
    return FORMATS[form](results)
