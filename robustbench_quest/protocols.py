"""Protocols: named attack settings, one YAML file each in ``configs/protocols``, or a file of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from .errors import OptionError, unknown
from .types import SpaceSpec

DEFAULT = "pixel"
SUFFIX = ".yaml"
SPACES = ("pixel", "normalised")


@dataclass(frozen=True)
class Protocol:
    """Named attack settings.

    Args:
        name: of the file.
        summary: one line.
        space: in which attacks move images.
        adaptive: whether gradients go through Elliptical's M.
        eps: the budget where neither the user nor the data set gives one.
        attacks: attack name -> settings other than eps.
    """

    name: str
    summary: str
    space: SpaceSpec
    adaptive: bool
    eps: str
    attacks: Mapping[str, Mapping[str, Any]]


def protocol_names() -> list[str]:
    """Return the names of all protocols, sorted."""
    folder = files("robustbench_quest.configs") / "protocols"
    return sorted(
        entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)
    )


def load_protocol(name: str = DEFAULT) -> Protocol:
    """Return a protocol by name, or by the path of a YAML file.

    Raises:
        OptionError: there is no such protocol, or the file does not describe one.
    """
    if name.endswith(SUFFIX):
        try:
            return read_protocol(Path(name).stem, Path(name).read_text(encoding="utf-8"), name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(f"protocol {name} cannot be read: {reason}") from error
    return _shipped(name)


@cache
def _shipped(name: str) -> Protocol:
    if name not in protocol_names():
        raise OptionError(unknown("protocol", name, protocol_names()) + ", or FILE.yaml")
    text = (files("robustbench_quest.configs") / "protocols" / f"{name}{SUFFIX}").read_text(encoding="utf-8")
    return read_protocol(name, text, f"{name}{SUFFIX}")


def read_protocol(name: str, text: str, where: str) -> Protocol:
    """Return the protocol that a YAML text describes; ``where`` names it for messages.

    Raises:
        OptionError: it does not describe one.
    """
    content = yaml.safe_load(text)
    space = dict(content.get("space", {}))
    std, clamp = space.get("std"), space.get("clamp")
    if space.get("kind") not in SPACES:
        raise OptionError(f"{where}: {unknown('space', str(space.get('kind')), SPACES)}")
    spec = SpaceSpec(
        space["kind"],
        None if std is None else (float(std[0]), float(std[1]), float(std[2])),
        None if clamp is None else (float(clamp[0]), float(clamp[1])),
    )
    return Protocol(
        name, content["summary"], spec, content["adaptive"], str(content["eps"]), content["attacks"]
    )
