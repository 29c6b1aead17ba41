"""Cell ids: the same work has the same id, other work another."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
from support import CELL, CHANGES, MODEL

from robustbench_quest.types import (
    canonical,
)


def test_the_id_is_frozen() -> None:
    # A change here means that every stored result is orphaned: raise SCHEMA_VERSION knowingly.
    assert CELL.id[:16] == "a92bc1b20ba15aa9"


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_can_change_a_number_changes_the_id(change: dict[str, Any]) -> None:
    assert dataclasses.replace(CELL, **change).id != CELL.id


@pytest.mark.parametrize(
    "change",
    [{"name": "renamed"}, {"sources": (("arch", "flag"),)}, {"guessed": ("arch",)}],
    ids=str,
)
def test_names_and_sources_do_not_change_the_id(change: dict[str, Any]) -> None:
    assert dataclasses.replace(CELL, model=dataclasses.replace(MODEL, **change)).id == CELL.id


def test_a_protocol_is_a_label() -> None:
    assert dataclasses.replace(CELL, protocol="other").id == CELL.id


def test_blocks_cover_the_limit_once() -> None:
    assert [list(block) for block in dataclasses.replace(CELL, limit=5, block_size=2).blocks] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert dataclasses.replace(CELL, limit=512).blocks == [range(256), range(256, 512)]


def test_canonical_json() -> None:
    assert canonical({"b": Fraction(2, 510), "a": [1, 2.5]}) == b'{"a":[1,2.5],"b":"1/255"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))
    with pytest.raises(TypeError, match="set has no canonical form"):
        canonical({1})
