"""Whether the user asked for tracebacks."""

from __future__ import annotations

import sys
import traceback


def debugging() -> bool:
    """Return whether ``--debug`` was given."""
    return "--debug" in sys.argv[1:]


def show_traceback() -> None:
    """Print the traceback of the exception being handled, if the user asked for it."""
    if debugging():
        traceback.print_exc()
