"""Protocols: named attack settings, one YAML file each in ``configs/protocols``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from .errors import OptionError, unknown

DEFAULT = "pixel"


@dataclass(frozen=True)
class Protocol:
    """Named attack settings.

    Args:
        name: of the file.
        summary: one line.
        eps: the budget where neither the user nor the data set gives one.
        attacks: attack name -> settings other than eps.
    """

    name: str
    summary: str
    eps: str
    attacks: Mapping[str, Mapping[str, Any]]


def protocol_names() -> list[str]:
    """Return the names of all protocols, sorted."""
    folder = files("robustbench_quest.configs") / "protocols"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def load_protocol(name: str = DEFAULT) -> Protocol:
    """Return a protocol by name.

    Raises:
        OptionError: there is no such protocol.
    """
    if name not in protocol_names():
        raise OptionError(unknown("protocol", name, protocol_names()))
    text = (files("robustbench_quest.configs") / "protocols" / f"{name}.yaml").read_text(encoding="utf-8")
    contents = yaml.safe_load(text)
    return Protocol(name, contents["summary"], str(contents["eps"]), contents["attacks"])
