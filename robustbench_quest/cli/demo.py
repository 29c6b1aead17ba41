"""``rbq demo``: the embedded demonstration, start to finish."""

from __future__ import annotations

import click


@click.command(short_help="Show the tool working on the models that come with it.")
@click.option("--model-seed", default=0, show_default=True, help="Which of the trained models: 0, 1 or 2.")
@click.option("--limit", type=int, help="Number of images; default all 500.")
@click.option("--out", default="results", show_default=True, help="Result store.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--format", "form", default="table", show_default=True, help="table, csv, latex or json.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
@click.pass_context
def demo(context: click.Context, model_seed: int, limit: int | None, out: str, device: str, form: str) -> int:
    """Clean, FGSM and PGD for every attention variant on handwritten digits, as one table."""
    from ..demo import demo_checkpoint
    from ..registry import ATTENTION
    from .evaluate import evaluate

    checkpoints = tuple(str(demo_checkpoint(name, model_seed)) for name in ATTENTION)
    code: int = context.invoke(
        evaluate,
        checkpoints=checkpoints,
        attacks=("fgsm", "pgd"),
        limit=limit,
        out=out,
        device=device,
        form=form,
    )
    return code
