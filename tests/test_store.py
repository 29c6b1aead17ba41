"""The store: what is written is whole, what is missing is known, what is damaged is named."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import CELL, CLEAN_SCHEMA, columns

from robustbench_quest.errors import StoreError
from robustbench_quest.records import Records, digest, make_records
from robustbench_quest.store import Store, StoredCell, write_atomically
from robustbench_quest.types import CLEAN

SMALL = dataclasses.replace(CELL, threat=CLEAN, side=None, seed=None, limit=5, block_size=2)


def block(number: int) -> Records:
    n = len(SMALL.blocks[number])
    start = SMALL.blocks[number].start
    return make_records({**columns(n), "index": range(start, start + n)}, CLEAN_SCHEMA)


@pytest.fixture
def stored(tmp_path: Path) -> StoredCell:
    return Store(tmp_path / "results").cell(SMALL)


def fill(stored: StoredCell) -> None:
    stored.write_cell({"model": "m"})
    for number in stored.missing():
        stored.write_block(number, block(number), {"host": "h"})


def test_blocks_come_back_as_they_were(stored: StoredCell) -> None:
    assert stored.missing() == [0, 1, 2]
    stored.write_block(1, block(1), {})
    assert stored.missing() == [0, 2]
    fill(stored)
    records = stored.finish()
    assert records.num_rows == 5
    assert digest(records) == digest(pa.concat_tables([block(i) for i in range(3)]))
    done = json.loads((stored.path / "DONE.json").read_bytes())
    assert done == {"cell": SMALL.id, "n": 5, "correct": 5, "blocks": 3, "digest": digest(records)}
    assert [facts["id"] for facts in Store(stored.path.parents[2]).facts()] == [SMALL.id]


def test_the_same_rows_give_the_same_bytes(stored: StoredCell, tmp_path: Path) -> None:
    other = Store(tmp_path / "other").cell(SMALL)
    stored.write_block(0, block(0), {"host": "one"})
    other.write_block(0, block(0), {"host": "two"})
    assert stored.block_path(0).read_bytes() == other.block_path(0).read_bytes()


def test_reading_an_incomplete_cell_is_refused(stored: StoredCell) -> None:
    stored.write_block(0, block(0), {})
    with pytest.raises(StoreError, match="2 of 3 blocks are missing"):
        stored.read()


def test_a_torn_block_is_named(stored: StoredCell) -> None:
    fill(stored)
    path = stored.block_path(1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"block-00001\.parquet cannot be read .* delete it and run"):
        stored.finish()


def test_a_block_of_another_cell_or_range_is_named(stored: StoredCell, tmp_path: Path) -> None:
    fill(stored)
    other = Store(tmp_path / "other").cell(dataclasses.replace(SMALL, limit=6))
    other.write_block(1, block(1), {})
    stored.block_path(1).write_bytes(other.block_path(1).read_bytes())
    with pytest.raises(StoreError, match="belongs to another cell or range"):
        stored.read()
    stored.block_path(1).write_bytes(stored.block_path(0).read_bytes())
    with pytest.raises(StoreError, match="belongs to another cell or range"):
        stored.read()


def test_a_digest_that_does_not_fit_is_named(stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    done = stored.path / "DONE.json"
    done.write_bytes(done.read_bytes().replace(b'"digest":"', b'"digest":"0'))
    with pytest.raises(StoreError, match="does not state what its blocks hold"):
        stored.finish()


@pytest.mark.parametrize("field", ["n", "correct", "blocks"])
def test_counts_that_do_not_fit_are_named(field: str, stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    done = stored.path / "DONE.json"
    facts = json.loads(done.read_bytes())
    done.write_text(json.dumps({**facts, field: facts[field] + 1}))
    with pytest.raises(StoreError, match="does not state what its blocks hold"):
        stored.finish()


@pytest.mark.parametrize("text", ["[]", "1", "{", ""])
def test_damaged_json_is_named(text: str, stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    for name in ("DONE.json", "cell.json"):
        before = (stored.path / name).read_bytes()
        (stored.path / name).write_text(text)
        with pytest.raises(StoreError, match=rf"{name} cannot be read"):
            (stored.write_cell({}), stored.finish())
        (stored.path / name).write_bytes(before)


def test_a_cell_json_of_another_cell_is_named(stored: StoredCell) -> None:
    stored.write_cell({})
    facts = stored.path / "cell.json"
    facts.write_bytes(facts.read_bytes().replace(b'"limit":5', b'"limit":6'))
    with pytest.raises(StoreError, match=r"cell\.json states another cell"):
        stored.write_cell({})


@pytest.mark.parametrize("name", ["nll", "index", "correct"])
def test_a_block_without_a_column_is_named(name: str, stored: StoredCell) -> None:
    fill(stored)
    table = pq.ParquetFile(stored.block_path(1)).read()
    pq.write_table(table.drop_columns([name]), stored.block_path(1))
    with pytest.raises(StoreError, match=r"block-00001\.parquet cannot be read"):
        stored.finish()


def test_rows_must_be_the_planned_ones(stored: StoredCell) -> None:
    with pytest.raises(ValueError, match="block 1 must hold the images 2-3 in order"):
        stored.write_block(1, block(0), {})


def test_another_schema_version_is_refused(stored: StoredCell) -> None:
    stored.write_cell({})
    facts = stored.path / "cell.json"
    facts.write_bytes(facts.read_bytes().replace(b'"schema":2', b'"schema":1'))
    with pytest.raises(StoreError, match=r"has schema version 1, this program 2; use another --out"):
        stored.write_cell({})


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file; give a folder"):
        Store(tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # a file where a folder is needed fails for root as well
    with pytest.raises(StoreError, match=r"cannot write .*choose another --out"):
        write_atomically(tmp_path / "file" / "x.json", b"")


def test_an_error_goes_when_the_cell_is_done(stored: StoredCell) -> None:
    stored.write_error({"error": "out of memory"})
    fill(stored)
    stored.finish()
    assert not (stored.path / "error.json").exists()


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_store import SMALL, block
from robustbench_quest.store import Store
stored = Store(sys.argv[1]).cell(SMALL)
while True:
    for number in range(3):
        stored.write_block(number, block(number), {})
        print("go", flush=True)
"""


def test_kill_9_never_leaves_a_torn_block(tmp_path: Path) -> None:
    stored = Store(tmp_path).cell(SMALL)
    for attempt in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            time.sleep(0.01 + 0.013 * attempt)
            os.kill(writer.pid, signal.SIGKILL)
        for number in set(range(3)) - set(stored.missing()):
            assert digest(stored.read_block(number)) == digest(block(number))
    assert len(stored.missing()) < 3
