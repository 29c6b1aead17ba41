"""What a data set asks of a model, and how the answers are judged."""

from __future__ import annotations

import pyarrow as pa

from ..records import COMMON
from ..registry import TASKS, THREAT_KINDS
from ..types import DatasetSpec, Threat
from .base import Task

__all__ = ["Task", "schema_of", "task_of"]


def task_of(dataset: DatasetSpec) -> Task:
    """Return the task of a data set."""
    task: Task = TASKS.load(dataset.task)
    return task


def schema_of(dataset: DatasetSpec, threat: Threat) -> pa.Schema:
    """Return the columns and types of a cell's records: they follow from the task and the kind of threat."""
    task, kind = task_of(dataset), THREAT_KINDS.load(threat.kind)
    compared = task.compared if kind.compares_with_clean else ()
    return pa.schema(COMMON + task.columns + compared + kind.columns)
