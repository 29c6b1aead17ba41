"""Records: columns, types, and a digest that sees every value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support import ATTACK_SCHEMA, CLEAN_SCHEMA, columns

from robustbench_quest.records import column, columns_of, digest, make_records


def test_columns_and_types() -> None:
    records = make_records(columns(), CLEAN_SCHEMA)
    assert records.schema.equals(CLEAN_SCHEMA)
    assert column(records, "pred").shape == (3, 5)
    assert column(records, "image_id").tolist() == ["img-0", "img-1", "img-2"]
    assert set(ATTACK_SCHEMA.names) > set(CLEAN_SCHEMA.names)


def test_a_missing_or_extra_column_is_refused() -> None:
    with pytest.raises(ValueError, match=r"columns \['nll'\] are missing or extra"):
        make_records({name: values for name, values in columns().items() if name != "nll"}, CLEAN_SCHEMA)
    with pytest.raises(ValueError, match="queries"):
        make_records({**columns(), "queries": [1, 1, 1]}, CLEAN_SCHEMA)


def test_nulls_are_never_read_as_numbers() -> None:
    records = make_records({**columns(), "correct5": [None] * 3}, CLEAN_SCHEMA)
    with pytest.raises(ValueError, match="column correct5 holds nulls"):
        column(records, "correct5")


def test_columns_come_back_as_they_were() -> None:
    records = make_records({**columns(), "correct5": [None] * 3}, CLEAN_SCHEMA)
    found = columns_of(records)
    assert found["correct5"].tolist() == [None] * 3
    assert found["pred"].shape == (3, 5)
    found["nll"][0] = 7.0  # a copy, which can be written to
    assert column(records, "nll")[0] == 1.5
    assert digest(make_records(columns_of(records), CLEAN_SCHEMA)) == digest(records)


@pytest.mark.parametrize("name", CLEAN_SCHEMA.names)
def test_the_digest_sees_every_column(name: str) -> None:
    base = columns()
    values = base[name]
    changed: Any = ["img-0", "img-1", "img-x"] if name == "image_id" else np.array(values)
    if name != "image_id":
        changed[-1] = ~changed[-1] if changed.dtype == bool else changed[-1] + 1
    other = make_records({**base, name: changed}, CLEAN_SCHEMA)
    assert digest(other) != digest(make_records(base, CLEAN_SCHEMA))


def test_the_digest_does_not_see_how_rows_are_stored() -> None:
    whole = make_records(columns(4), CLEAN_SCHEMA)
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert parts["nll"].num_chunks == 2
    assert digest(parts) == digest(whole) != digest(whole.slice(1))
    nulls = {**columns(4), "correct5": [None] * 4}
    zeros = {**columns(4), "correct5": [False] * 4}
    assert digest(make_records(nulls, CLEAN_SCHEMA)) != digest(make_records(zeros, CLEAN_SCHEMA))
