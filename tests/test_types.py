"""Cell ids: the same work has the same id, other work another."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
from support import CELL, MODEL

from robustbench_quest.types import (
    AttackSide,
    AttentionSpec,
    DatasetSpec,
    Preprocessing,
    SpaceSpec,
    Threat,
    canonical,
)


def test_the_id_is_frozen() -> None:
    # A change here means that every stored result is orphaned: raise SCHEMA_VERSION knowingly.
    assert CELL.id[:16] == "a92bc1b20ba15aa9"


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 200},
        {"seed": 1},
        {"block_size": 128},
        {"side": AttackSide(SpaceSpec("normalised"))},
        {"side": AttackSide(SpaceSpec(clamp=None))},
        {"side": AttackSide(SpaceSpec("normalised", std=(0.2, 0.2, 0.2)))},
        {"side": AttackSide(adaptive=False)},
        {"threat": Threat("corruption", "pgd", (("eps", Fraction(1, 255)), ("steps", 20)))},
        {"dataset": DatasetSpec("folder", "1" * 64, 1, task="counting")},
        {"precision": "bfloat16"},
        {"threat": Threat("attack", "pgd", (("eps", Fraction(2, 255)), ("steps", 20)))},
        {"threat": Threat("attack", "pgd", (("eps", Fraction(1, 255)), ("steps", 20)), version=2)},
        {"dataset": DatasetSpec("folder", "2" * 64, 1)},
        {"dataset": DatasetSpec("folder", "1" * 64, 2)},
        {"model": dataclasses.replace(MODEL, checkpoint="2" * 64)},
        {"model": dataclasses.replace(MODEL, arch="deit_tiny_patch16_224")},
        {"model": dataclasses.replace(MODEL, arch_options=(("depth", 6),))},
        {"model": dataclasses.replace(MODEL, weights="model_ema")},
        {"model": dataclasses.replace(MODEL, source_hash="3" * 64)},
        {"model": dataclasses.replace(MODEL, attention=None)},
        {"model": dataclasses.replace(MODEL, attention=AttentionSpec("qnorm"))},
        {"model": dataclasses.replace(MODEL, attention=AttentionSpec("quest", version=2))},
        {"model": dataclasses.replace(MODEL, attention=AttentionSpec("quest", (("a", 1),)))},
        {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 248))},
        {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 256, crop_mode="squash"))},
        {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 256, mean=(0.5, 0.5, 0.5)))},
    ],
    ids=str,
)
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
