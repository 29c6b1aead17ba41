"""A setting, its value, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of ``--explain``: a setting, its value, its source, and what other sources would give."""

    setting: str
    value: str
    source: str
    alternatives: str = ""
