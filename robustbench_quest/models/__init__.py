"""From a request to a Classifier. Public names are imported when they are first used; some need no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classifier import Classifier as Classifier
    from .inspect import inspect_checkpoint as inspect_checkpoint
    from .load import load_model as load_model
    from .load import load_request as load_request
    from .request import ModelRequest as ModelRequest
    from .resolve import Resolved as Resolved
    from .resolve import resolve_model as resolve_model

_PLACES = {
    "classifier": ("Classifier",),
    "inspect": ("inspect_checkpoint",),
    "load": ("load_model", "load_request"),
    "request": ("ModelRequest",),
    "resolve": ("Resolved", "resolve_model"),
}


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f".{place}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
