"""Whether the user asked for tracebacks."""

from __future__ import annotations

import sys
import traceback


def show_traceback() -> None:
    """Print the traceback of the exception being handled, if ``--debug`` was given."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exc()
