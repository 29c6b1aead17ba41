"""robustbench-quest: robustness evaluation for vision transformers.

Public names are imported when they are first used, so that ``import robustbench_quest`` and the parts that
need no model (store, metrics, tables) do not import torch.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__

# In a checkout the folders attacks/ and configs/ lie beside this one; once installed they lie inside it. This
# lets `python run_eval.py` work in a bare checkout.
if not (Path(__file__).parent / "attacks").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from . import metrics
    from .datasets import open_dataset
    from .evaluation import evaluate
    from .models.classifier import Classifier
    from .models.load import load_model
    from .store import Store
    from .threats import threat

_PUBLIC = {
    "Classifier": "models.classifier",
    "Store": "store",
    "evaluate": "evaluation",
    "load_model": "models.load",
    "metrics": "",
    "open_dataset": "datasets",
    "threat": "threats",
}

__all__ = [
    "Classifier",
    "Store",
    "__version__",
    "evaluate",
    "load_model",
    "metrics",
    "open_dataset",
    "threat",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _PUBLIC[name]:  # a module
        return importlib.import_module(f".{name}", __name__)
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
