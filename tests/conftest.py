"""Fixtures that every test file shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import SHARED, require


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
