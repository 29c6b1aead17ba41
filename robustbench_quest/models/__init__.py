"""From a request to a Classifier. Public names are imported when they are first used; some need no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classifier import Classifier
    from .inspect import Inspection, inspect_checkpoint
    from .load import load_model, load_request
    from .request import ModelRequest
    from .resolve import Resolved, resolve_model

_PUBLIC = {
    "Classifier": "classifier",
    "Inspection": "inspect",
    "ModelRequest": "request",
    "Resolved": "resolve",
    "inspect_checkpoint": "inspect",
    "load_model": "load",
    "load_request": "load",
    "resolve_model": "resolve",
}
__all__ = [
    "Classifier",
    "Inspection",
    "ModelRequest",
    "Resolved",
    "inspect_checkpoint",
    "load_model",
    "load_request",
    "resolve_model",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
