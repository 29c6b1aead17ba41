"""Tables from results: arranged once, printed in any format. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import OptionError, unknown
from .grid import make_grid
from .latex import to_latex
from .result import Result, result
from .terminal import to_text
from .tidy import to_csv, to_json

__all__ = ["FORMATS", "Result", "render", "result"]

FORMATS: dict[str, Callable[[Sequence[Result]], str]] = {
    "table": lambda results: to_text(make_grid(results)),
    "csv": to_csv,
    "latex": lambda results: to_latex(make_grid(results)),
    "json": to_json,
}


def render(results: Sequence[Result], form: str) -> str:
    """Return ``results`` as text in the format ``form``: table, csv, latex or json."""
    if form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    return FORMATS[form](results)
