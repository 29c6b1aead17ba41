"""What people read of a cell: names and texts that no number depends on. Imports no torch."""

from __future__ import annotations

from typing import Any

from .budget import format_eps
from .threats import kind_of
from .types import Cell


def names_of(cell: Cell) -> dict[str, Any]:
    """Return what a table needs of a cell beyond its identity, as plain values for cell.json.

    Texts are made here, while the threat's code is at hand: a table can show the cell when it is not.

    Returns:
        model, attention, protocol, sources, guessed, num_classes: as in ``Cell`` and ``ModelSpec``.
        title: the threat as tables name it, "PGD linf 4/255".
        threat: the threat with all its settings, as its ``repr``.
        eps: the budget, "4/255"; "" without one.
    """
    model, threat, kind = cell.model, cell.threat, kind_of(cell.threat)
    norm, eps = str(dict(threat.options).get("norm", "linf")), threat.eps
    return {
        "model": writable(model.name),
        "attention": writable(str(model.attention or "own")),
        "protocol": cell.protocol,
        "title": kind.title(threat),
        "threat": kind.text(threat),
        "eps": "" if eps is None else format_eps(eps, norm),
        "sources": {name: writable(str(source)) for name, source in model.sources},
        "guessed": list(model.guessed),
        "num_classes": model.num_classes,
    }


def cell_title(cell: Cell) -> str:
    """Return a cell as messages name it: "vit_ti_quest PGD linf 1/255"."""
    return f"{cell.model.name} {kind_of(cell.threat).title(cell.threat)}"


def writable(text: str) -> str:
    """Return ``text`` with what UTF-8 cannot hold escaped: bytes of a file's name that are no characters."""
    return text.encode("utf-8", "backslashreplace").decode()
