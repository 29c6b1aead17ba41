"""What ``rbq eval`` does once its flags are parsed: plan the cells, compute what is missing, print."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..datasets import open_dataset
from ..demo import demo_checkpoint
from ..device import resolve_device
from ..errors import OptionError, QuestError, StoreError, unknown
from ..evaluation import evaluate, make_cell
from ..protocols import load_protocol
from ..run import How, Run
from ..store import Store
from ..tables import FORMATS, Result, render, result
from ..threats import kind_of
from ..types import Cell
from .arguments import load_models, parse_options, plan_threats
from .debug import show_traceback
from .explain import print_explanation
from .progress import progress

if TYPE_CHECKING:
    from ..datasets.base import Dataset
    from ..models.classifier import Classifier

# Flags that are settings of attacks, under the names that the attacks use.
ATTACK_FLAGS = ("norm", "steps", "alpha", "restarts", "random_start", "labels", "keep")


def run(
    *,
    checkpoints: Sequence[str],
    attacks: Sequence[str],
    dataset_name: str | None,
    root: str | None,
    limit: int | None,
    eps: str | None,
    protocol_name: str,
    allow_large_eps: bool,
    seed: int,
    device: str,
    batch_size: int,
    block_size: int | None,
    workers: int,
    out: str,
    keep_images: int,
    form: str,
    save: str | None,
    explain: bool,
    **options: Any,
) -> int:
    """Run the command and return its exit code; bad input raises a QuestError before anything is computed."""
    if form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    _check_save(save)
    how = {"batch_size": batch_size, "workers": workers, "keep_images": keep_images}
    settings: dict[str, Any] = {
        "limit": limit,
        "seed": seed,
        "block_size": block_size,
        "protocol": protocol_name,
        "adaptive": options.pop("adaptive"),
    }
    run_settings, _ = Run(**settings), How(**how)
    protocol = load_protocol(protocol_name)
    models = load_models(_checkpoints(checkpoints, options), _model_options(options, resolve_device(device)))
    dataset = _dataset(dataset_name, root, models)
    flags = {name: options[name] for name in ATTACK_FLAGS if options[name] is not None}
    threats = plan_threats(attacks, flags, eps, protocol, dataset, allow_large_eps)
    store = Store(out)
    cells = [
        (model, make_cell(model.spec, dataset, planned.threat, run_settings))
        for model in models
        for planned in threats
    ]
    if explain:
        speed = {"batch size": batch_size, "workers": workers, "kept images": keep_images}
        print_explanation(models, dataset, threats, [cell for _, cell in cells], store, speed)
        return 0
    store.make()
    for model in models:
        if "position embeddings" in (sources := dict(model.spec.sources)):
            click.echo(f"{model.spec.name}: position embeddings {sources['position embeddings']}", err=True)
    for note in dataset.notes:
        click.echo(f"data set {dataset.name}: {note}", err=True)
    results = [_evaluate(model, dataset, cell, {"store": store, **how, **settings}) for model, cell in cells]
    text = render(results, form)
    click.echo(text, nl=False)
    if save:
        _write(Path(save), text)
    return 1 if any(r.error for r in results) else 0


def _evaluate(model: Classifier, dataset: Dataset, cell: Cell, how: dict[str, Any]) -> Result:
    """Return one cell's result; a failure is kept in the store and shown, and the other cells go on."""
    title = f"{cell.model.name} {kind_of(cell.threat).title(cell.threat)}"
    try:
        with progress(title, cell.limit) as advance:
            records = evaluate(model, dataset, cell.threat, advance=advance, **how)
    except Exception as error:
        message = str(error) if isinstance(error, QuestError) else f"{type(error).__name__}: {error}"
        message = " ".join(message.split())
        with contextlib.suppress(StoreError):  # which may be what failed
            how["store"].cell(cell).write_error({"error": message, "traceback": traceback.format_exc()})
        show_traceback()
        click.echo(f"error: {title}: {message}", err=True)
        return result(cell, None, kind_of(cell.threat).text(cell.threat), message)
    settings = kind_of(cell.threat).text(cell.threat)
    return result(cell, records, settings, environments=how["store"].cell(cell).environments())


def _check_save(save: str | None) -> None:
    if save and not Path(save).resolve().parent.is_dir():
        raise OptionError(f"--save {save}: its folder does not exist")
    if save and Path(save).is_dir():
        raise OptionError(f"--save {save} is a folder; give a file in it")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--save {path} cannot be written: {error.strerror}; the table is above") from error


def _checkpoints(paths: Sequence[str], options: dict[str, Any]) -> Sequence[str]:
    return paths if paths or options["model"] else (str(demo_checkpoint()),)


def _model_options(options: dict[str, Any], device: Any) -> dict[str, Any]:
    names = ("arch", "attention", "model", "weights", "img_size", "resize", "interpolation")
    chosen = {name: options[name] for name in names}
    for name in ("arch_options", "model_options", "attention_options"):
        flag = "--" + name.removesuffix("s").replace("_", "-")
        chosen[name] = parse_options(options[name], flag) or None
    for name in ("mean", "std"):
        chosen[name] = None if options[name] is None else _three(options[name], f"--{name}")
    return {**chosen, "device": device}


def _three(text: str, flag: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3:
        raise OptionError(f"{flag} {text!r}: expected three numbers in [0, 1], such as 0.485,0.456,0.406")
    return values


def _dataset(name: str | None, root: str | None, models: Sequence[Classifier]) -> Dataset:
    """Return the data set: the one named, else the folder --data, else what the models were trained on."""
    if name is None and root is not None:
        name = "folder"
    if name is None:
        trained = {model.trained_on for model in models}
        name = trained.pop() if len(trained) == 1 else None
        if name is None:
            raise OptionError("the checkpoints name no common data set; give --dataset and --data")
    return open_dataset(name, root)
