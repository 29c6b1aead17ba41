"""What a task is. Imports no torch: a task's numbers can be read where no model can be run."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..records import Columns, Records, column

if TYPE_CHECKING:
    from torch import Tensor

    from ..attacks.objective import Objective
    from ..datasets.base import Dataset
    from ..types import ModelSpec


class Task(abc.ABC):
    """What a data set asks of a model: the columns of its records, the score, and what attacks raise.

    Attributes:
        name: the name that data sets give.
        columns: what a record holds of an image: its target, and how the model's answer scored.
        compared: in addition, where the model also answered the clean image.
        success: the name of the boolean column that says whether the model is right about an image.
        metrics: the numbers that tables show, by their names in ``metrics.METRICS``.
        clean_metric: the one beside them that says how the model does on the clean images; "" for none.
    """

    name: ClassVar[str]
    columns: ClassVar[Columns]
    compared: ClassVar[Columns]
    success: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    clean_metric: ClassVar[str] = ""

    @abc.abstractmethod
    def check(self, model: ModelSpec, dataset: Dataset) -> None:
        """Refuse a data set whose targets the model cannot predict.

        Raises:
            DataError: with the target and what would be right.
        """

    @abc.abstractmethod
    def targets(self, dataset: Dataset, indices: npt.NDArray[np.int64]) -> Tensor:
        """Return the targets of the images at ``indices`` of the listing, on the host."""

    @abc.abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return the task's columns for a batch: ``outputs`` of the model, ``targets`` as above."""

    @abc.abstractmethod
    def compare(
        self, scored: Mapping[str, Any], clean: Tensor, final: Tensor, aimed: Tensor
    ) -> dict[str, Any]:
        """Return the ``compared`` columns.

        Args:
            scored: the score of the clean images.
            clean, final: outputs for the clean images, and for what the threat made of them.
            aimed: the targets that the threat worked with.
        """

    @abc.abstractmethod
    def objective(self) -> Objective:
        """Return what attacks raise, and when they have succeeded."""

    def summary(self, records: Records) -> dict[str, Any]:
        """Return counts for DONE.json: what a finished cell says of itself at a glance."""
        return {self.success: int(np.count_nonzero(column(records, self.success)))}
