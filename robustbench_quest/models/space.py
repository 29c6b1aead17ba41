"""The space in which attacks move images: pixels, or pixels normalised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Space:
    """A model as an attack sees it: a callable on encoded images (N, 3, H, W).

    Args:
        outputs: what the model answers to encoded images.
        encode: from pixels in [0, 1] to the space.
        decode: back to pixels.
        bounds: the range to which attacks clip, or None for none.
        unit: how many pixel values one unit of the space is, per channel (3,).
    """

    outputs: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    bounds: tuple[float, float] | None
    unit: tuple[float, float, float]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's outputs for encoded images."""
        return self.outputs(images)


def unchanged(images: Tensor) -> Tensor:
    """Return ``images``: pixels are their own code."""
    return images
