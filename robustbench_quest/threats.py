"""Threats by name, and what each kind of threat is. Imports no torch.

A kind says which threats it has, what their records hold, and what computes them; nothing else in the package
asks what kind a threat is. Records of an attack hold, beyond the task's columns:

==================  ==========  ==========================================================================
column              type        meaning
==================  ==========  ==========================================================================
linf, l2            float64     distance to the clean image, in pixels of [0, 1]
queries             int32       forward passes of this image that the attack made
grad_zero           int32       gradients that were zero everywhere
grad_nonfinite      int32       gradients with a NaN or infinite entry
restart             int32       the restart that the image comes from
broken_by           string      "clean" (wrong before the attack), the attack's name, or "" (robust)
violation           bool        outside the eps ball or the range of its space
==================  ==========  ==========================================================================
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from .budget import Budget, check_diameter, check_eps, format_eps
from .errors import OptionError, unknown
from .records import Columns
from .registry import ATTACKS, THREAT_KINDS, Registry
from .types import CLEAN, ModelSpec, Threat

if TYPE_CHECKING:
    from .attacks.base import Attack
    from .block import Block


class Compute(Protocol):
    """Computes one block of a cell: the columns of its records, and those of its images that are kept."""

    def __call__(self, block: Block) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return columns, and kept images."""


class ThreatKind:
    """What threats of a kind have in common. A threat is a frozen dataclass of settings with a ``version``.

    Attributes:
        name: as in ``Threat.kind``.
        threats: the threats of this kind by name.
        columns: what their records hold beyond the task's.
        compares_with_clean: whether the model also answers the clean images, beside the others.
        seeded: whether the seed changes what happens.
        sees_model: whether it acts on the model, in a space: then both are part of the cell.
        block_size: images per block.
        compute: "module:function" of this package, a ``Compute``.
    """

    name: ClassVar[str]
    threats: ClassVar[Registry]
    columns: ClassVar[Columns] = ()
    compares_with_clean: ClassVar[bool] = False
    seeded: ClassVar[bool] = True
    sees_model: ClassVar[bool] = False
    block_size: ClassVar[int] = 1024
    compute: ClassVar[str]

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a threat and their defaults; ``dataclasses.MISSING`` where there is none."""
        return {field.name: field.default for field in dataclasses.fields(self.threats.load(name))}

    def make(self, name: str, options: Mapping[str, Any]) -> Threat:
        """Return a threat with every setting filled in and checked.

        Raises:
            OptionError: no such threat, no such setting, one that is missing, or a bad value.
        """
        known = self.settings(name)
        for option in options:
            if option not in known:
                raise OptionError(unknown(f"setting of {name}", option, known))
        for option, default in known.items():
            if default is dataclasses.MISSING and option not in options:
                raise OptionError(f"{name} needs {option}; give one")
        built = self.threats.load(name)(**options)
        values = tuple(sorted((option, getattr(built, option)) for option in known))
        return Threat(self.name, name, values, built.version)

    def build(self, threat: Threat) -> Any:
        """Return the object that a threat stands for."""
        return self.threats.load(threat.name)(**dict(threat.options))

    def check(self, threat: Threat, model: ModelSpec) -> None:
        """Refuse a threat that makes no sense for a model.

        Raises:
            OptionError: with the reason.
        """

    def title(self, threat: Threat) -> str:
        """Return a threat as tables name it."""
        return threat.name

    def text(self, threat: Threat) -> str:
        """Return a threat with its settings, in a form that can be pasted into Python."""
        return repr(self.build(threat))

    def computing(self) -> Compute:
        """Import and return what computes a block."""
        module, _, function = self.compute.partition(":")
        found: Compute = getattr(importlib.import_module(f".{module}", __package__), function)
        return found


class CleanImages(ThreatKind):
    """The images as they are: one threat, without settings, that draws nothing."""

    name = "clean"
    threats = Registry("threat")
    threats.add("clean", "types:CLEAN", "the images as they are")
    seeded = False
    compute = "block:clean"

    def settings(self, name: str) -> dict[str, Any]:
        """Return none."""
        return {}

    def make(self, name: str, options: Mapping[str, Any]) -> Threat:
        """Return ``CLEAN``."""
        if options:
            raise OptionError(f"clean takes no settings, but got {', '.join(sorted(options))}")
        return CLEAN

    def text(self, threat: Threat) -> str:
        """Return "clean"."""
        return threat.name


class AttackKind(ThreatKind):
    """Images moved against the model, within a budget or by the shortest way."""

    name = "attack"
    threats = ATTACKS
    columns = (
        ("linf", pa.float64()),
        ("l2", pa.float64()),
        ("queries", pa.int32()),
        ("grad_zero", pa.int32()),
        ("grad_nonfinite", pa.int32()),
        ("restart", pa.int32()),
        ("broken_by", pa.string()),
        ("violation", pa.bool_()),
    )
    compares_with_clean = True
    sees_model = True
    block_size = 256
    compute = "stages:attack"

    def make(self, name: str, options: Mapping[str, Any]) -> Threat:
        """Return an attack; ``allow_large_eps`` among the options lets linf budgets of 1/2 and above pass."""
        given = {key: value for key, value in options.items() if key != "allow_large_eps"}
        if "eps" in self.settings(name) and "eps" not in given:
            raise OptionError(f"{name} needs a budget, such as eps='1/255'")
        threat = super().make(name, given)
        budget = self.build(threat).budget
        if budget is not None:
            check_eps(budget.eps, budget.norm, allow_large_eps=bool(options.get("allow_large_eps")))
        return threat

    def check(self, threat: Threat, model: ModelSpec) -> None:
        """Refuse a budget that no two images of the model's size are apart."""
        budget = self.build(threat).budget
        if budget is not None:
            check_diameter(budget, model.preprocessing.size)

    def title(self, threat: Threat) -> str:
        """Return name and budget: "PGD linf 4/255"."""
        if threat.eps is None:
            return threat.name
        norm = str(dict(threat.options)["norm"])
        return f"{threat.name.upper()} {Budget(norm, threat.eps)}"


CLEAN_IMAGES = CleanImages()
ATTACK = AttackKind()


def kind_of(threat: Threat) -> ThreatKind:
    """Return the kind of a threat."""
    kind: ThreatKind = THREAT_KINDS.load(threat.kind)
    return kind


def kind_with(name: str) -> ThreatKind:
    """Return the kind that has a threat called ``name``.

    Raises:
        OptionError: none has; the message lists all names.
    """
    kinds: list[ThreatKind] = [THREAT_KINDS.load(kind) for kind in THREAT_KINDS]
    for kind in kinds:
        if name in kind.threats:
            return kind
    raise OptionError(unknown("threat", name, [threat for kind in kinds for threat in kind.threats]))


def threat(name: str, *, allow_large_eps: bool = False, **options: Any) -> Threat:
    """Return the threat ``name`` ("clean" or an attack) with every setting filled in and checked.

    >>> threat("pgd", eps="2/510").eps
    Fraction(1, 255)

    A linf budget of 1/2 or more is refused unless ``allow_large_eps``.

    Raises:
        OptionError: no such threat, no such setting, a setting that is missing, or one with a bad value.
    """
    extra = {"allow_large_eps": True} if allow_large_eps else {}
    return kind_with(name).make(name, {**options, **extra})


def build_attack(threat: Threat) -> Attack:
    """Return the attack that a threat stands for."""
    attack: Attack = kind_of(threat).build(threat)
    return attack


def setting_text(threat: Threat, value: object) -> str:
    """Return the value of a setting as people write it; fractions are in pixels, as k/255 where they are."""
    norm = dict(threat.options).get("norm", "linf")
    return format_eps(value, str(norm)) if isinstance(value, Fraction) else str(value)
