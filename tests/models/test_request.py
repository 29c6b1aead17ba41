"""What can be refused of a request before any file is read, and without torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from robustbench_quest import models
from robustbench_quest.errors import OptionError
from robustbench_quest.models import ModelRequest

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing to load: give a checkpoint, or a model as FILE.py:FUNC"),
    ({"model": "a.py:b", "arch": "vit_tiny_patch16_224"}, "leave --arch and --arch-option out"),
    ({"model": "a.py:b", "arch_options": {"depth": 1}}, "leave --arch and --arch-option out"),
    ({"checkpoint": "a.pt", "model_options": {"depth": 1}}, "--model-option needs --model FILE.py:FUNC"),
    ({"model": "a.py:b", "weights": "ema"}, "--weights chooses among the state dicts of a checkpoint"),
    ({"checkpoint": "a.pt", "img_size": 0}, "at least 1; got 0"),
    ({"checkpoint": "a.pt", "img_size": True}, "at least 1; got True"),
    ({"checkpoint": "a.pt", "img_size": 5000}, "must be at most 4096 pixels; got 5000"),
    ({"checkpoint": "a.pt", "img_size": 32, "arch_options": {"img_size": 16}}, "differ; give one of them"),
    ({"checkpoint": "a.pt", "arch_options": {"img_size": 5000}}, "img_size must be at most 4096 pixels"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_request_that_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        ModelRequest(**options)
    assert "\n" not in str(caught.value)


def test_a_request_needs_no_torch() -> None:
    code = (
        "import sys; from robustbench_quest.models import ModelRequest; ModelRequest('a.pt').declaration()\n"
        "assert not {'torch', 'timm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_found_and_others_are_not() -> None:
    assert models.load_model.__module__ == "robustbench_quest.models.load"
    assert models.resolve_model.__module__ == "robustbench_quest.models.resolve"
    assert not hasattr(models, "lod_model")
