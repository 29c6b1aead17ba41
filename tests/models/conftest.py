"""Fixtures that write small checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Save, State
from safetensors.torch import save_file


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
