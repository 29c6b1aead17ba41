"""What ``rbq eval`` does once its flags are parsed: plan the cells, execute the plan, print from the
store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..demo import demo_checkpoint
from ..errors import OptionError, unknown
from ..execution import Outcome, execute
from ..models.request import ModelRequest
from ..names import cell_title, names_of
from ..planning import DatasetRequest, EvalRequest, Plan, plan
from ..run import How, Run
from ..store import Store
from ..tables import FORMATS, Result, failed, render, result_of
from ..types import CLEAN
from .debug import debugging
from .explain import print_explanation
from .flags import as_flags, parse_options, threat_requests, three_numbers
from .progress import Progress, progress

if TYPE_CHECKING:
    from ..block import Advance
    from ..records import Records
    from ..types import Cell


@dataclass(frozen=True)
class Output:
    """Where results go, and how they are shown.

    Args:
        store: the folder of the result store.
        form: of the table.
        save: a file for the table, or None.
        explain: print the plan and stop.
    """

    store: str
    form: str = "table"
    save: str | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise OptionError(unknown("format", self.form, FORMATS))
        if self.save and not Path(self.save).resolve().parent.is_dir():
            raise OptionError(f"--save {self.save}: its folder does not exist")
        if self.save and Path(self.save).is_dir():
            raise OptionError(f"--save {self.save} is a folder; give a file in it")

    def write(self, text: str) -> None:
        """Print a table, and save it where that is asked for."""
        click.echo(text, nl=False)
        if self.save:
            try:
                Path(self.save).write_text(text, encoding="utf-8")
            except OSError as error:
                raise OptionError(
                    f"--save {self.save} cannot be written: {error.strerror}; the table is above"
                ) from error


def eval_request(options: Mapping[str, Any]) -> EvalRequest:
    """Return what the flags ask for.

    Raises:
        OptionError: flags that say something that cannot be.
    """
    run = Run(**{name: options[name] for name in ("limit", "seed", "block_size", "protocol", "adaptive")})
    how = How(**{name: options[name] for name in ("batch_size", "workers", "keep_images")})
    paths: tuple[str | None, ...] = tuple(dict.fromkeys(options["checkpoints"]))
    if not paths:
        paths = (None,) if options["model"] else (str(demo_checkpoint()),)
    model = _model_settings(options)
    return EvalRequest(
        models=tuple(ModelRequest(checkpoint=path, **model) for path in paths),
        dataset=DatasetRequest(
            options["dataset_name"],
            options["root"],
            parse_options(options["dataset_options"], "--dataset-option"),
        ),
        threats=threat_requests(options),
        run=run,
        how=how,
        device=options["device"],
    )


def _model_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("arch", "attention", "model", "weights", "img_size", "resize", "interpolation", "crop_mode")
    settings: dict[str, Any] = {name: options[name] for name in names}
    for name, flag in (
        ("arch_options", "--arch-option"),
        ("model_options", "--model-option"),
        ("attention_options", "--attention-option"),
    ):
        settings[name] = parse_options(options[name], flag)
    for name in ("mean", "std"):
        settings[name] = three_numbers(options[name], f"--{name}")
    return settings


def run(request: EvalRequest, output: Output) -> int:
    """Evaluate what is asked for and return the exit code; bad input raises before anything is computed."""
    store = Store(output.store)
    planned = plan(request, store, _tell)
    if output.explain:
        print_explanation(planned, store)
        return 0
    for text in _notes(planned):
        _tell(text)
    with progress() as shown:
        outcomes = execute(planned, store, _Reporter(shown))
    results = _results(outcomes)
    output.write(render(results, output.form))
    return 1 if any(found.error for found in results) else 0


class _Reporter:
    """Tells on standard error how an execution goes."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def advance(self, cell: Cell) -> Advance:
        return self._shown.of(cell)

    def note(self, text: str) -> None:
        _tell(text)

    def failed(self, cell: Cell, message: str, trace: str) -> None:
        if debugging():
            click.echo(trace, err=True)
        click.echo(f"error: {cell_title(cell)}: {as_flags(message)}", err=True)


def _tell(text: str) -> None:
    click.echo(as_flags(text), err=True)


def _results(outcomes: Sequence[Outcome]) -> list[Result]:
    """Return a row per cell, from the store; pixels are compared with those of the model's clean cell."""
    found: list[Result] = []
    clean: Records | None = None
    for outcome in outcomes:
        cell = outcome.stored.cell
        if outcome.error:
            clean = None if cell.threat == CLEAN else clean
            found.append(failed(cell, names_of(cell), outcome.error))
            continue
        if cell.threat == CLEAN:
            clean = outcome.stored.read()
        found.append(result_of(outcome.stored, model_name=cell.model.name, clean_records=clean))
    return found


def _notes(planned: Plan) -> list[str]:
    """Return what a user should know before anything is computed."""
    notes = []
    for model in planned.models:
        positions = dict(model.spec.sources).get("position embeddings")
        if positions is not None:
            notes.append(f"{model.spec.name}: position embeddings {positions}")
    return notes + [f"data set {planned.dataset.name}: {note}" for note in planned.dataset.notes]
