"""``--explain``: every setting of a command, its value, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ..store import Store
from ..threats import setting_text
from ..types import Cell
from .arguments import PlannedThreat

if TYPE_CHECKING:
    from ..datasets.base import Dataset
    from ..models.classifier import Classifier

Line = tuple[str, str, str, str]  # setting, value, source, alternatives


def print_explanation(
    models: Sequence[Classifier],
    dataset: Dataset,
    threats: Sequence[PlannedThreat],
    cells: Sequence[Cell],
    store: Store,
    speed: Mapping[str, int],
) -> None:
    """Print models, data, threats and cells; nothing is computed. ``speed`` is what changes no number."""
    for model in models:
        lines = [(s.name, s.text, s.source, s.others) for s in model.explanation]
        spec = model.spec
        lines += [("checkpoint sha256", spec.checkpoint, "", ""), ("classes", str(spec.num_classes), "", "")]
        lines += [("guessed", ", ".join(spec.guessed), "", "")] if spec.guessed else []
        _section(f"model {spec.name}", [*lines, ("device", str(model.device), "", "")])
    lines = [("images", str(len(dataset)), "", ""), ("fingerprint", dataset.spec.fingerprint, "", "")]
    _section(f"data set {dataset.name}", lines + [("note", note, "", "") for note in dataset.notes])
    for planned in threats:
        threat = planned.threat
        options = [
            (key, setting_text(threat, value), planned.sources[key], "") for key, value in threat.options
        ]
        _section(f"threat {planned.threat.name}", options or [("images", "as they are", "", "")])
    first = next((cell for cell in cells if cell.side is not None), cells[0])
    side = first.side
    lines = [
        ("protocol", first.protocol or "none", "", ""),
        *([("space", str(side.space), "", ""), ("adaptive", str(side.adaptive), "", "")] if side else []),
        ("seed", "none" if first.seed is None else str(first.seed), "", ""),
        ("limit", str(first.limit), "", ""),
        ("precision", first.precision, "", ""),
        ("store", str(store.root), "", ""),
        *((name, str(value), "changes no draw and no cell id", "") for name, value in speed.items()),
    ]
    _section("run", lines)
    rows = []
    for cell in cells:
        blocks, missing = len(cell.blocks), len(store.cell(cell).missing())
        state = f"{blocks - missing} of {blocks} blocks of {cell.block_size} in the store"
        rows.append((f"{cell.model.name} {cell.threat.name}", cell.id[:16], state, ""))
    _section("cells", rows)


def _section(title: str, lines: Sequence[Line]) -> None:
    click.echo(title)
    names = max(len(name) for name, *_ in lines)
    values = min(40, max(len(value) for _, value, *_ in lines))
    for name, value, source, alternatives in lines:
        rest = f"{source}{f'  (other sources: {alternatives})' if alternatives else ''}"
        click.echo(f"  {name:{names}}  {value:{values}}  {rest}".rstrip())
    click.echo()
