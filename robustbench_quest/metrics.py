"""Numbers from records. NumPy only: no model is run and no torch imported.

Every number is a count or a sum over all images divided once; averages of batch averages do not occur.
``METRICS`` names those that tables can show; a task says which of them it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .errors import QuestError
from .records import Records, column
from .registry import Registry


def accuracy(records: Records) -> float:
    """Return Top-1 accuracy in [0, 1]: for an attacked cell, robust accuracy."""
    return int(np.count_nonzero(column(records, "correct"))) / _count(records)


def accuracy5(records: Records) -> float | None:
    """Return Top-5 accuracy in [0, 1]; None with fewer than five classes."""
    if records["correct5"].null_count:
        return None
    return int(np.count_nonzero(column(records, "correct5"))) / _count(records)


def nll(records: Records) -> float:
    """Return the mean negative log-likelihood in nats; infinite when any logit is NaN or infinite."""
    return float(np.sum(column(records, "nll"), dtype=np.float64)) / _count(records)


def brier(records: Records) -> float:
    """Return the mean squared distance of the probabilities to the one-hot label, in [0, 2]."""
    return float(np.sum(column(records, "brier"), dtype=np.float64)) / _count(records)


def clean_accuracy(records: Records) -> float:
    """Return Top-1 accuracy in [0, 1] on the clean images of the cell, attacked or not."""
    if "clean_pred" not in records.column_names:
        return accuracy(records)
    return int(np.count_nonzero(column(records, "clean_pred") == column(records, "label"))) / _count(records)


def nonfinite(records: Records) -> int:
    """Return the number of images with a NaN or infinite logit; each counts as wrong."""
    return _count(records) - int(np.count_nonzero(column(records, "finite")))


def _count(records: Records) -> int:
    if not records.num_rows:
        raise QuestError(
            "there are no records: expected at least one image, found none; check --limit and the data"
        )
    return int(records.num_rows)


@dataclass(frozen=True)
class Metric:
    """A number that tables show.

    Args:
        title: as column heads name it.
        compute: of a cell's records, in ``unit``; None where it is not available.
        unit: such as "%" or "nats"; "" for none.
        decimals: that tables print.
        better: which numbers are better.
        absent: why it is not available where it is not, for the note below a table.
    """

    title: str
    compute: Callable[[Records], float | None]
    unit: str
    decimals: int
    better: Literal["higher", "lower"]
    absent: str = ""


def _percent(share: Callable[[Records], float | None]) -> Callable[[Records], float | None]:
    def compute(records: Records) -> float | None:
        value = share(records)
        return None if value is None else 100 * value

    return compute


METRICS = Registry("metric")
METRICS.add("top1", Metric("Top-1", _percent(accuracy), "%", 2, "higher"), "the likeliest class is the label")
METRICS.add(
    "top5",
    Metric("Top-5", _percent(accuracy5), "%", 2, "higher", "Top-5 needs at least five classes"),
    "the label is among the five likeliest classes",
)
METRICS.add("nll", Metric("NLL", nll, "nats", 3, "lower"), "mean negative log-likelihood of the label")
METRICS.add("brier", Metric("Brier", brier, "", 4, "lower"), "mean squared error of the probabilities")
METRICS.add(
    "clean_top1",
    Metric("clean Top-1", _percent(clean_accuracy), "%", 2, "higher"),
    "Top-1 of the same images before the threat",
)


def metric(name: str) -> Metric:
    """Return a metric by name.

    Raises:
        OptionError: no such metric; the message lists the right ones.
    """
    found: Metric = METRICS.load(name)
    return found
