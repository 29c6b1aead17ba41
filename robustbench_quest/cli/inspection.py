"""``rbq inspect``: what a checkpoint file holds, and what would load."""

from __future__ import annotations

import click


@click.command()
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
def inspect(checkpoint: str, as_json: bool) -> None:
    """Say what CHECKPOINT holds, what would load, and what is ambiguous; no code in it runs."""
    import json

    from ..models.inspection import inspect_checkpoint
    from .inspect import print_inspection

    inspection = inspect_checkpoint(checkpoint)
    if as_json:
        click.echo(json.dumps(inspection.as_dict(), indent=2, default=str))
    else:
        print_inspection(inspection)
