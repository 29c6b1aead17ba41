"""Flags that say when a number may be wrong, computed from records. Thresholds are the constants below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .metrics import clean_accuracy, nonfinite
from .records import Records, column

GUESSING = 0.001  # probability
ZERO_GRADIENT_FRACTION = 0.01


@dataclass(frozen=True)
class Flag:
    """One reason for doubt: its name, a figure, and a sentence on what it means and what to do."""

    name: str
    figure: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.name} {self.figure}"


def flags(records: Records, num_classes: int, guessed: Sequence[str] = ()) -> list[Flag]:
    """Return what speaks against the numbers of one cell.

    Args:
        records: the cell's records.
        num_classes: of the model.
        guessed: settings of the model that nothing declared.
    """
    found = _model_flags(records, num_classes, guessed)
    return found + _attack_flags(records) if "clean_pred" in records.column_names else found


def mixed_environment(environments: int) -> Flag:
    """Return the flag of a cell whose blocks were computed in several environments."""
    meaning = "blocks were computed with different library versions, devices or threads; see their side files"
    return Flag("mixed environment", str(environments), meaning)


def _model_flags(records: Records, num_classes: int, guessed: Sequence[str]) -> list[Flag]:
    found = []
    broken, clean, n = nonfinite(records), clean_accuracy(records), records.num_rows
    if broken:
        meaning = "images with NaN or infinite logits count as wrong; check the checkpoint and the precision"
        found.append(Flag("non-finite logits", f"{broken}/{n}", meaning))
    if _may_be_guessing(round(clean * n), n, 1 / num_classes):
        meaning = "clean accuracy is that of guessing: wrong attention, class order or preprocessing"
        found.append(Flag("near chance", f"{100 * clean:.1f}%", meaning))
    if guessed:
        meaning = "nothing declared these settings; give them as flags or in a sidecar file"
        found.append(Flag("guessed", ", ".join(guessed), meaning))
    return found


def _may_be_guessing(correct: int, n: int, chance: float) -> bool:
    """Return whether guessing gets as many right with probability above ``GUESSING``.

    With a handful of images even a perfect score could be luck; one past half-way from chance to perfect is
    not held against the model.
    """
    from scipy.stats import binom

    return bool(binom.sf(correct - 1, n, chance) > GUESSING) and correct / n < (1 + chance) / 2


def _attack_flags(records: Records) -> list[Flag]:
    found = []
    n = records.num_rows
    outside = int(np.count_nonzero(column(records, "violation")))
    if outside:
        meaning = "images outside the eps ball or the pixel range: the attack is at fault, the number is void"
        found.append(Flag("budget violated", f"{outside}/{n}", meaning))
    zero = int(np.count_nonzero(column(records, "grad_zero")))
    if zero > ZERO_GRADIENT_FRACTION * n:
        meaning = "images with a gradient of zero: the attack was blind there; run a gradient-free attack"
        found.append(Flag("zero gradients", f"{zero}/{n}", meaning))
    bad = int(np.count_nonzero(column(records, "grad_nonfinite")))
    if bad:
        meaning = "images with NaN or infinite gradient entries: the attack was hindered; check the model"
        found.append(Flag("non-finite gradients", f"{bad}/{n}", meaning))
    return found
