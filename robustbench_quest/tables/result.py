"""One stored cell as a row of numbers, from what the store holds of it: its cell.json and its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, QuestError
from ..metrics import metric
from ..names import writable
from ..records import Records
from ..stored_cell import Environments, StoredCell
from ..tasks import task_of
from ..threats import kind_of
from ..trust import Flag, detached_metric, flags, mixed_environment, other_pixels, unknown_environment
from ..types import CLEAN, Cell

DONE, FAILED, INCOMPLETE, ABSENT = "done", "failed", "incomplete", "absent"


@dataclass(frozen=True)
class Value:
    """One number of a table, or why there is none.

    Args:
        metric: its name in ``METRICS``.
        number: in the metric's unit; None where there is none.
        n: over how many images.
        state: DONE; FAILED or INCOMPLETE for the reason ``error``; ABSENT where there is no such cell.
        flags: reasons for doubt.
        error: why there is no number.
    """

    metric: str
    number: float | None
    n: int
    state: str = DONE
    flags: tuple[Flag, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Result:
    """The numbers of one cell.

    Args:
        model, dataset, task, threat, norm, protocol: names.
        weights: which of a checkpoint's state dicts, such as "model" or "model_ema"; "" for the file itself.
        attention_name, attention: the variant's name, alone and with its options.
        title: the threat as people write it.
        settings: every setting of the threat, as its ``repr``.
        eps: the budget as "4/255", "" for clean images.
        seed: of the draws; None where there are none.
        n: number of images.
        numbers: name of a metric -> its value in the metric's unit, None where it is not available; those
            that the task shows, in order.
        clean_metric: the last of them, if it says how the model does on the clean images; else "".
        flags: reasons for doubt.
        cell_id: names the records in the store.
        state: DONE; FAILED or INCOMPLETE for the reason ``error``.
        error: why there are no numbers, "" where there are.
    """

    model: str
    weights: str
    attention_name: str
    attention: str
    dataset: str
    task: str
    threat: str
    title: str
    norm: str
    protocol: str
    settings: str
    eps: str
    seed: int | None
    n: int
    numbers: Mapping[str, float | None]
    clean_metric: str
    flags: tuple[Flag, ...]
    cell_id: str
    state: str = DONE
    error: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The metrics of the threatened images, in order."""
        return tuple(name for name in self.numbers if name != self.clean_metric)

    @property
    def values(self) -> dict[str, Value]:
        """Every number with what belongs to it, by the name of its metric."""
        return {
            name: Value(name, number, self.n, self.state, self.flags, self.error)
            for name, number in self.numbers.items()
        }


def result_of(
    stored: StoredCell, *, model_name: str | None = None, clean_records: Records | None = None
) -> Result:
    """Return the row of a stored cell; one that failed or is not complete is a row without numbers.

    Args:
        stored: from ``Store.cells``, or ``Store.cell`` of a cell that was evaluated.
        model_name: what the row is called; None is the name of the last command that used the cell.
        clean_records: of the clean cell of the same model and data set, to compare pixels with.

    Raises:
        StoreError: cell.json is absent or damaged, or the cell's folder cannot be listed.
    """
    names = dict(stored.names())
    if model_name is not None:
        names["model"] = writable(model_name)
    missing, error = stored.missing(), stored.error()
    if missing:
        blocks = f"{len(missing)} of {len(stored.cell.blocks)} blocks are missing; run the command again"
        return failed(stored.cell, names, error or blocks, FAILED if error else INCOMPLETE)
    try:
        records = stored.read()
        numbers = _numbers(stored.cell, records)
        doubts = _doubts(stored.cell, records, clean_records, stored.environments())
    except QuestError as problem:
        return failed(stored.cell, names, str(problem))
    return _result(stored.cell, names, numbers, doubts)


def failed(cell: Cell, names: Mapping[str, Any], error: str, state: str = FAILED) -> Result:
    """Return the row of a cell without numbers, for the reason ``error``; ``names`` as in ``names_of``."""
    try:
        numbers = dict.fromkeys(_metrics(cell))
    except OptionError:  # of a task that is gone
        numbers = {}
    return _result(cell, names, numbers, (), state, error)


def _result(
    cell: Cell,
    names: Mapping[str, Any],
    numbers: Mapping[str, float | None],
    doubts: tuple[Flag, ...],
    state: str = DONE,
    error: str = "",
) -> Result:
    attention = cell.model.attention
    return Result(
        model=names["model"],
        weights=cell.model.weights,
        attention_name="own" if attention is None else attention.name,
        attention=names["attention"],
        dataset=cell.dataset.name,
        task=cell.dataset.task,
        threat=cell.threat.name,
        title=names["title"],
        norm=str(dict(cell.threat.options).get("norm", "")),
        protocol=names["protocol"],
        settings=names["threat"],
        eps=names["eps"],
        seed=cell.seed,
        n=cell.limit,
        numbers=numbers,
        clean_metric=task_of(cell.dataset).clean_metric if numbers else "",
        flags=doubts,
        cell_id=cell.id,
        state=state,
        error=error,
    )


def _metrics(cell: Cell) -> tuple[str, ...]:
    task = task_of(cell.dataset)
    return (*task.metrics, *([task.clean_metric] if task.clean_metric else []))


def _numbers(cell: Cell, records: Records) -> dict[str, float | None]:
    clean = task_of(cell.dataset).clean_metric
    return {
        name: metric(name).compute(records) if name != clean or _answers_clean(cell) else None
        for name in _metrics(cell)
    }


def _answers_clean(cell: Cell) -> bool:
    """Return whether the records say how the model does on the clean images."""
    return cell.threat == CLEAN or kind_of(cell.threat).compares_with_clean


def _doubts(
    cell: Cell, records: Records, clean_records: Records | None, environments: Environments
) -> tuple[Flag, ...]:
    model = cell.model
    found: list[Flag | None] = [
        *flags(records, model.num_classes, model.guessed, answers_clean=_answers_clean(cell)),
        detached_metric(cell),
        None if clean_records is None else other_pixels(records, clean_records),
        mixed_environment(environments.known) if environments.known > 1 else None,
        unknown_environment(environments.lost, environments.blocks) if environments.lost else None,
    ]
    return tuple(flag for flag in found if flag is not None)
