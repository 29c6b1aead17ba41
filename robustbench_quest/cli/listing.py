"""``rbq list``: the names that other commands take, and the settings behind a name."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence

import click

from ..errors import OptionError, unknown
from ..registry import ATTACKS, ATTENTION, DATASETS


def _protocols() -> dict[str, str]:
    from ..protocols import load_protocol, protocol_names

    return {name: load_protocol(name).summary for name in protocol_names()}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "attacks": ATTACKS.summaries,
    "attention": ATTENTION.summaries,
    "datasets": DATASETS.summaries,
    "protocols": _protocols,
}

Setting = tuple[str, str, str]  # name, default, meaning


@click.command(short_help="List the names that other commands take.")
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.argument("name", required=False)
def listing(kind: str | None, name: str | None) -> None:
    """List attacks, attention variants, data sets or protocols; with a NAME, the settings behind it."""
    if kind and name:
        _print_settings(kind, name)
        return
    for position, listed in enumerate([kind] if kind else KINDS):
        if not kind:
            click.echo(("\n" if position else "") + listed)
        _print_columns([*KINDS[listed]().items()], "" if kind else "  ")


def _print_settings(kind: str, name: str) -> None:
    entries = KINDS[kind]()
    if name not in entries:
        raise OptionError(unknown(kind.removesuffix("s"), name, entries))
    click.echo(f"{name}  {entries[name]}")
    settings = [*SETTINGS[kind](name)]
    _print_columns(settings or [("no settings",)], "  ")


def _print_columns(rows: Sequence[tuple[str, ...]], indent: str) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    for row in rows:
        columns = [f"{text:{width}}" for text, width in zip(row, widths, strict=False)]
        click.echo(indent + "  ".join([*columns, row[-1]]).rstrip())


def _attack_settings(name: str) -> Iterator[Setting]:
    attack = ATTACKS.load(name)
    meanings = documented(attack)
    for field in dataclasses.fields(attack):
        needed = field.default is dataclasses.MISSING
        yield field.name, "required" if needed else str(field.default), meanings.get(field.name, "")


def _attention_settings(name: str) -> Iterator[Setting]:
    for option, (default, allowed) in ATTENTION.load(name).options.items():
        yield option, str(default), allowed if isinstance(allowed, str) else ", ".join(allowed)


def _dataset_settings(name: str) -> Iterator[Setting]:
    from ..datasets.base import dataset_options

    meanings = documented(DATASETS.load(name))
    for option, default in dataset_options(name).items():
        yield option, str(default), meanings.get(option, "")


def _protocol_settings(name: str) -> Iterator[Setting]:
    from ..protocols import load_protocol

    protocol = load_protocol(name)
    yield "eps", protocol.eps, "where neither the user nor the data set gives one"
    yield "adaptive", str(protocol.adaptive), "whether gradients go through Elliptical's metric M"
    for key, value in protocol.space.identity().items():
        yield f"space {key}", str(value), ""
    for attack, settings in protocol.attacks.items():
        yield attack, "", ", ".join(f"{key}={value}" for key, value in settings.items())


SETTINGS: dict[str, Callable[[str], Iterator[Setting]]] = {
    "attacks": _attack_settings,
    "attention": _attention_settings,
    "datasets": _dataset_settings,
    "protocols": _protocol_settings,
}


def documented(thing: object) -> dict[str, str]:
    """Return what the section "Args:" of a docstring says of each argument, one line each."""
    text = inspect.getdoc(thing) or ""
    match = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in match[1].splitlines() if match else []:
        head = re.fullmatch(r"    (\w+(?:, \w+)*): (.*)", line)
        if head:
            names = head[1].split(", ")
            meanings |= {name: head[2] for name in names}
        elif line.strip():
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings
