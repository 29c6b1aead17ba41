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
