"""Names that users type, and the objects behind them.

A registry maps a name to ``module:object`` and a one-line summary. Listing it imports nothing; an object is
imported when it is first used. This keeps ``rbq list`` fast and torch out of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from .errors import OptionError, unknown

_PACKAGE = __name__.rpartition(".")[0]


class Registry:
    """Name -> (where the object is, one-line summary).

    Args:
        kind: what the names are, singular, for messages: "attack", "data set".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, tuple[Any, str]] = {}

    def add(self, name: str, target: Any, summary: str) -> None:
        """Register ``name`` for ``target``: "module:object", the module relative to this package, or an
        object.

        Raises:
            ValueError: the name is taken; the message names both objects.
        """
        if name in self._entries:
            raise ValueError(
                f"{self.kind} {name!r} is registered for {self._entries[name][0]}; {target} cannot take it"
            )
        self._entries[name] = (target, summary)

    def load(self, name: str) -> Any:
        """Import and return the object that ``name`` stands for.

        Raises:
            OptionError: no such name; the message lists the right ones.
        """
        if name not in self._entries:
            raise OptionError(unknown(self.kind, name, self._entries))
        target = self._entries[name][0]
        if not isinstance(target, str):
            return target
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)

    def summaries(self) -> dict[str, str]:
        """Return name -> summary, in the order of registration."""
        return {name: summary for name, (_, summary) in self._entries.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


ATTACKS = Registry("attack")
ATTACKS.add(
    "fgsm", "attacks.fgsm:FGSM", "Fast gradient sign: one step to the edge of the eps ball (linf, l2)"
)
ATTACKS.add("pgd", "attacks.pgd:PGD", "Projected gradient descent, random start, restarts (linf, l2)")

THREAT_KINDS = Registry("kind of threat")
THREAT_KINDS.add("clean", "threats:CLEAN_IMAGES", "the images as they are")
THREAT_KINDS.add("attack", "threats:ATTACK", "images moved within a budget, against the model")

TASKS = Registry("task")
TASKS.add("classification", "tasks.classification:CLASSIFICATION", "one label per image")

ATTENTION = Registry("attention")
ATTENTION.add("standard", "attention.variants:STANDARD", "softmax(q.k / sqrt(D))")
ATTENTION.add("quest", "attention.variants:QUEST", "QUEST: keys on the unit sphere, queries free, no scale")
ATTENTION.add("qnorm", "attention.variants:QNORM", "queries on the unit sphere, keys free, no scale")
ATTENTION.add(
    "qknorm-hs", "attention.variants:QKNORM_HS", "both on the sphere, learned scale per head (Swin V2)"
)
ATTENTION.add(
    "qknorm-ds", "attention.variants:QKNORM_DS", "both normalised, learned scale per dimension (ViT-22B)"
)
ATTENTION.add("qknorm-ln", "attention.variants:QKNORM_LN", "LayerNorm on queries and keys (timm's qk_norm)")
ATTENTION.add(
    "elliptical", "attention.variants:ELLIPTICAL", "queries scaled by how values changed between layers"
)
ATTENTION.add("elliptical-quest", "attention.variants:ELLIPTICAL_QUEST", "Elliptical with QUEST's keys")

DATASETS = Registry("data set")
DATASETS.add("digits", "datasets.digits:Digits", "scikit-learn's handwritten digits, 32x32 RGB (embedded)")
DATASETS.add("folder", "datasets.folder:Folder", "class folders (wnid, index or name) or a labels.csv")
