"""``rbq eval``, and ``run_eval.py``: evaluate checkpoints and print a table."""

from __future__ import annotations

from typing import Any

import click

from .options import attack_options, data_options, model_options, output_options, run_options

_LAYOUT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.command(short_help="Evaluate checkpoints and print a table.", context_settings=_LAYOUT)
@model_options
@data_options
@attack_options
@run_options
@output_options
def evaluate(**options: Any) -> int:
    """Evaluate checkpoints on clean and attacked images, and print a table.

    Results are kept in --out; the same command again answers from there, and an interrupted one goes on.
    """
    from .session import Output, eval_request, run

    output = Output(options["out"], options["form"], options["save"], options["explain"])
    return run(eval_request(options), output)
