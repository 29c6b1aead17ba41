"""One evaluated cell as a row of numbers, computed from its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..budget import format_eps
from ..metrics import accuracy, accuracy5, clean_accuracy, nll
from ..records import Records
from ..threats import kind_of
from ..trust import Flag, flags, mixed_environment
from ..types import Cell


@dataclass(frozen=True)
class Result:
    """The numbers of one cell. Accuracies are in percent; None means not available.

    Args:
        model, dataset, threat, norm, protocol: names.
        weights: which of a checkpoint's state dicts, such as "model" or "model_ema"; "" for the file itself.
        attention_name, attention: the variant's name, alone and with its options.
        title: the threat as people write it.
        settings: every setting of the threat, as its ``repr``.
        eps: the budget as "4/255", "" for clean images.
        seed: of the draws; None where there are none.
        n: number of images.
        top1, top5, nll: of the perturbed images; ``nll`` in nats.
        clean_top1: of the same images before the attack.
        flags: reasons for doubt.
        cell_id: names the records in the store.
        error: why there are no numbers, "" where there are.
    """

    model: str
    weights: str
    attention_name: str
    attention: str
    dataset: str
    threat: str
    title: str
    norm: str
    protocol: str
    settings: str
    eps: str
    seed: int | None
    n: int
    top1: float | None
    top5: float | None
    nll: float | None
    clean_top1: float | None
    flags: tuple[Flag, ...]
    cell_id: str
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; flags as a list of dicts."""
        return asdict(self)


def result(
    cell: Cell, records: Records | None, settings: str, error: str = "", environments: int = 1
) -> Result:
    """Return the row of a cell; ``records`` None is a cell that failed for the reason ``error``.

    Args:
        cell: what was evaluated.
        records: its records.
        settings: the threat with all its settings, as text.
        error: why there are no records.
        environments: in how many environments the cell's blocks were computed.
    """
    top5 = None if records is None else accuracy5(records)
    attention = cell.model.attention
    eps = cell.threat.eps
    norm = str(dict(cell.threat.options).get("norm", ""))
    return Result(
        model=cell.model.name,
        weights=cell.model.weights,
        attention_name="own" if attention is None else attention.name,
        attention="own" if attention is None else str(attention),
        dataset=cell.dataset.name,
        threat=cell.threat.name,
        title=kind_of(cell.threat).title(cell.threat),
        norm=norm,
        protocol=cell.protocol,
        settings=settings,
        eps="" if eps is None else format_eps(eps, norm or "linf"),
        seed=cell.seed,
        n=cell.limit,
        top1=None if records is None else 100 * accuracy(records),
        top5=None if top5 is None else 100 * top5,
        nll=None if records is None else nll(records),
        clean_top1=None if records is None else 100 * clean_accuracy(records),
        flags=() if records is None else tuple(_flags(cell, records, environments)),
        cell_id=cell.id,
        error=error,
    )


def _flags(cell: Cell, records: Records, environments: int) -> list[Flag]:
    found = flags(records, cell.model.num_classes, cell.model.guessed)
    return [*found, mixed_environment(environments)] if environments > 1 else found
