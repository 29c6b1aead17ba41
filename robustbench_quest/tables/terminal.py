"""A grid as aligned plain text."""

from __future__ import annotations

from collections.abc import Sequence

from .grid import Grid

_GAP = "  "
_GROUP_GAP = "   "
_RULE = "─"


def to_text(grid: Grid) -> str:
    """Return the grid and its notes as lines of text, columns aligned, without escape codes."""
    rows, notes = grid.printed()
    widths = [max(map(len, column)) for column in zip(grid.columns, *rows, strict=True)]
    spans = _spans(grid)
    for title, span in spans:
        # A title that is wider than its columns widens the last of them.
        widths[span[-1]] += max(0, len(title) - sum(widths[i] for i in span) - len(_GAP) * (len(span) - 1))

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if position < grid.text_columns else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return _GROUP_GAP.join(_GAP.join(aligned[i] for i in span) for _, span in spans).rstrip()

    body = [line(row) for row in rows]
    head = [line(grid.columns)]
    if any(title for title, _ in spans):
        inner = [sum(widths[i] for i in span) + len(_GAP) * (len(span) - 1) for _, span in spans]
        titles = [title.center(width) for (title, _), width in zip(spans, inner, strict=True)]
        head.insert(0, _GROUP_GAP.join(titles).rstrip())
    rule = _RULE * max(map(len, head + body))
    return "\n".join([*head, rule, *body, "", *notes, ""])


def _spans(grid: Grid) -> list[tuple[str, range]]:
    """Return each group's title and its columns."""
    spans, start = [], 0
    for title, width in grid.groups:
        spans.append((title, range(start, start + width)))
        start += width
    return spans
