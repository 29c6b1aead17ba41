"""Flags to requests, and settings back to flags: layers below the command line name settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..registry import ATTACKS
from .options import SHARED_ATTACK_SETTINGS

# Settings whose flag has another name; every other setting `some_name` is --some-name.
NAMES = {
    "checkpoint": "ckpt",
    "root": "data",
    "store": "out",
    "threats": "attack",
    "arch_options": "arch-option",
    "attention_options": "attention-option",
    "model_options": "model-option",
    "dataset_options": "dataset-option",
}
_SETTING = re.compile(r"`([a-z][a-z_0-9]*)`")


def as_flags(message: str) -> str:
    """Return a message with the settings in backticks written as flags.

    >>> as_flags("`batch_size` must be at least 1; `root` is missing")
    '--batch-size must be at least 1; --data is missing'
    """
    return _SETTING.sub(lambda match: f"--{NAMES.get(match[1], match[1].replace('_', '-'))}", message)


def threat_requests(options: Mapping[str, Any]) -> list[Any]:
    """Return a request per --attack: the shared flags that it takes, and its own of --attack-option.

    Raises:
        OptionError: an unknown attack, a flag that no chosen attack takes, an option of one that was not
            chosen, or one setting given twice.
    """
    from ..planning import ThreatRequest

    attacks = list(dict.fromkeys(options["attacks"]))
    settings = {name: _settings(name) for name in attacks}
    shared = {key: options[key] for key in SHARED_ATTACK_SETTINGS if options[key] is not None}
    for key in shared:
        if not any(key in known for known in settings.values()):
            takers = ", ".join(name for name in ATTACKS if key in _settings(name))
            chosen = ", ".join(attacks) or "no attack"
            raise OptionError(f"`{key}` is a setting of {takers}, but --attack names {chosen}")
    own = _own_settings(options["attack_options"], attacks)
    requests = []
    for name in attacks:
        given = {key: value for key, value in shared.items() if key in settings[name]}
        twice = given.keys() & own[name].keys()
        if twice:
            key = min(twice)
            raise OptionError(f"`{key}` and --attack-option {name}.{key} both set {key}; give one of them")
        if options["allow_large_eps"]:
            given["allow_large_eps"] = True
        requests.append(ThreatRequest(name, {**given, **own[name]}, source="flag"))
    return requests


def _settings(attack: str) -> tuple[str, ...]:
    from ..threats import ATTACK

    return tuple(ATTACK.settings(attack))


def _own_settings(pairs: Sequence[str], attacks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return attack -> its settings of --attack-option NAME.KEY=VALUE."""
    own: dict[str, dict[str, Any]] = {name: {} for name in attacks}
    for pair in pairs:
        name, dot, rest = pair.partition(".")
        if not dot or "=" not in rest or "=" in name:
            raise OptionError(f"--attack-option {pair!r} is not of the form NAME.KEY=VALUE")
        if name not in own:
            chosen = ", ".join(attacks) or "no attack"
            raise OptionError(f"--attack-option {pair!r} is for {name}, but --attack names {chosen}")
        for key, value in parse_options([rest], "--attack-option").items():
            if key in own[name]:
                raise OptionError(f"--attack-option gives {name}.{key} twice")
            own[name][key] = value
    return own


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


def three_numbers(text: str | None, flag: str) -> tuple[float, ...] | None:
    """Return a flag's three numbers; None where it was not given.

    Raises:
        OptionError: it holds something else.
    """
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3:
        raise OptionError(f"{flag} {text!r}: expected three numbers in [0, 1], such as 0.485,0.456,0.406")
    return values
