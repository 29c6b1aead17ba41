"""Where things are, and the rule for tests that need something a laptop may lack."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustbench_quest.tasks import schema_of
from robustbench_quest.types import (
    CLEAN,
    AttackSide,
    AttentionSpec,
    Cell,
    DatasetSpec,
    ModelSpec,
    Preprocessing,
    Threat,
)

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def require(present: bool, reason: str) -> None:
    """Skip the test with ``reason`` unless ``present``; where RBQ_CI=1 it fails instead."""
    if present:
        return
    if os.environ.get("RBQ_CI") == "1":
        pytest.fail(f"this test must run in CI, but {reason}")
    pytest.skip(reason)


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an npz file, and close it."""
    with np.load(path) as arrays:
        return dict(arrays)


MODEL = ModelSpec(
    name="m",
    checkpoint="0" * 64,
    arch="vit_tiny_patch16_224",
    attention=AttentionSpec("quest"),
    weights="model",
    preprocessing=Preprocessing(224, 256),
    num_classes=1000,
)
CELL = Cell(
    model=MODEL,
    dataset=DatasetSpec("folder", "1" * 64, 1),
    threat=Threat("attack", "pgd", (("eps", Fraction(1, 255)), ("steps", 20))),
    limit=300,
    block_size=256,
    seed=0,
    side=AttackSide(),
)
CLEAN_SCHEMA = schema_of(CELL.dataset, CLEAN)
ATTACK_SCHEMA = schema_of(CELL.dataset, CELL.threat)


def columns(n: int = 3) -> dict[str, Any]:
    return {
        "index": np.arange(n),
        "image_id": [f"img-{i}" for i in range(n)],
        "input_crc": np.arange(n, dtype=np.uint32),
        "label": np.zeros(n, dtype=np.int64),
        "pred": np.tile(np.arange(5), (n, 1)),
        "prob": np.full((n, 5), 0.2),
        "nll": np.full(n, 1.5),
        "brier": np.full(n, 0.8),
        "margin": np.full(n, 0.1),
        "correct": np.ones(n, dtype=bool),
        "correct5": np.ones(n, dtype=bool),
        "finite": np.ones(n, dtype=bool),
    }
