"""Sizes that are declared of an architecture, compared with the tensors before anything is built.

A model of the declared size can be larger than any memory, and even its skeleton can take minutes to build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from ..errors import OptionError, brief
from ..types import OptionValue
from .preprocessing import MAX_SIDE

_BLOCK = re.compile(r"^blocks\.(\d+)\.")
_ROWS = {"num_classes": "head.weight", "embed_dim": "patch_embed.proj.weight"}  # of which tensor
_SPARE = 10_000_000  # values that a model may have beyond four times the file's: it is 40 MB


def check_sizes(arch: str, options: Mapping[str, OptionValue], tensors: Mapping[str, Tensor]) -> None:
    """Refuse options that make a larger model than the tensors are of.

    What is smaller, or differs in another way, is found when names and shapes are compared.

    Args:
        arch: the architecture, for the message.
        options: as declared, by the file or by the user.
        tensors: in timm's names.

    Raises:
        OptionError: with the option, and what the tensors have.
    """
    for option, value in options.items():
        if isinstance(value, bool | str):
            continue
        most, what = _most(option, tensors)
        if not abs(value) <= most:  # not a number is above any
            raise OptionError(
                f"{option}={brief(value)} was given for {arch}, and {what}; correct it where it was given, "
                "or leave it out"
            )


def check_total(arch: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Refuse an architecture of far more values than the tensors have.

    Args:
        arch: the architecture, for the message.
        expected: its state dict, on the meta device.
        tensors: in timm's names.

    Raises:
        OptionError: with both numbers.
    """
    needed, found = (sum(tensor.numel() for tensor in state.values()) for state in (expected, tensors))
    if needed > 4 * found + _SPARE:
        raise OptionError(
            f"{arch} with the options that were given has {needed:,} values and the file has {found:,}; "
            "correct the options, or leave them out"
        )


def _most(option: str, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Return the largest value that an option can have, and why, in words."""
    if "depth" in option:
        blocks = {match[1] for key in tensors if (match := _BLOCK.match(key))} if option == "depth" else None
        return (
            (len(blocks), f"the file has {len(blocks)} blocks")
            if blocks
            else (len(tensors), f"the file has {len(tensors)} tensors")
        )
    if option == "img_size":
        return MAX_SIDE, f"images have at most {MAX_SIDE} pixels a side"
    rows = tensors.get(_ROWS.get(option, ""))
    if rows is not None and rows.ndim:
        return len(rows), f"{_ROWS[option]} in the file has {len(rows)} rows"
    largest = max(
        [MAX_SIDE, *(side for tensor in tensors.values() if tensor.numel() for side in tensor.shape)]
    )
    return largest, f"no tensor of the file has more than {largest} rows or columns"
