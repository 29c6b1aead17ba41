"""A setting, its value and where it came from: the one way in which sources that differ are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One line of ``--explain``.

    Args:
        name, value: the setting, and the value that is used.
        source: who gave it.
        others: what sources that were not followed say, as "source: value; source: value", and other remarks.
        guessed: what of it nothing declared.
    """

    name: str
    value: Any
    source: str
    others: str = ""
    guessed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value as people read it."""
        return _text(self.value)


def pick(name: str, said: Iterable[tuple[str, Any]]) -> Setting | None:
    """Return the setting as the first of several (source, value) has it; a value of None says nothing.

    >>> pick("arch", [("flag", None), ("sidecar", "a"), ("args", "b")])
    Setting(name='arch', value='a', source='sidecar', others='args: b', guessed=())
    """
    given = [(source, value) for source, value in said if value is not None]
    return _first(name, given, "") if given else None


def merge(said: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Setting]:
    """Return every option of several (source, options), each as the first source that has it gives it."""
    names = dict.fromkeys(name for _, options in said for name in options)
    given = {name: [(source, options[name]) for source, options in said if name in options] for name in names}
    return {name: _first(name, given[name], f"{name}=") for name in names}


def joined(name: str, value: Any, options: Iterable[Setting], main: Setting | None = None) -> Setting:
    """Return several options as one setting; ``main`` is what they are options of, if anything.

    >>> joined("x", 0, [Setting("layers", "1-", "args"), Setting("estimator", "mean", "flag")]).source
    'layers: args; estimator: flag'
    """
    parts = [*([main] if main else []), *options]
    groups: dict[str, list[str]] = {}
    for part in parts:
        groups.setdefault(part.source, []).append(part.name)
    named = {
        source: source
        if len(groups) == 1 or (main and source == main.source)
        else f"{', '.join(n)}: {source}"
        for source, n in groups.items()
    }
    return Setting(name, value, "; ".join(named.values()), remarks(part.others for part in parts))


def remarks(texts: Iterable[str]) -> str:
    """Return those that say something, as one text."""
    return "; ".join(filter(None, texts))


def _first(name: str, given: Sequence[tuple[str, Any]], prefix: str) -> Setting:
    (first, value), *rest = given
    others = remarks(f"{source}: {prefix}{_text(other)}" for source, other in rest if other != value)
    return Setting(name, value, first, others)


def _text(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple | list) else str(value)
