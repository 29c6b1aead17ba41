"""Settings as flags: layers below the command line name settings, here they get their dashes."""

from __future__ import annotations

import re

# Settings whose flag has another name. Every other setting `some_name` is --some-name.
NAMES = {
    "checkpoint": "ckpt",
    "root": "data",
    "store": "out",
    "format": "format",
    "arch_options": "arch-option",
    "attention_options": "attention-option",
    "model_options": "model-option",
    "threats": "attack",
}
_SETTING = re.compile(r"`([a-z][a-z_0-9]*)`")


def as_flags(message: str) -> str:
    """Return a message with the settings in backticks written as flags.

    >>> as_flags("`batch_size` must be at least 1; `root` is missing")
    '--batch-size must be at least 1; --data is missing'
    """
    return _SETTING.sub(lambda match: f"--{NAMES.get(match[1], match[1].replace('_', '-'))}", message)
