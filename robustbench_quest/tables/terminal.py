"""A grid as aligned plain text."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .grid import Grid

# Wider than any table here, so that no number is ever cut or wrapped by the width of a pipe.
_WIDTH = 1000


def to_text(grid: Grid) -> str:
    """Return the grid and its notes as lines of text, columns aligned, without escape codes."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    titles = [title if place == 0 else "" for title, width in grid.groups for place in range(width)]
    for position, head in enumerate(grid.columns):
        over = f"{titles[position]}\n" if any(titles) else ""
        justify = "left" if position < grid.text_columns else "right"
        table.add_column(Text(over + head), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    buffer = io.StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None, highlight=False).print(table)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join([*lines, "", *grid.notes, ""])
