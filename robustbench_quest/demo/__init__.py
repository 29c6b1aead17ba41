"""The embedded demonstration: a small trained zoo for the digits data set, and the script that trains it."""

from __future__ import annotations

from pathlib import Path

from ..errors import OptionError
from ..registry import ATTENTION

SEEDS = (0, 1, 2)
FOLDER = Path(__file__).parent


def model_name(attention: str, seed: int) -> str:
    """Return the file name, without its ending, of one model of the demo zoo."""
    return f"vit_digits_{attention}_s{seed}"


def demo_checkpoint(attention: str = "quest", seed: int = 0) -> Path:
    """Return the path of a model of the demo zoo.

    Raises:
        OptionError: the zoo holds no such model.
    """
    path = FOLDER / f"{model_name(attention, seed)}.safetensors"
    if not path.is_file():
        seeds, variants = ", ".join(map(str, SEEDS)), ", ".join(ATTENTION)
        raise OptionError(f"the demo zoo has no {path.stem}; it holds seeds {seeds} of {variants}")
    return path
