"""Numbers from records. NumPy only: no model is run and no torch imported.

Every number is a count or a sum over all images divided once; averages of batch averages do not occur.
"""

from __future__ import annotations

import numpy as np

from .errors import QuestError
from .records import Records, column


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
