"""``rbq inspect``: what a checkpoint file holds, and what would load, one aligned line per fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from ..models.inspect import Inspection

_WIDTH = 19


@click.command(short_help="Say what a checkpoint file holds and what would load.")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
def inspect(checkpoint: str, as_json: bool) -> None:
    """Say what CHECKPOINT holds, what would load, and what is ambiguous; no code in it runs."""
    import json

    from ..models.inspect import inspect_checkpoint

    inspection = inspect_checkpoint(checkpoint)
    if as_json:
        click.echo(json.dumps(inspection.as_dict(), indent=2, default=str))
    else:
        print_inspection(inspection)


def print_inspection(inspection: Inspection, console: Console | None = None) -> None:
    """Print an inspection as plain lines; ``console`` defaults to standard output."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    for label, value in _lines(inspection):
        # As Text, so that brackets in names and messages are not read as markup.
        console.print(Text(f"{label:<{_WIDTH}}{value}"), soft_wrap=True)


def _lines(found: Inspection) -> Iterator[tuple[str, str]]:
    yield "file", found.path
    yield "format", found.format
    yield "sha256", found.sha256
    yield "state dicts", _listed(f"{name} ({count} tensors)" for name, count in found.containers.items())
    yield "weights", _with_source(found, "weights")
    yield "kind", found.kind
    yield "architecture", _with_source(found, "arch", " or ".join(found.arch_candidates))
    yield from _known(found, "arch options", "heads")
    yield "attention by keys", _listed(found.attention_candidates)
    yield "attention", _with_source(found, "attention")
    yield "classes", str(found.num_classes or "not known")
    yield "image size", str(found.image_size or "not known")
    yield "positions", _listed(found.positions)
    yield "tensors", f"{found.tensors:,}"
    yield "parameters", f"{found.parameters:,}"
    yield "dtype", _listed(found.dtypes)
    yield from _known(found, "name", "size", "resize", "crop_mode", "interpolation", "mean", "std")
    if found.dropped:
        yield "left out", _listed(found.dropped)
    if not found.problems:
        yield "loads", "yes"
    for index, problem in enumerate(found.problems):
        yield "" if index else "does not load", problem


def _known(found: Inspection, *names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        if found.setting(name) is not None:
            yield name, _with_source(found, name)


def _with_source(found: Inspection, name: str, value: str = "") -> str:
    setting = found.setting(name)
    if setting is None:
        return value or "not known"
    others = f"; {setting.others}" if setting.others else ""
    return f"{value or setting.text}  ({setting.source}{others})"


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"
