"""Protocols: named attack settings, one YAML file each in ``configs/protocols``, or a file of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from .errors import OptionError, unknown
from .types import SpaceSpec
from .yaml_edge import checked, read_yaml

DEFAULT = "pixel"
SUFFIX = ".yaml"


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
        return _read(Path(name))
    if name not in protocol_names():
        raise OptionError(unknown("protocol", name, protocol_names()) + ", or FILE.yaml")
    with as_file(files("robustbench_quest.configs") / "protocols" / f"{name}{SUFFIX}") as path:
        return _read(path)


def _read(path: Path) -> Protocol:
    from .protocol_schema import ProtocolFile  # pydantic takes a while to import

    found = checked(ProtocolFile, read_yaml(path, OptionError), str(path), OptionError)
    space = SpaceSpec(found.space.kind, found.space.std, found.space.clamp)
    return Protocol(path.stem, found.summary, space, found.adaptive, found.eps, found.attacks)
