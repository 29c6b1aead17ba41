"""Elliptical attention's metric M (Nielsen et al., 2024, arXiv:2406.13770).

M is diagonal, one per image and head: for each head dimension the mean over tokens of |v - v_previous|, the
change of the values since the previous layer, divided by its largest entry. The reference code divides the
mean by delta = 5 first; the second division cancels it. Layer 0 has no previous layer and no metric.

The reference computes M without gradient, so attacks on it follow a gradient that ignores M. That is no
property of a model but of who attacks it: ``metric_gradient`` switches it, for an evaluation or for training.
Its attack scripts also offer the (lower) median over tokens in place of the mean.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import OptionError
from .qk_norms import at_least_float32


class PreviousValues:
    """The values of the previous layer, handed from one attention module to the next within a forward pass.

    ``detach`` says whether M is computed from them without gradient, as the reference does.

    A plain object, so it adds no keys to the state dict. One forward pass at a time: not for nn.DataParallel
    or activation checkpointing.
    """

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.detach = False

    def __reduce__(self) -> tuple[type[PreviousValues], tuple[()]]:
        # Copies start empty: a pass that was interrupted leaves values in a graph, which cannot be copied.
        return type(self), ()


def elliptical_metric(values: Tensor, previous: Tensor, estimator: str) -> Tensor:
    """Return the diagonal of M, shape (B, H, 1, D), from two layers' values (B, H, N, D).

    Computed in at least float32. Entries lie in [0, 1] and the largest is 1. Where nothing changed, M is 0
    and so is its gradient (the reference divides 0 by 0).

    Args:
        values: this layer's values.
        previous: the previous layer's values.
        estimator: "mean", or "median" (the lower one of an even number) over tokens.
    """
    change = (at_least_float32(values) - at_least_float32(previous)).abs()
    if estimator == "median":
        # Sorted, since torch.median is not deterministic on CUDA.
        middle = (change.shape[-2] - 1) // 2
        spread = change.sort(dim=-2).values[..., middle : middle + 1, :]
    else:
        spread = change.mean(dim=-2, keepdim=True)
    largest = spread.amax(dim=-1, keepdim=True)
    return spread / torch.where(largest > 0, largest, 1.0)


class Metric:
    """One layer's use of M: remembers this layer's values and gives M where the layer has one.

    Args:
        shared: the object that all layers of a model share.
        active: whether this layer uses M; layer 0, which has no previous layer, must not.
        last: whether this is the last layer, which lets go of the values.
        estimator: "mean" or "median" over tokens.
    """

    def __init__(self, shared: PreviousValues, *, active: bool, last: bool, estimator: str) -> None:
        self.shared = shared
        self.active = active
        self.last = last
        self.estimator = estimator

    def of(self, values: Tensor) -> Tensor | None:
        """Return this layer's M for ``values`` (B, H, N, D), or None; and remember the values."""
        if self.shared.detach:
            values = values.detach()
        previous = self.shared.values
        self.shared.values = None if self.last else values
        if not self.active:
            return None
        if previous is None:
            raise RuntimeError(
                "elliptical attention: the previous layer's values are missing; run all layers, in order"
            )
        return elliptical_metric(values, previous, self.estimator)


@contextlib.contextmanager
def metric_gradient(shared: PreviousValues | None, through: bool) -> Iterator[None]:
    """Let gradients pass through M inside, or not; None, of a model without M, is left alone."""
    if shared is None:
        yield
        return
    before, shared.detach = shared.detach, not through
    try:
        yield
    finally:
        shared.detach = before


def parse_layers(text: str) -> list[tuple[int, int | None]]:
    """Return the inclusive ranges that ``text`` names; "1-" has no end.

    >>> parse_layers("1,3-5,8-")
    [(1, 1), (3, 5), (8, None)]

    Raises:
        OptionError: ``text`` is not such a list, a range runs backwards, or it names layer 0.
    """
    ranges: list[tuple[int, int | None]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)\s*(-?)\s*([0-9]*)\s*", part)
        if match is None or (match[3] and not match[2]):
            raise OptionError(f"layers={text!r} is not a list of layers such as 1-11, 1,3,5 or 1-")
        first = int(match[1])
        last = int(match[3]) if match[3] else (None if match[2] else first)
        if first == 0:
            raise OptionError(f"layers={text!r} names layer 0, which has no previous layer; start at 1")
        if last is not None and last < first:
            raise OptionError(
                f"layers={text!r}: the range {first}-{last} runs backwards; write {last}-{first}"
            )
        ranges.append((first, last))
    return ranges


def canonical_layers(text: str, count: int | None = None) -> str:
    """Return the one text for a set of layers: sorted, without repetitions, neighbours joined.

    Args:
        text: the layers.
        count: the number of layers, where it is known; a range that reaches the last one is then open.

    >>> canonical_layers("5,1,2,3-4,9"), canonical_layers("1,2,3", count=4)
    ('1-5,9', '1-')

    Raises:
        OptionError: as ``parse_layers``.
    """
    merged: list[tuple[int, float]] = []
    for first, last in sorted((f, math.inf if end is None else end) for f, end in parse_layers(text)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return ",".join(_range_text(first, math.inf if last + 1 == count else last) for first, last in merged)


def _range_text(first: int, last: float) -> str:
    if last == math.inf:
        return f"{first}-"
    return str(first) if first == last else f"{first}-{int(last)}"


def uses_metric(index: int, count: int, text: str) -> bool:
    """Return whether layer ``index`` of ``count`` is among the layers that ``text`` names.

    Raises:
        OptionError: ``text`` names a layer that the model does not have.
    """
    ranges = parse_layers(text)
    largest = max(first if last is None else last for first, last in ranges)
    if largest >= count:
        raise OptionError(f"layers={text!r} names layer {largest}; the model has layers 0-{count - 1}")
    return any(first <= index and (last is None or index <= last) for first, last in ranges)
