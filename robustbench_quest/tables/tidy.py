"""CSV and JSON: one row per cell, every value on its own, for programs.

CSV columns: model, weights, attention, dataset, threat, norm, eps, n, then the task's metrics (for
classification top1, top5, nll, clean_top1), protocol, seed, settings, flags, error, cell_id. Metrics are in
the units of ``METRICS`` (accuracies in percent, NLL in nats); an empty field means not available.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .result import Result

BEFORE = ("model", "weights", "attention", "dataset", "threat", "norm", "eps", "n")
AFTER = ("protocol", "seed", "settings", "flags", "error", "cell_id")
DECIMALS = 6

# Of a result, in the order of JSON; the metrics follow n.
FIELDS = (
    "model",
    "weights",
    "attention_name",
    "attention",
    "dataset",
    "threat",
    "title",
    "norm",
    "protocol",
    "settings",
    "eps",
    "seed",
    "n",
)


def to_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV with a header line."""
    metrics = dict.fromkeys(name for r in results for name in r.numbers)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, (*BEFORE, *metrics, *AFTER), lineterminator="\n", restval="")
    writer.writeheader()
    for r in results:
        values = {name: getattr(r, name) for name in (*BEFORE, *AFTER)} | dict(r.numbers)
        values["flags"] = "; ".join(map(str, r.flags))
        writer.writerow({name: _text(value) for name, value in values.items()})
    return buffer.getvalue()


def to_json(results: Sequence[Result]) -> str:
    """Return the results as a JSON list; an infinite NLL is the string "inf", since JSON has no infinity."""
    rows = [{name: _finite(value) for name, value in _plain(r).items()} for r in results]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(r: Result) -> dict[str, Any]:
    return {
        **{name: getattr(r, name) for name in FIELDS},
        **r.numbers,
        "flags": [asdict(flag) for flag in r.flags],
        "cell_id": r.cell_id,
        "error": r.error,
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{DECIMALS}f}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
