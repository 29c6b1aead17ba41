"""Fixtures that every test file shares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Cli, Outcome
from PIL import Image
from safetensors.torch import save_file
from small_checkpoints import Save, State
from support import SHARED, require

from robustbench_quest.cli.entry import rbq, run
from robustbench_quest.cli.evaluate import evaluate
from robustbench_quest.datasets import Dataset, open_dataset
from robustbench_quest.datasets.digits import load_arrays
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.models.load import load_model


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    # The models here are tiny: threads that wait for each other on a busy machine cost more than they give.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real weights and images."""
    require(SHARED.is_dir(), f"{SHARED} is absent")
    return SHARED


@pytest.fixture(scope="session")
def real_vit(shared: Path) -> Path:
    """The AugReg ViT-Ti/16 checkpoint."""
    return shared / "weights" / "vit_tiny_patch16_224.augreg.safetensors"


@pytest.fixture(scope="session")
def nips17(shared: Path) -> Path:
    """300 labelled images with a labels.csv."""
    return shared / "data" / "nips17"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run ``run_eval.py`` (or, with group=True, ``rbq``) in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, group: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["x", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            run(rbq if group else evaluate, "rbq" if group else "run_eval.py")
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Outcome(stop.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def digit_folder(tmp_path: Path) -> Path:
    """Class folders 0-9 with two 32x32 images each."""
    pixels, labels, test = load_arrays()
    for digit in range(10):
        folder = tmp_path / "digits" / str(digit)
        folder.mkdir(parents=True)
        for place in np.flatnonzero(test & (labels == digit))[:2]:
            Image.fromarray(pixels[place]).save(folder / f"{place}.png")
    return tmp_path / "digits"


@pytest.fixture(scope="module")
def model() -> Classifier:
    """The demo zoo's QUEST model."""
    return load_model(demo_checkpoint(), device=HOST)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """The embedded data set."""
    return open_dataset("digits")


@pytest.fixture
def save_safetensors(tmp_path: Path) -> Save:
    """Write a state dict, with metadata under "rbq", and return the path."""

    def save(state: State, metadata: Mapping[str, Any] | None = None, name: str = "vit.safetensors") -> Path:
        text = None if metadata is None else {"rbq": json.dumps(metadata)}
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, tmp_path / name, metadata=text)
        return tmp_path / name

    return save


@pytest.fixture
def save_pt(tmp_path: Path) -> Save:
    """Write anything with torch.save and return the path."""

    def save(content: Any, name: str = "vit.pt", **options: Any) -> Path:
        torch.save(content, tmp_path / name, **options)
        return tmp_path / name

    return save
