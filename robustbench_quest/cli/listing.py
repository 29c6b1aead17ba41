"""``rbq list``: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable

import click


def _attacks() -> dict[str, str]:
    from ..registry import ATTACKS

    return ATTACKS.summaries()


def _attention() -> dict[str, str]:
    from ..registry import ATTENTION

    return ATTENTION.summaries()


def _datasets() -> dict[str, str]:
    from ..registry import DATASETS

    return DATASETS.summaries()


def _protocols() -> dict[str, str]:
    from ..protocols import load_protocol, protocol_names

    return {name: load_protocol(name).summary for name in protocol_names()}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "attacks": _attacks,
    "attention": _attention,
    "datasets": _datasets,
    "protocols": _protocols,
}


@click.command(short_help="List the names that other commands take.")
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
def listing(kind: str | None) -> None:
    """List attacks, attention variants, data sets or protocols; without a name, all of them."""
    for position, name in enumerate([kind] if kind else KINDS):
        if not kind:
            click.echo(("\n" if position else "") + name)
        entries = KINDS[name]()
        width = max(map(len, entries))
        for entry, summary in entries.items():
            click.echo(f"{'' if kind else '  '}{entry:{width}}  {summary}")
