"""The command line. Thin: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from .entry import eval_command, main

__all__ = ["eval_command", "main"]
