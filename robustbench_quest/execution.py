"""The cells of a plan into a store, one model in memory at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .block import Advance, Job
from .completion import complete, finish, lacking
from .device import resolve_device
from .errors import QuestError, StoreError
from .models.load import load_request
from .names import cell_title, names_of
from .store import Store
from .stored_cell import StoredCell
from .types import Cell, Note

if TYPE_CHECKING:
    from .models.classifier import Classifier
    from .planning import Plan, PlannedModel


class Report(Protocol):
    """Told how an execution goes."""

    def advance(self, cell: Cell) -> Advance:
        """Return what is told of the progress of a cell."""
        ...

    def note(self, text: str) -> None:
        """Take note of something that a user should know, one line."""
        ...

    def failed(self, cell: Cell, message: str, trace: str) -> None:
        """Take note of a cell that failed, and of its traceback."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A cell in the store, and why it is not complete; "" where it is."""

    stored: StoredCell
    error: str = ""


def execute(plan: Plan, store: Store, report: Report) -> list[Outcome]:
    """Complete the cells of a plan; return one outcome per cell, model by model.

    A model is loaded when the first of its missing blocks is computed, and let go before the next; where the
    store has all its cells, it is not loaded at all. What fails is kept in the store and reported, and the
    other cells go on.

    Raises:
        QuestError: the only model cannot be loaded, the device is absent, or the store cannot be written to.
    """
    resolve_device(plan.request.device)
    store.make()
    outcomes: list[Outcome] = []
    for model, cells in zip(plan.models, plan.cells, strict=True):
        outcomes += _outcomes(plan, model, [store.cell(cell) for cell in cells], report)
        gc.collect()  # modules refer to themselves in circles: the next model must find the memory free
    return outcomes


def _outcomes(plan: Plan, model: PlannedModel, stored: Sequence[StoredCell], report: Report) -> list[Outcome]:
    """Complete the cells of one model; what comes back holds no exception, whose frames hold the model."""
    errors: Sequence[Exception | None]
    try:
        errors = _completed(plan, model, stored, report)
    except QuestError as error:
        if len(plan.models) == 1 or isinstance(error, StoreError):
            raise
        errors = [error] * len(stored)
    return [_outcome(cell, error, report) for cell, error in zip(stored, errors, strict=True)]


def _completed(
    plan: Plan, model: PlannedModel, stored: Sequence[StoredCell], report: Report
) -> Sequence[Exception | None]:
    how = plan.request.how
    lacks = [lacking(cell, how, _about(cell.cell, report)) for cell in stored]
    advances = [report.advance(cell.cell) for cell in stored]
    if not any(lack.wanted for lack in lacks):
        for cell, advance in zip(stored, advances, strict=True):
            advance(cell.cell.limit, computed=False)
        return finish(stored, lacks, report.note)
    classifier = load_request(model.request, resolve_device(plan.request.device))
    _check_same(classifier, model)
    jobs = [
        Job(classifier, plan.dataset, cell.cell, how, advance)
        for cell, advance in zip(stored, advances, strict=True)
    ]
    return complete(jobs, stored, lacks, report.note)


def _about(cell: Cell, report: Report) -> Note:
    """Return what reports notes about a cell by its name."""
    return lambda text: report.note(f"{cell_title(cell)}: {text}")


def _check_same(classifier: Classifier, model: PlannedModel) -> None:
    """Refuse a model that is no longer the one that was planned.

    Raises:
        QuestError: its file changed meanwhile.
    """
    if classifier.spec.identity() != model.spec.identity():
        raise QuestError(
            f"{model.spec.name} is no longer what it was when its cells were planned: its file changed "
            "meanwhile; run the command again"
        )
    classifier.spec = dataclasses.replace(classifier.spec, name=model.spec.name)


def _outcome(stored: StoredCell, error: Exception | None, report: Report) -> Outcome:
    if error is None:
        return Outcome(stored)
    message = str(error) if isinstance(error, QuestError) else f"{type(error).__name__}: {error}"
    message = " ".join(message.split())
    trace = "".join(traceback.format_exception(error))
    with contextlib.suppress(StoreError):  # which may be what failed
        stored.write_error({"error": message, "traceback": trace}, names_of(stored.cell))
    report.failed(stored.cell, message, trace)
    return Outcome(stored, message)
