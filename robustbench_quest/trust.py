"""Flags that say when a number may be wrong, computed from records. Thresholds are the constants below.

A check is made where records have the columns that it needs, whatever the task and the threat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .metrics import clean_accuracy, nonfinite
from .records import Records, column
from .types import Cell

GUESSING = 0.001  # probability
ZERO_GRADIENT_FRACTION = 0.01

# Their metric M is computed without a gradient in the code that was published.
DETACHABLE = ("elliptical", "elliptical-quest")


@dataclass(frozen=True)
class Flag:
    """One reason for doubt: its name, a figure, and a sentence on what it means and what to do."""

    name: str
    figure: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.name} {self.figure}"


def flags(
    records: Records, num_classes: int, guessed: Sequence[str] = (), *, answers_clean: bool = True
) -> list[Flag]:
    """Return what speaks against the numbers of one cell.

    Args:
        records: the cell's records.
        num_classes: of the model.
        guessed: settings of the model that nothing declared.
        answers_clean: whether the records hold the model's answers to clean images.
    """
    return _model_flags(records, num_classes, guessed, answers_clean) + _attack_flags(records)


def mixed_environment(environments: int) -> Flag:
    """Return the flag of a cell whose blocks were computed in several environments."""
    meaning = "blocks were computed with different library versions, devices or threads; see their side files"
    return Flag("mixed environment", str(environments), meaning)


def unknown_environment(lost: int, blocks: int) -> Flag:
    """Return the flag of a cell of which the side files of ``lost`` blocks are lost or damaged."""
    meaning = (
        "with which library versions and device these blocks were computed is lost; delete them to know again"
    )
    return Flag("environment unknown", f"{lost}/{blocks} blocks", meaning)


def detached_metric(cell: Cell) -> Flag | None:
    """Return the flag of an attack whose gradient ignored the metric M of Elliptical attention, or None."""
    attention = cell.model.attention
    if cell.side is None or cell.side.adaptive or attention is None or attention.name not in DETACHABLE:
        return None
    meaning = "the attack's gradient ignored M, as in the published code: robust accuracy may be too high"
    return Flag("detached metric", f"of {attention.name}", meaning)


def other_pixels(records: Records, clean_records: Records) -> Flag | None:
    """Return the flag of a cell whose images are not those of the model's clean cell, or None.

    Args:
        records: of the cell.
        clean_records: of the clean images of the same data set, for the same model.
    """
    clean = dict(zip(clean_records["image_id"].to_pylist(), column(clean_records, "input_crc"), strict=True))
    ids, found = records["image_id"].to_pylist(), column(records, "input_crc")
    common = [(crc, clean[name]) for name, crc in zip(ids, found, strict=True) if name in clean]
    differ = sum(int(ours != theirs) for ours, theirs in common)
    if not differ:
        return None
    meaning = "images had other pixels than in the clean cell: another decoder, or files that were replaced"
    return Flag("other pixels", f"{differ}/{len(common)}", meaning)


def _has(records: Records, *names: str) -> bool:
    return set(names) <= set(records.column_names)


def _model_flags(
    records: Records, num_classes: int, guessed: Sequence[str], answers_clean: bool
) -> list[Flag]:
    found = []
    n = records.num_rows
    if _has(records, "finite") and (broken := nonfinite(records)):
        meaning = "images with NaN or infinite logits count as wrong; check the checkpoint and the precision"
        found.append(Flag("non-finite logits", f"{broken}/{n}", meaning))
    if answers_clean and num_classes > 1 and _has(records, "label", "correct"):
        clean = clean_accuracy(records)
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
    if outside := _images_with(records, "violation"):
        meaning = "images outside the eps ball or the pixel range: the attack is at fault, the number is void"
        found.append(Flag("budget violated", f"{outside}/{n}", meaning))
    zero = _images_with(records, "grad_zero")
    if zero > ZERO_GRADIENT_FRACTION * n:
        meaning = "images with a gradient of zero: the attack was blind there; run a gradient-free attack"
        found.append(Flag("zero gradients", f"{zero}/{n}", meaning))
    if bad := _images_with(records, "grad_nonfinite"):
        meaning = "images with NaN or infinite gradient entries: the attack was hindered; check the model"
        found.append(Flag("non-finite gradients", f"{bad}/{n}", meaning))
    return found


def _images_with(records: Records, name: str) -> int:
    """Return of how many images a column is not zero; 0 where there is no such column."""
    return int(np.count_nonzero(column(records, name))) if _has(records, name) else 0
