"""Where things are, and the rule for tests that need something a laptop may lack."""

from __future__ import annotations

import dataclasses
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
    SpaceSpec,
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
# Each of these can change a number, and so makes another cell.
CHANGES: tuple[dict[str, Any], ...] = (
    {"limit": 200},
    {"seed": 1},
    {"block_size": 128},
    {"side": AttackSide(SpaceSpec("normalised"))},
    {"side": AttackSide(SpaceSpec(clamp=None))},
    {"side": AttackSide(SpaceSpec("normalised", std=(0.2, 0.2, 0.2)))},
    {"side": AttackSide(adaptive=False)},
    {"threat": Threat("corruption", "pgd", (("eps", Fraction(1, 255)), ("steps", 20)))},
    {"dataset": DatasetSpec("folder", "1" * 64, 1, task="counting")},
    {"precision": "bfloat16"},
    {"threat": Threat("attack", "pgd", (("eps", Fraction(2, 255)), ("steps", 20)))},
    {"threat": Threat("attack", "pgd", (("eps", Fraction(1, 255)), ("steps", 20)), version=2)},
    {"dataset": DatasetSpec("folder", "2" * 64, 1)},
    {"dataset": DatasetSpec("folder", "1" * 64, 2)},
    {"model": dataclasses.replace(MODEL, checkpoint="2" * 64)},
    {"model": dataclasses.replace(MODEL, arch="deit_tiny_patch16_224")},
    {"model": dataclasses.replace(MODEL, arch_options=(("depth", 6),))},
    {"model": dataclasses.replace(MODEL, weights="model_ema")},
    {"model": dataclasses.replace(MODEL, source_hash="3" * 64)},
    {"model": dataclasses.replace(MODEL, attention=None)},
    {"model": dataclasses.replace(MODEL, attention=AttentionSpec("qnorm"))},
    {"model": dataclasses.replace(MODEL, attention=AttentionSpec("quest", version=2))},
    {"model": dataclasses.replace(MODEL, attention=AttentionSpec("quest", (("a", 1),)))},
    {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 248))},
    {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 256, crop_mode="squash"))},
    {"model": dataclasses.replace(MODEL, preprocessing=Preprocessing(224, 256, mean=(0.5, 0.5, 0.5)))},
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
