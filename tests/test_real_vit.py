"""A real ImageNet ViT on real images: the same numbers as timm, the attack bites, a killed run goes on."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from support import ROOT
from timm.data import create_transform, resolve_data_config

import robustbench_quest as rbq
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.device import HOST
from robustbench_quest.records import column
from robustbench_quest.store import Store

ARCH = "vit_tiny_patch16_224"
pytestmark = [pytest.mark.shared, pytest.mark.slow]


def test_clean_predictions_equal_timm_image_by_image(real_vit: Path, nips17: Path) -> None:
    model = rbq.load_model(real_vit, arch=ARCH, attention="standard", device=HOST)
    data = Folder(nips17)
    with_threads = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        records = rbq.evaluate(model, data)
        reference = timm.create_model(ARCH, pretrained=False).eval()
        reference.load_state_dict(load_file(real_vit))
        transform = create_transform(**resolve_data_config(model=reference))
        for start in range(0, 300, 50):
            names = column(records, "image_id")[start : start + 50]
            with torch.no_grad():
                images = [transform(Image.open(nips17 / "images" / name).convert("RGB")) for name in names]
                expected = reference(torch.stack(images))
                if start == 0:
                    pixels = torch.stack(images) * 0.5 + 0.5
                    assert (model(pixels.clamp(0, 1)) - expected).abs().max() < 1e-4
            assert (column(records, "pred")[start : start + 50, 0] == expected.argmax(1).numpy()).all()
            ours = column(records, "nll")[start : start + 50]
            labels = torch.tensor(column(records, "label")[start : start + 50], dtype=torch.int64)
            theirs = torch.nn.functional.cross_entropy(expected.double(), labels, reduction="none")
            assert np.abs(ours - theirs.numpy()).max() < 1e-4
    finally:
        torch.set_num_threads(with_threads)
    assert records.num_rows == 300
    assert abs(int(column(records, "correct").sum()) - 260) <= 2


def test_pgd_survives_kill_9_and_leaves_almost_nothing(real_vit: Path, nips17: Path, tmp_path: Path) -> None:
    flags = f"--arch {ARCH} --attention standard --dataset folder --limit 50 --attack pgd --eps 1/255".split()
    command = [
        sys.executable,
        str(ROOT / "run_eval.py"),
        "--ckpt",
        str(real_vit),
        "--data",
        str(nips17),
        *flags,
    ]
    command += ["--out", str(tmp_path), "--block-size", "10", "--batch-size", "10", "--format", "csv"]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while len(list(tmp_path.rglob("block-*.parquet"))) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)  # five clean blocks, then the first of the attack
        os.kill(process.pid, signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("block-*.parquet")}
    assert len(kept) >= 6

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # nothing that was finished is redone
    clean, pgd = csv.DictReader(io.StringIO(done.stdout))
    assert (pgd["n"], pgd["eps"]) == ("50", "1/255")
    assert "steps=20" in pgd["settings"]
    assert float(clean["top1"]) >= 80
    assert float(pgd["top1"]) <= 6  # at most 3 of 50
    assert not pgd["flags"]

    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert len(list(Store(tmp_path).cells(print))) == 2
