"""Determinism, as docs/architecture.md states it: workers, order, kills and restarts change no byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support import read_npz

import robustbench_quest as rbq
from robustbench_quest.datasets.base import Dataset
from robustbench_quest.evaluation import make_cell
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.records import Records, column, digest
from robustbench_quest.run import Run
from robustbench_quest.store import Store

PGD = rbq.threat("pgd", eps="4/255", steps=3)


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*.parquet")}


def test_workers_order_and_resume_change_no_byte(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    how = {"limit": 20, "block_size": 6, "batch_size": 4}
    for name, workers in (("one", 0), ("two", 1), ("four", 4)):
        rbq.evaluate(model, digits, PGD, store=str(tmp_path / name), workers=workers, **how)  # type: ignore[arg-type]
    # A store that has some blocks only, the last ones first: the rest is computed, in another order.
    resumed = tmp_path / "resumed"
    cell = make_cell(model.spec, digits, PGD, Run(limit=20, block_size=6))
    whole, part = Store(tmp_path / "one").cell(cell), Store(resumed).cell(cell)
    part.write_cell({})
    for number in (3, 1):
        part.write_block(number, whole.read_block(number), {})
    assert part.missing() == [0, 2]
    rbq.evaluate(model, digits, PGD, store=str(resumed), **how)  # type: ignore[arg-type]
    expected = files(tmp_path / "one")
    assert len(expected) == 4
    for name in ("two", "four", "resumed"):
        assert files(tmp_path / name) == expected


def test_another_batch_size_changes_only_rounding(model: Classifier, digits: Dataset) -> None:
    base = rbq.evaluate(model, digits, PGD, limit=24, batch_size=24)
    for batch_size in (1, 5):
        other = rbq.evaluate(model, digits, PGD, limit=24, batch_size=batch_size)
        for name in ("index", "image_id", "input_crc", "label", "clean_pred", "queries"):
            assert (column(base, name) == column(other, name)).all()
        clean = rbq.evaluate(model, digits, limit=24, batch_size=batch_size)
        assert column(clean, "nll") == pytest.approx(
            column(rbq.evaluate(model, digits, limit=24, batch_size=24), "nll"), abs=1e-5
        )
        clear = np.abs(column(base, "margin")) > 1e-4
        assert (column(base, "correct") == column(other, "correct"))[clear].all()


def test_random_starts_do_not_depend_on_the_batch(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    # One step of almost no length returns the start itself, which must be the same to the last bit.
    threat = rbq.threat("pgd", eps="4/255", steps=1, alpha="0.000001eps")
    kept = []
    for batch_size in (8, 3):
        store = tmp_path / str(batch_size)
        rbq.evaluate(model, digits, threat, store=str(store), limit=8, batch_size=batch_size, keep_images=8)
        kept.append(read_npz(next(store.rglob("*.npz")))["perturbed"])
    assert np.abs(kept[0] - kept[1]).max() <= 2 * 4 / 255 * 1e-6 + 1e-7
    again = rbq.evaluate(model, digits, threat, limit=8, seed=1)
    assert digest(again) != digest(rbq.evaluate(model, digits, threat, limit=8, seed=0))


WRITER = """
import sys
import robustbench_quest as rbq
from robustbench_quest.demo import demo_checkpoint
model = rbq.load_model(demo_checkpoint(), device=rbq.device.HOST)
threat = rbq.threat("pgd", eps="4/255", steps=3)
rbq.evaluate(model, rbq.open_dataset("digits"), threat, store=sys.argv[1], limit=60, block_size=6)
"""


def test_two_processes_on_one_cell_write_the_same(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITER, str(tmp_path / "both")]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    rbq.evaluate(model, digits, PGD, store=str(tmp_path / "one"), limit=60, block_size=6)
    assert files(tmp_path / "both") == files(tmp_path / "one")
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_who_is_told_to_end_ends_at_once_and_keeps_blocks(told: signal.Signals, tmp_path: Path) -> None:
    flags = [
        "--attack",
        "pgd",
        "--steps",
        "50",
        "--workers",
        "2",
        "--block-size",
        "10",
        "--out",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "robustbench_quest", "eval", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("block-*.parquet"))) < 52 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, told)  # as a terminal and a cluster do: to the workers as well
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished blocks are kept" in err
    assert "Traceback" not in err
    assert len(list(tmp_path.rglob("block-*.parquet"))) >= 52


RUN = """
import sys
import torch
import robustbench_quest as rbq
from robustbench_quest.demo import demo_checkpoint
torch.set_num_threads(int(sys.argv[2]))
model = rbq.load_model(demo_checkpoint(), device=rbq.device.HOST)
threat = rbq.threat("pgd", eps="4/255", steps=3)
how = {"limit": 48, "block_size": 6, "batch_size": 3}
rbq.evaluate(model, rbq.open_dataset("digits"), threat, store=sys.argv[1], **how)
"""


def test_kill_9_loses_at_most_one_block(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    command = [sys.executable, "-c", RUN, str(tmp_path / "killed"), str(threads)]
    cell = make_cell(model.spec, digits, PGD, Run(limit=48, block_size=6))
    stored = Store(tmp_path / "killed").cell(cell)
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 120
        while len(stored.missing()) > 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    left = stored.missing()
    # Blocks are finished in order, so what is there is a prefix: only the block in the making was lost.
    assert left == list(range(left[0], 8))
    assert 3 <= left[0] < 8
    before = {path: path.stat().st_mtime_ns for path in stored.path.glob("*.parquet")}
    subprocess.run(command, check=True)
    assert not stored.missing()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    undisturbed: Records = rbq.evaluate(
        model, digits, PGD, store=str(tmp_path / "calm"), limit=48, block_size=6, batch_size=3
    )
    assert digest(stored.read()) == digest(undisturbed)
    assert files(tmp_path / "killed") == files(tmp_path / "calm")
