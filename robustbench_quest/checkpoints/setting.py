"""A setting, its value and where it came from: the one way in which sources that differ are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One line of ``--explain``.

    Args:
        name: of the setting.
        value: the one that is used.
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
    """Return the setting as the first of several (source, value) has it; None says nothing.

    >>> pick("arch", [("flag", None), ("sidecar", "a"), ("args", "b")])
    Setting(name='arch', value='a', source='sidecar', others='args: b', guessed=())
    """
    given = [(source, value) for source, value in said if value is not None]
    return _first(name, given, "") if given else None


def merge(said: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Setting]:
    """Return every option of several (source, options), each as the first source that has it gives it."""
    names = dict.fromkeys(name for _, options in said for name in options)
    return {
        name: _first(name, [(s, options[name]) for s, options in said if name in options], f"{name}=")
        for name in names
    }


def joined(name: str, value: Any, options: Iterable[Setting], main: Setting | None = None) -> Setting:
    """Return one setting for several options: their sources, one for all or "main; option, option: source".

    >>> joined("x", 0, [Setting("layers", "1-", "args"), Setting("estimator", "mean", "flag")]).source
    'layers: args; estimator: flag'

    Args:
        name, value: of the setting.
        options: its parts.
        main: what they are options of, if anything; its source goes without saying.
    """
    options = list(options)
    groups: dict[str, list[str]] = {}
    for option in options:
        groups.setdefault(option.source, []).append(option.name)
    if main is None and len(groups) == 1:
        sources = list(groups)
    else:
        sources = [main.source] if main else []
        sources += [f"{', '.join(n)}: {source}" for source, n in groups.items() if source not in sources]
    parts = [main, *options] if main else options
    return Setting(name, value, "; ".join(sources), remarks(part.others for part in parts))


def remarks(texts: Iterable[str]) -> str:
    """Return those that say something, as one text."""
    return "; ".join(text for text in texts if text)


def _first(name: str, given: Sequence[tuple[str, Any]], prefix: str) -> Setting:
    (first, value), *rest = given
    others = remarks(f"{source}: {prefix}{_text(other)}" for source, other in rest if other != value)
    return Setting(name, value, first, others)


def _text(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple | list) else str(value)
