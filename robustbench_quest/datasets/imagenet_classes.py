"""The 1,000 classes of ImageNet-1k in the order that every model uses, from the tables that timm installs."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path


@cache
def wnids() -> tuple[str, ...]:
    """Return the WordNet id of each class: ("n01440764", ...), 1,000 of them."""
    return tuple(_table("imagenet_synsets.txt").split())


@cache
def class_names() -> tuple[str, ...]:
    """Return the name of each class with its synonyms: ("tench, Tinca tinca", ...), 1,000 of them."""
    lines = _table("imagenet_synset_to_lemma.txt").splitlines()
    names = dict(line.split("\t", 1) for line in lines)
    return tuple(names[wnid] for wnid in wnids())


def _table(file: str) -> str:
    # Finding a package runs none of its code; importing timm would import torch, to read a text file.
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("timm is not installed; run: pip install timm")
    return Path(spec.submodule_search_locations[0], "data", "_info", file).read_text(encoding="utf-8")
