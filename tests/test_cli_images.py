"""Every kind of image and label through the command line: a right result, or one clear line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command import Cli
from PIL import Image


def test_labels_out_of_range_are_refused(cli: Cli, digit_folder: Path) -> None:
    (digit_folder / "9").rename(digit_folder / "12")
    done = cli("--data", digit_folder)
    assert done.code == 2
    assert re.search(r"error: label 12 of 12/\d+.png is out of range: the model has classes 0-9", done.err)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16", "CMYK"])
def test_every_kind_of_image_is_read_right(mode: str, cli: Cli, digit_folder: Path) -> None:
    expected = cli("--data", digit_folder, "--format", "csv").rows()[0]["nll"]
    for path in digit_folder.rglob("*.png"):
        grey = np.asarray(Image.open(path))[..., 0]
        if mode == "I;16":
            Image.fromarray(grey.astype(np.uint16) * 257).save(path)
        elif mode == "CMYK":
            Image.open(path).convert("CMYK").save(path.with_suffix(".tiff"))
            path.unlink()
        else:
            Image.fromarray(grey).convert("1" if mode == "1" else mode).save(path)
    done = cli("--data", digit_folder, "--format", "csv")
    assert done.code == 0, done.err
    if mode != "1":  # black and white loses grey levels; it must only be read
        assert float(done.rows()[0]["nll"]) == pytest.approx(float(expected), abs=1e-6)


def test_a_1x1_image_is_resized(cli: Cli, digit_folder: Path) -> None:
    Image.new("RGB", (1, 1)).save(digit_folder / "0" / "tiny.png")
    done = cli("--data", digit_folder, "--resize", 32, "--format", "csv")
    assert (done.code, done.rows()[0]["n"]) == (0, "21")
    # Without a resize the size is the checkpoint's, and is checked.
    refused = cli("--data", digit_folder, "--format", "csv")
    assert refused.code == 1
    assert "0/tiny.png" in refused.rows()[0]["error"]


def test_a_truncated_image_fails_its_cell_by_name_and_the_others_go_on(cli: Cli, digit_folder: Path) -> None:
    victim = next((digit_folder / "3").iterdir())
    victim.write_bytes(victim.read_bytes()[:-40])
    done = cli("--data", digit_folder, "--attack", "fgsm", "--limit", 20, "--format", "csv")
    assert done.code == 1
    assert len(done.rows()) == 2
    assert all(f"3/{victim.name}" in row["error"] for row in done.rows())
    assert all(row["top1"] == "" for row in done.rows())
    assert "Traceback" not in done.err
