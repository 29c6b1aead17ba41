"""Errors that a user can cause, one line each.

QuestError
 +-- OptionError       a flag or argument has a value that cannot be used
 +-- CheckpointError   a checkpoint file cannot be read, or does not fit the model
 +-- DataError         a data set, or one of its images, cannot be used
 +-- StoreError        the result store is damaged, read-only, or of another version

Each message says what was expected, what was found and what to do. The command line prints it as it is
and exits with code 2; anything that is not a QuestError is a fault of this package.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches


class QuestError(Exception):
    """Base of every error that this package raises on purpose."""


class OptionError(QuestError):
    """A flag or argument has a value that cannot be used."""


class CheckpointError(QuestError):
    """A checkpoint file cannot be read, or does not fit the model."""


class DataError(QuestError):
    """A data set, or one of its images, cannot be used."""


class StoreError(QuestError):
    """The result store is damaged, read-only, or of another version."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: what it was, the closest guess, and every right answer.

    >>> unknown("attack", "pdg", ["fgsm", "pgd"])
    "unknown attack 'pdg'; did you mean 'pgd'? Available: fgsm, pgd"
    """
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind} {name!r}; {guess}Available: {', '.join(choices)}"


def brief(value: object) -> str:
    """Return a value for a message: its repr in one line, cut where it is long, deep or holds itself.

    >>> brief([1, [2, [3]]])
    '[1, [2, [3]]]'
    """
    try:
        text = " ".join(_BRIEF.repr(value).splitlines())
    except ValueError:  # Python prints no whole number of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 300 else text[:300] + "..."


def brief_path(path: object) -> str:
    """Return a path for a message: as it is, or quoted and cut where it is very long or of several lines."""
    text = str(path)
    return text if len(text) <= 500 and not any(c < " " for c in text) else brief(text)


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother, _BRIEF.maxlist, _BRIEF.maxtuple = 4, 100, 100, 12, 12
