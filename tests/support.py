"""Where things are, and the rule for tests that need something a laptop may lack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
