"""``--explain``: every setting of a plan, its value, and where it came from."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..names import cell_title
from ..planning import Plan
from ..store import Store
from ..threats import setting_text

Line = tuple[str, str, str, str]  # setting, value, source, what other sources say


def print_explanation(plan: Plan, store: Store) -> None:
    """Print models, data, threats, the run and the cells of a plan; nothing is computed."""
    for model in plan.models:
        lines = [(s.name, s.text, s.source, s.others) for s in model.settings]
        spec = model.spec
        lines += [("checkpoint sha256", spec.checkpoint, "", ""), ("classes", str(spec.num_classes), "", "")]
        lines += [("guessed", ", ".join(spec.guessed), "", "")] if spec.guessed else []
        _section(f"model {spec.name}", lines)
    dataset = plan.dataset
    lines = [("images", str(len(dataset)), "", ""), ("fingerprint", dataset.spec.fingerprint, "", "")]
    _section(f"data set {dataset.name}", lines + [("note", note, "", "") for note in dataset.notes])
    for planned in plan.threats:
        threat = planned.threat
        options = [
            (key, setting_text(threat, value), planned.sources[key], "") for key, value in threat.options
        ]
        _section(f"threat {threat.name}", options or [("images", "as they are", "", "")])
    _section("run", _run_lines(plan, store))
    _section("cells", _cell_lines(plan, store))


def _run_lines(plan: Plan, store: Store) -> list[Line]:
    request, cells = plan.request, plan.cells[0]
    side = next((cell.side for cell in cells if cell.side is not None), None)
    lines = [("protocol", request.run.protocol, "", "")]
    if side is not None:
        space = ", ".join(f"{key}={value}" for key, value in side.space.identity().items())
        lines += [("space of attacks", space, "", ""), ("adaptive", str(side.adaptive), "", "")]
    speed = {
        "batch size": request.how.batch_size,
        "workers": request.how.workers,
        "kept images": request.how.keep_images,
        "device": request.device,
    }
    return [
        *lines,
        ("seed", str(request.run.seed), "", ""),
        ("limit", str(cells[0].limit), "", ""),
        ("precision", cells[0].precision, "", ""),
        ("store", str(store.root), "", ""),
        *((name, str(value), "changes no draw and no cell id", "") for name, value in speed.items()),
    ]


def _cell_lines(plan: Plan, store: Store) -> list[Line]:
    lines = []
    for cells in plan.cells:
        for cell in cells:
            blocks, missing = len(cell.blocks), len(store.cell(cell).missing())
            state = f"{blocks - missing} of {blocks} blocks of {cell.block_size} in the store"
            lines.append((cell_title(cell), cell.id[:16], state, ""))
    return lines


def _section(title: str, lines: Sequence[Line]) -> None:
    click.echo(title)
    names = max(len(name) for name, *_ in lines)
    values = min(40, max(len(value) for _, value, *_ in lines))
    for name, value, source, others in lines:
        rest = f"{source}{f'  (other sources: {others})' if others else ''}"
        click.echo(f"  {name:{names}}  {value:{values}}  {rest}".rstrip())
    click.echo()
