"""CSV and JSON: one row per cell, every value on its own, for programs.

CSV columns: model, weights, attention, dataset, threat, norm, eps, n, top1, top5, nll, clean_top1, protocol,
seed, settings, flags, error, cell_id. Accuracies are in percent, NLL in nats; an empty field means not
available.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from .result import Result

COLUMNS = (
    "model",
    "weights",
    "attention",
    "dataset",
    "threat",
    "norm",
    "eps",
    "n",
    "top1",
    "top5",
    "nll",
    "clean_top1",
    "protocol",
    "seed",
    "settings",
    "flags",
    "error",
    "cell_id",
)
DECIMALS = 6


def to_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV with a header line."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for r in results:
        values = {**r.as_dict(), "flags": "; ".join(map(str, r.flags))}
        writer.writerow({name: _text(values[name]) for name in COLUMNS})
    return buffer.getvalue()


def to_json(results: Sequence[Result]) -> str:
    """Return the results as a JSON list; an infinite NLL is the string "inf", since JSON has no infinity."""
    rows = [{name: _finite(value) for name, value in r.as_dict().items()} for r in results]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{DECIMALS}f}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value
