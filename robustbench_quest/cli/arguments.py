"""Flags, protocol and data set to the cells of one command, each setting with where it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, unknown
from ..protocols import Protocol
from ..registry import ATTACKS
from ..threats import ATTACK, threat
from ..types import CLEAN, Threat

if TYPE_CHECKING:
    from ..datasets.base import Dataset
    from ..models.classifier import Classifier


@dataclass(frozen=True)
class PlannedThreat:
    """A threat, and for each of its settings where the value came from."""

    threat: Threat
    sources: Mapping[str, str]


def plan_threats(
    attacks: Sequence[str],
    flags: Mapping[str, Any],
    eps: str | None,
    protocol: Protocol,
    dataset: Dataset,
    allow_large_eps: bool,
) -> list[PlannedThreat]:
    """Return clean images first, then every attack at every eps.

    Settings come from the flags, else the protocol, else the attack's defaults; eps from the flag, else the
    data set (linf only), else the protocol (linf only).

    Raises:
        OptionError: an unknown attack, a flag that no chosen attack takes, a bad value, or no eps for l2.
    """
    for name in attacks:
        if name not in ATTACKS:
            raise OptionError(unknown("attack", name, ATTACKS))
    _check_flags_used(attacks, flags if eps is None else {**flags, "eps": eps})
    planned = [PlannedThreat(CLEAN, {})]
    for name in dict.fromkeys(attacks):
        given = {key: value for key, value in flags.items() if key in ATTACK.settings(name)}
        preset = dict(protocol.attacks.get(name, {}))
        options = {**preset, **given}
        budgets, source = _budgets(eps, str(options.get("norm", "linf")), protocol, dataset)
        sources = {key: "default" for key in ATTACK.settings(name)}
        sources |= {key: f"protocol {protocol.name}" for key in preset}
        sources |= {key: "flag" for key in given}
        sources["eps"] = source
        for budget in budgets:
            built = threat(name, allow_large_eps=allow_large_eps, eps=budget, **options)
            planned.append(PlannedThreat(built, sources))
    return list({p.threat: p for p in planned}.values())


def _check_flags_used(attacks: Sequence[str], flags: Mapping[str, Any]) -> None:
    for flag in flags:
        takers = [name for name in ATTACKS if flag in ATTACK.settings(name)]
        if not set(takers) & set(attacks):
            chosen = ", ".join(attacks) or "no attack"
            raise OptionError(
                f"--{flag.replace('_', '-')} is a setting of {', '.join(takers)}, but --attack names {chosen}"
            )


def _budgets(eps: str | None, norm: str, protocol: Protocol, dataset: Dataset) -> tuple[list[str], str]:
    if eps is not None:
        budgets = [part.strip() for part in eps.split(",")]
        if not all(budgets):
            raise OptionError(f"--eps {eps!r} has an empty entry; write it as 1/255 or 1/255,2/255")
        return budgets, "flag"
    if norm == "l2":
        raise OptionError("--norm l2 has no default budget; give one, such as --eps 0.5")
    if dataset.default_eps is not None:
        return [dataset.default_eps], f"default of data set {dataset.name}"
    return [protocol.eps], f"protocol {protocol.name}"


def load_models(checkpoints: Sequence[str], options: Mapping[str, Any]) -> list[Classifier]:
    """Return the models of the command; two of the same name are told apart by their paths."""
    from ..models.load import load_model

    paths = list(dict.fromkeys(checkpoints))
    models = [load_model(path, **options) for path in paths] or [load_model(None, **options)]
    names = [model.spec.name for model in models]
    for model, path in zip(models, paths, strict=False):
        if names.count(model.spec.name) > 1:
            model.spec = dataclasses.replace(model.spec, name=str(path))
    return models


def parse_options(pairs: Sequence[str], flag: str) -> dict[str, str | int | float | bool]:
    """Return ``key=value`` pairs as a dict; numbers, true and false are read as such.

    Raises:
        OptionError: a pair without "=", or a key that is given twice.
    """
    import yaml

    values: dict[str, str | int | float | bool] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise OptionError(f"{flag} {pair!r} is not of the form KEY=VALUE")
        if key in values:
            raise OptionError(f"{flag} gives {key} twice")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        values[key] = value if isinstance(value, (int, float, bool)) else text
    return values
