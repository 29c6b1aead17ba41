"""Damage: single bits flip in every kind of file of a store; each is noticed, or changes nothing."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_up import Images, linear, rule
from support import read_npz

import robustbench_quest as rbq
from robustbench_quest.evaluation import make_cell
from robustbench_quest.names import names_of
from robustbench_quest.records import digest
from robustbench_quest.run import Run
from robustbench_quest.store import Store
from robustbench_quest.stored_cell import StoredCell
from robustbench_quest.tables import FORMATS, render, result_of
from robustbench_quest.types import CLEAN, Threat
from robustbench_quest.verified_files import Damaged, read_json

MODEL, DATA = rule(linear), Images()
THREATS = (CLEAN, rbq.threat("fgsm", eps="8/255"))
FAILED = rbq.threat("fgsm", eps="9/255")


def compute(root: Path, threat: Threat, note: Callable[[str], None]) -> None:
    rbq.evaluate(MODEL, DATA, threat, store=str(root), block_size=5, note=note)


def stored_cell(root: Path, threat: Threat) -> StoredCell:
    return Store(root).cell(make_cell(MODEL.spec, DATA, threat, Run(block_size=5)))


def tables(root: Path, note: Callable[[str], None]) -> dict[str, str]:
    results = [result_of(stored) for stored in Store(root).cells(note)]
    return {form: render(results, form) for form in FORMATS}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two cells that are done, one that failed, and a block that is in the making."""
    root = tmp_path_factory.mktemp("store")
    for threat in THREATS:
        compute(root, threat, pytest.fail)
    broken = stored_cell(root, FAILED)
    broken.write_error({"error": "MemoryError: full", "traceback": "..."}, names_of(broken.cell))
    records = stored_cell(root, THREATS[1]).read_block(0)
    broken.stages(0).write(0, "first", records)
    return root


def flips(paths: list[Path], count: int) -> Iterator[tuple[Path, bytes, str]]:
    """Flip one bit at a time; yield the file, its bytes before, and which bit; then put it back."""
    draw = random.Random(0)
    for _ in range(count):
        path = draw.choice(paths)
        before = path.read_bytes()
        bit = draw.randrange(8 * len(before))
        flipped = bytearray(before)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(flipped))
        yield path, before, f"bit {bit} of {path.name}"
        path.write_bytes(before)


def test_flips_in_blocks_are_noticed_and_the_block_is_made_again(root: Path) -> None:
    expected = tables(root, pytest.fail)
    blocks = {path: threat for threat in THREATS for path in stored_cell(root, threat).path.glob("*.parquet")}
    assert len(blocks) == 6
    for path, before, bit in flips(sorted(blocks), 300):
        shown = tables(root, pytest.fail)
        assert f"{path} cannot be read" in shown["csv"], bit
        notes: list[str] = []
        compute(root, blocks[path], notes.append)
        assert len(notes) == 1, bit
        assert notes[0].startswith(f"{path} cannot be read"), bit
        assert path.read_bytes() == before, bit
    assert tables(root, pytest.fail) == expected


def test_flips_in_what_a_cell_says_of_itself_are_noticed_and_written_again(root: Path) -> None:
    expected = tables(root, pytest.fail)
    files = {stored_cell(root, t).path / name: t for t in THREATS for name in ("cell.json", "DONE.json")}
    for path, before, bit in flips(sorted(files), 100):
        seen: list[str] = []
        shown = tables(root, seen.append)
        # Without its cell.json a cell is reported; DONE.json is not needed to read one.
        assert [note.startswith(f"{path} ") for note in seen] == [True] * (path.name == "cell.json"), bit
        assert (shown == expected) is (path.name == "DONE.json"), bit
        notes: list[str] = []
        compute(root, files[path], notes.append)
        assert [note.startswith(f"{path} ") for note in notes] == [True], bit
        assert path.read_bytes() == before, bit


def test_flips_in_side_files_and_errors_are_flagged(root: Path) -> None:
    sides = [path for t in THREATS for path in stored_cell(root, t).path.glob("block-?????.json")]
    assert len(sides) == 6
    for path, _, bit in flips([*sides, stored_cell(root, FAILED).path / "error.json"], 70):
        doubt = "environment unknown 1/3 blocks" if path in sides else f"{path} cannot be read"
        assert doubt in tables(root, pytest.fail)["table"], bit
        with pytest.raises(Damaged):
            read_json(path)


def test_flips_in_stages_are_noticed(root: Path) -> None:
    stages = stored_cell(root, FAILED).stages(0)
    whole = stages.read(0, "first")
    assert whole is not None
    for _, _, bit in flips(list(root.rglob("*.stage-*")), 30):
        assert stages.read(0, "first") is None, bit
    again = stages.read(0, "first")
    assert again is not None
    assert digest(again) == digest(whole)


@pytest.mark.parametrize("name", ["block-00001.parquet", "cell.json", "DONE.json"])
def test_other_damage_is_noticed_as_well(name: str, root: Path) -> None:
    path = stored_cell(root, CLEAN).path / name
    before, draw = path.read_bytes(), random.Random(1)
    cuts = [draw.randrange(len(before)) for _ in range(8)]
    damaged = [before[:cut] for cut in cuts] + [before[cut:] for cut in cuts if cut]
    damaged += [before + before, b"", bytes(len(before)), before + b" ", b"PAR1" + bytes(12) + b"PAR1"]
    for contents in damaged:
        path.write_bytes(contents)
        notes: list[str] = []
        compute(root, CLEAN, notes.append)
        # A blank behind JSON is no damage.
        assert [note.startswith(f"{path} ") for note in notes] == [True] * (
            not (name.endswith("json") and contents == before + b" ")
        )
        assert path.read_bytes().strip() == before
        path.write_bytes(before)


def test_rivals_that_are_killed_leave_the_same_bytes(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("rivals.py")), str(tmp_path), "6"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    # Two cells of 20 blocks, with a cell.json and a DONE.json each.
    assert re.fullmatch(r"6 kills in \d+ rounds, 44 files each\n", done.stdout)


def test_flips_in_kept_images_change_no_pixel(tmp_path: Path) -> None:
    def keep() -> None:
        rbq.evaluate(MODEL, DATA, THREATS[1], store=str(tmp_path), keep_images=2)

    keep()
    (path,) = tmp_path.rglob("*.npz")
    expected = read_npz(path)
    for _, _, bit in flips([path], 80):
        keep()
        found = read_npz(path)
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }, bit
