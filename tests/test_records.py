"""Records: columns, types, and a digest that sees every value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from robustbench_quest.records import column, digest, make_records, schema


def columns(n: int = 3) -> dict[str, Any]:
    return {
        "index": np.arange(n),
        "image_id": [f"img-{i}" for i in range(n)],
        "input_crc": np.arange(n, dtype=np.uint32),
        "label": np.zeros(n, dtype=np.int64),
        "pred": np.tile(np.arange(5), (n, 1)),
        "prob": np.full((n, 5), 0.2),
        "nll": np.full(n, 1.5),
        "brier": np.full(n, 0.8),
        "margin": np.full(n, 0.1),
        "correct": np.ones(n, dtype=bool),
        "correct5": np.ones(n, dtype=bool),
        "finite": np.ones(n, dtype=bool),
    }


def test_columns_and_types() -> None:
    records = make_records(columns(), attacked=False)
    assert records.schema.equals(schema(attacked=False))
    assert column(records, "pred").shape == (3, 5)
    assert column(records, "image_id").tolist() == ["img-0", "img-1", "img-2"]
    assert set(schema(attacked=True).names) > set(schema(attacked=False).names)


def test_a_missing_or_extra_column_is_refused() -> None:
    with pytest.raises(ValueError, match=r"columns \['nll'\] are missing or extra"):
        make_records({name: values for name, values in columns().items() if name != "nll"}, attacked=False)
    with pytest.raises(ValueError, match="queries"):
        make_records({**columns(), "queries": [1, 1, 1]}, attacked=False)


def test_nulls_are_never_read_as_numbers() -> None:
    records = make_records({**columns(), "correct5": [None] * 3}, attacked=False)
    with pytest.raises(ValueError, match="column correct5 holds nulls"):
        column(records, "correct5")


@pytest.mark.parametrize("name", schema(attacked=False).names)
def test_the_digest_sees_every_column(name: str) -> None:
    base = columns()
    values = base[name]
    changed: Any = ["img-0", "img-1", "img-x"] if name == "image_id" else np.array(values)
    if name != "image_id":
        changed[-1] = ~changed[-1] if changed.dtype == bool else changed[-1] + 1
    other = make_records({**base, name: changed}, attacked=False)
    assert digest(other) != digest(make_records(base, attacked=False))


def test_the_digest_does_not_see_how_rows_are_stored() -> None:
    whole = make_records(columns(4), attacked=False)
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert parts["nll"].num_chunks == 2
    assert digest(parts) == digest(whole) != digest(whole.slice(1))
    nulls = {**columns(4), "correct5": [None] * 4}
    zeros = {**columns(4), "correct5": [False] * 4}
    assert digest(make_records(nulls, attacked=False)) != digest(make_records(zeros, attacked=False))
