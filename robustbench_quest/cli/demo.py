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
def demo(model_seed: int, limit: int | None, out: str, device: str, form: str) -> int:
    """Clean, FGSM and PGD for every attention variant on handwritten digits, as one table."""
    from ..demo import demo_checkpoint
    from ..models.request import ModelRequest
    from ..planning import EvalRequest, ThreatRequest
    from ..registry import ATTENTION
    from ..run import Run
    from .session import Output, run

    request = EvalRequest(
        models=[ModelRequest(str(demo_checkpoint(name, model_seed))) for name in ATTENTION],
        threats=[ThreatRequest("fgsm"), ThreatRequest("pgd")],
        run=Run(limit=limit),
        device=device,
    )
    return run(request, Output(out, form))
