"""Rows from the store alone: cells that are done, that failed, and those whose code is gone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support import ATTACK_SCHEMA, CELL, CHANGES, CLEAN_SCHEMA, MODEL, columns

from robustbench_quest.names import names_of
from robustbench_quest.records import Records, make_records
from robustbench_quest.registry import ATTACKS, THREAT_KINDS
from robustbench_quest.store import Store
from robustbench_quest.stored_cell import StoredCell
from robustbench_quest.tables import render, result_of
from robustbench_quest.threats import threat
from robustbench_quest.trust import detached_metric, other_pixels
from robustbench_quest.types import CLEAN, AttackSide, AttentionSpec, Cell
from robustbench_quest.verified_files import read_json, write_json

ATTACKED = dataclasses.replace(
    CELL,
    model=dataclasses.replace(MODEL, guessed=("arch",), sources=(("arch", "inferred"),)),
    threat=threat("pgd", eps="1/255"),
    limit=3,
    block_size=2,
    protocol="pixel",
)
PLAIN = dataclasses.replace(ATTACKED, threat=CLEAN, side=None, seed=None, protocol="")


def rows(cell: Cell, start: int, stop: int) -> Records:
    n = stop - start
    values = {**columns(n), "index": np.arange(start, stop), "image_id": [f"img-{i}" for i in range(n)]}
    if cell.threat == CLEAN:
        return make_records(values, CLEAN_SCHEMA)
    zeros = {name: np.zeros(n) for name in ATTACK_SCHEMA.names if name not in values}
    values |= zeros | {"broken_by": [""] * n, "violation": np.zeros(n, bool)}
    return make_records(values, ATTACK_SCHEMA)


def fill(store: Store, cell: Cell, blocks: tuple[int, ...] = (0, 1)) -> StoredCell:
    stored = store.cell(cell)
    stored.write_cell(names_of(cell))
    for number in blocks:
        block = cell.blocks[number]
        stored.write_block(number, rows(cell, block.start, block.stop), {})
    return stored


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def refuse(note: str) -> None:
    raise AssertionError(note)


def test_a_cell_comes_back_from_the_disk(store: Store) -> None:
    made = [fill(store, cell) for cell in (ATTACKED, PLAIN)]
    found = list(store.cells(refuse))
    assert [stored.cell.id for stored in found] == sorted(cell.id for cell in (ATTACKED, PLAIN))
    by_id = {stored.cell.id: stored for stored in found}
    for stored in made:
        again = by_id[stored.cell.id]
        assert again.path == stored.path
        assert again.cell.model == stored.cell.model
        assert again.cell.dataset == stored.cell.dataset
        assert again.cell.side == stored.cell.side
        assert again.cell.threat.eps == stored.cell.threat.eps
        assert result_of(again) == result_of(stored)
    assert [result_of(by_id[cell.id]).flags[0].name for cell in (ATTACKED, PLAIN)] == ["guessed"] * 2


def test_a_row_is_made_without_the_attack(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, ATTACKED)
    monkeypatch.setattr(ATTACKS, "_entries", {})
    row = result_of(next(store.cells(refuse)))
    assert (row.title, row.eps, row.norm, row.n) == ("PGD linf 1/255", "1/255", "linf", 3)
    assert row.settings.startswith("PGD(eps='1/255', norm='linf', steps=")
    assert row.numbers == {"top1": 100.0, "top5": 100.0, "nll": 1.5, "clean_top1": 100.0}
    assert "PGD(eps='1/255'" in render([row], "table")


def test_a_row_of_a_kind_that_is_gone_is_shown_as_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, ATTACKED)
    monkeypatch.setattr(THREAT_KINDS, "_entries", {})
    row = result_of(next(store.cells(refuse)))
    assert (row.state, row.title) == ("failed", "PGD linf 1/255")
    assert "unknown kind of threat 'attack'" in row.error


def test_what_was_evaluated_can_be_renamed(store: Store) -> None:
    stored = fill(store, PLAIN)
    assert (result_of(stored).model, result_of(stored, model_name="mine").model) == ("m", "mine")


def test_a_name_that_is_no_text_is_escaped(store: Store) -> None:
    odd = "caf\udce9"  # what Python makes of a file's name in Latin-1
    model = dataclasses.replace(MODEL, name=odd, sources=(("arch", f"sidecar {odd}.yaml"),))
    stored = fill(store, dataclasses.replace(PLAIN, model=model))
    assert result_of(stored).model == result_of(stored, model_name=odd).model == r"caf\udce9"
    for form in ("table", "csv", "latex", "json"):
        render([result_of(stored, model_name=odd)], form).encode()


def test_a_cell_that_failed_before_it_began_is_shown(store: Store) -> None:
    store.cell(ATTACKED).write_error({"error": "MemoryError: full"}, names_of(ATTACKED))
    row = result_of(next(store.cells(refuse)))
    assert (row.state, row.error, row.numbers["top1"]) == ("failed", "MemoryError: full", None)
    for form in ("table", "csv", "latex", "json"):
        assert "MemoryError: full" in render([row], form)


def test_a_cell_that_is_not_complete_is_shown(store: Store) -> None:
    fill(store, ATTACKED, blocks=(1,))
    row = result_of(next(store.cells(refuse)))
    assert row.state == "incomplete"
    assert row.error == "1 of 2 blocks are missing; run the command again"


def test_an_error_of_a_cell_that_was_then_finished_is_past(store: Store) -> None:
    stored = fill(store, ATTACKED)
    stored.write_error({"error": "full"}, names_of(ATTACKED))
    assert result_of(stored).state == "done"


def test_a_damaged_error_is_shown_as_such(store: Store) -> None:
    stored = store.cell(ATTACKED)
    stored.write_error({"error": "MemoryError: full"}, names_of(ATTACKED))
    path = stored.path / "error.json"
    path.write_bytes(path.read_bytes().replace(b"full", b"fall"))
    row = result_of(stored)
    assert row.state == "failed"
    assert "error.json cannot be read (its content does not fit its sha256)" in row.error


def test_a_damaged_block_is_shown_as_failed(store: Store) -> None:
    stored = fill(store, ATTACKED)
    stored.block_path(1).write_bytes(b"")
    row = result_of(stored)
    assert row.state == "failed"
    assert "block-00001.parquet cannot be read (its 0 bytes do not fit their sha256); run the" in row.error


def test_what_is_no_cell_is_reported_and_the_others_are_found(store: Store) -> None:
    for limit in (1, 2, 3, 4, 5):
        fill(store, dataclasses.replace(PLAIN, limit=limit), blocks=())
    paths = [stored.path for stored in store.cells(refuse)]
    (paths[0] / "cell.json").write_text("{}")
    (paths[1] / "cell.json").unlink()
    facts = read_json(paths[2] / "cell.json")
    write_json(paths[2] / "cell.json", {**facts, "identity": {**facts["identity"], "schema": 99}})
    (paths[3] / "cell.json").write_bytes((paths[4] / "cell.json").read_bytes())
    (store.root / "cells" / "notes.txt").write_text("")
    (store.root / "cells" / ".hidden").write_text("")
    (paths[4].parent / "file").write_text("")
    notes: list[str] = []
    assert [stored.path for stored in store.cells(notes.append)] == [paths[4]]
    expected = {
        str(paths[0]): "states no sha256: damaged, or of an older version",
        str(paths[1]): "No such file or directory",
        str(paths[2]): "has schema version 99, this program 2",
        str(paths[3]): f"states the cell {paths[4].name[:12]}, but its folder is",
        str(paths[4].parent / "file"): "is no folder of a cell",
        str(store.root / "cells" / "notes.txt"): "cannot be listed: Not a directory",
    }
    assert len(notes) == len(expected)
    for path, reason in expected.items():
        (note,) = [note for note in notes if note.startswith(path)]
        assert reason in note
        assert "\n" not in note


@pytest.mark.parametrize("key", ["identity", "names", "id"])
def test_a_cell_json_that_describes_no_cell_is_reported(key: str, store: Store) -> None:
    stored = fill(store, PLAIN, blocks=())
    facts = read_json(stored.path / "cell.json")
    for changed in ({name: value for name, value in facts.items() if name != key}, {**facts, key: 7}):
        write_json(stored.path / "cell.json", changed)
        notes: list[str] = []
        assert list(store.cells(notes.append)) == []
        assert len(notes) == 1


def test_every_setting_of_a_cell_comes_back(store: Store) -> None:
    for change in CHANGES:
        cell = dataclasses.replace(CELL, **change)
        stored = store.cell(cell)
        names = {**names_of(ATTACKED), "model": cell.model.name, "guessed": [], "sources": {}}
        stored.write_cell(names)
        assert StoredCell.found(stored.path).cell.id == cell.id
    assert len(list(store.cells(refuse))) == len(CHANGES)


def test_other_pixels_are_flagged(store: Store) -> None:
    clean, attacked = rows(PLAIN, 0, 3), rows(ATTACKED, 0, 3)
    assert other_pixels(attacked, clean) is None
    assert other_pixels(attacked, clean.slice(1)) is None
    crc = pa.array([0, 1, 7], pa.uint32())
    place = clean.column_names.index("input_crc")
    replaced = clean.set_column(place, "input_crc", crc)
    assert str(other_pixels(attacked, replaced)) == "other pixels 1/3"
    assert str(other_pixels(attacked, replaced.slice(2))) == "other pixels 1/1"
    row = result_of(fill(store, dataclasses.replace(ATTACKED, block_size=3), (0,)), clean_records=replaced)
    assert row.flags[-1].name == "other pixels"


@pytest.mark.parametrize(
    ("attention", "side", "flagged"),
    [
        ("elliptical", AttackSide(adaptive=False), True),
        ("elliptical-quest", AttackSide(adaptive=False), True),
        ("elliptical", AttackSide(), False),
        ("quest", AttackSide(adaptive=False), False),
        ("elliptical", None, False),
    ],
)
def test_a_detached_metric_is_flagged(attention: str, side: AttackSide | None, flagged: bool) -> None:
    model = dataclasses.replace(MODEL, attention=AttentionSpec(attention))
    flag = detached_metric(dataclasses.replace(ATTACKED, model=model, side=side))
    assert (flag is not None) is flagged
    assert (
        detached_metric(dataclasses.replace(ATTACKED, model=dataclasses.replace(MODEL, attention=None)))
        is None
    )
