"""The store: what is written is whole, what is missing is known, what is damaged is named."""

from __future__ import annotations

import dataclasses
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
from robustbench_quest.store import Store
from robustbench_quest.stored_cell import StoredCell
from robustbench_quest.types import CLEAN
from robustbench_quest.verified_files import Damaged, read_json, write_atomically, write_json

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
    done = {"cell": SMALL.id, "n": 5, "correct": 5, "blocks": 3, "digest": digest(records)}
    assert read_json(stored.path / "DONE.json") == done


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
    with pytest.raises(Damaged, match=r"block-00001\.parquet cannot be read .* run the command again"):
        stored.finish()
    assert [(number, where) for number, where, _ in stored.damaged()] == [(1, path)]
    assert stored.missing() == []


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


@pytest.mark.parametrize("field", ["n", "correct", "blocks", "digest", "cell"])
def test_done_is_written_again_where_it_does_not_fit(field: str, stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    done = stored.path / "DONE.json"
    before = done.read_bytes()
    write_json(done, {**read_json(done), field: 7})
    notes: list[str] = []
    stored.finish(notes.append)
    assert notes == [
        f"{done} does not state what its blocks hold; every block was verified, and it is written again"
    ]
    assert done.read_bytes() == before


@pytest.mark.parametrize("text", ["[]", "1", "{", "", "{}", '{"sha256":1}', "[" * 100_000, "\x00"])
def test_damaged_json_is_noticed_and_written_again(text: str, stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    for name in ("DONE.json", "cell.json"):
        before = (stored.path / name).read_bytes()
        (stored.path / name).write_text(text)
        notes: list[str] = []
        stored.write_cell({"model": "m"}, notes.append)
        stored.finish(notes.append)
        assert len(notes) == 1
        assert f"{name} cannot be read (" in notes[0]
        assert "\n" not in notes[0]
        assert (stored.path / name).read_bytes() == before


def test_a_cell_json_of_another_cell_is_named(stored: StoredCell) -> None:
    stored.write_cell({})
    facts = read_json(stored.path / "cell.json")
    write_json(stored.path / "cell.json", {**facts, "identity": {**facts["identity"], "limit": 6}})
    with pytest.raises(StoreError, match=r"cell\.json states another cell"):
        stored.write_cell({})


def test_names_are_those_of_the_last_command(stored: StoredCell) -> None:
    stored.write_cell({"model": "first"})
    stored.write_cell({"model": "last"})
    assert stored.names() == {"model": "last"}


def test_names_that_cannot_be_kept_are_no_failure(
    stored: StoredCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.write_cell({"model": "first"})

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    notes: list[str] = []
    stored.write_cell({"model": "last"}, notes.append)
    assert stored.names() == {"model": "first"}
    assert "Permission denied" in notes[0]
    assert "its names stay those of an earlier command" in notes[0]


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
    facts = read_json(stored.path / "cell.json")
    write_json(stored.path / "cell.json", {**facts, "identity": {**facts["identity"], "schema": 1}})
    with pytest.raises(StoreError, match=r"has schema version 1, this program 2; use another --out"):
        stored.write_cell({})


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file; give a folder"):
        Store(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 5000, r"the store x{60}\.\.\. \(5000 characters\) cannot be used: File name too long"),
        ("a\0b", r"the store a\\x00b cannot be used: embedded null"),
        ("link", r"link is a link to gone, which is not there"),
        ("file/inside", r"file/inside cannot be used: Not a directory"),
        ("/dev/null/x", "/dev/null/x cannot be used: Not a directory"),
    ],
)
def test_a_name_that_cannot_be_a_store_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("gone")
    Path("file").write_text("")
    with pytest.raises(StoreError, match=message) as caught:
        Store(name)
    assert "\n" not in str(caught.value)


def test_a_store_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    store = Store(tmp_path / "new")
    for call in ("os.lstat", "pathlib.Path.mkdir", "os.listdir"):
        with monkeypatch.context() as patch:
            patch.setattr(call, refuse)
            with pytest.raises(StoreError, match=r"new.*: Permission denied"):
                (Store(tmp_path / "new"), store.make(), list(store.cells(print)))


def test_what_lies_in_the_way_is_named(stored: StoredCell) -> None:
    fill(stored)
    for name in ("block-00001.parquet", "cell.json", "DONE.json"):
        (stored.path / name).unlink(missing_ok=True)
        (stored.path / name).mkdir()
    assert [reason for _, _, reason in stored.damaged()] == ["is no regular file"]
    with pytest.raises(StoreError, match=r"block-00001\.parquet is a folder where a file belongs; move it"):
        stored.write_block(1, block(1), {})
    with pytest.raises(StoreError, match=r"cell\.json is a folder where a file belongs; move it"):
        stored.write_cell({})
    (stored.path / "block-00001.parquet").rmdir()
    stored.write_block(1, block(1), {})
    with pytest.raises(StoreError, match=r"DONE\.json is a folder where a file belongs; move it"):
        stored.finish()


def test_a_pipe_is_not_waited_for(stored: StoredCell) -> None:
    fill(stored)
    stored.block_path(0).unlink()
    os.mkfifo(stored.block_path(0))
    assert [reason for _, _, reason in stored.damaged()] == ["is no regular file"]


def test_a_file_where_a_cell_belongs_is_named(stored: StoredCell) -> None:
    stored.path.parent.mkdir(parents=True)
    stored.path.write_text("")
    with pytest.raises(StoreError, match="cannot be listed: Not a directory; move it away"):
        stored.missing()
    notes: list[str] = []
    assert list(Store(stored.path.parents[2]).cells(notes.append)) == []
    assert notes == [f"{stored.path} is no folder of a cell; move it away"]


def test_foreign_files_and_blocks_beyond_the_plan_are_listed(stored: StoredCell) -> None:
    fill(stored)
    stored.finish()
    foreign = ["block-00003.parquet", "block-000001.parquet", "block-00001.parquet.bak", "notes.txt"]
    for name in (*foreign, ".hidden"):
        (stored.path / name).write_text("")
    assert stored.foreign() == sorted(foreign)
    assert stored.missing() == []
    stored.block_path(1).unlink()
    assert stored.missing() == [1]  # block-000001 is another name


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # a file where a folder is needed fails for root as well
    with pytest.raises(StoreError, match=r"cannot write .*choose another --out"):
        write_atomically(tmp_path / "file" / "x.json", b"")


def test_an_error_goes_when_the_cell_is_done(stored: StoredCell) -> None:
    stored.write_error({"error": "out of memory"}, {"model": "m"})
    assert stored.error() == "out of memory"
    assert stored.names() == {"model": "m"}  # a cell that failed before it began can be shown
    fill(stored)
    stored.finish()
    assert stored.error() == ""


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
