"""Run the command line in this process, as a user would."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable


class Outcome:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


Cli = Callable[..., Outcome]
"""Runs ``run_eval.py`` with the given arguments, or, with group=True, ``rbq``."""
