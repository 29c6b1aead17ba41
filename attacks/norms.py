"""What a norm means: how far apart images are, where to start, which way is up, how to come back into the
ball.

One attack algorithm with these hooks serves every norm, as in foolbox (``gradient_descent_base.py``); the
evaluator measures with the same objects. How budgets are written is in ``budget.UNITS``.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..rng import ImageRng

# float32 rounds a sum such as pixel + eps by up to 6e-8 in every pixel; who is off by more has left the ball.
ROUNDING = 1e-7


class Norm(Protocol):
    """The hooks. Images and gradients are (N, C, H, W); eps, the radius, has the unit of the images."""

    def measure(self, change: Tensor) -> Tensor:
        """Return the length of each image's ``change`` (N,)."""
        ...

    def tolerance(self, dimensions: int) -> float:
        """Return how far rounding in float32 can carry an image of so many values out of its ball."""
        ...

    def random_start(self, clean: Tensor, eps: float, rng: ImageRng, restart: int) -> Tensor:
        """Return uniform draws from the balls around ``clean``; ``restart`` is part of their key."""
        ...

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the direction of length 1 in which the loss rises fastest; zero for a zero gradient."""
        ...

    def project(self, images: Tensor, clean: Tensor, eps: float) -> Tensor:
        """Return the nearest points in the balls around ``clean``."""
        ...


class Linf:
    """Every pixel may change by at most eps."""

    def measure(self, change: Tensor) -> Tensor:
        """Return the largest change of a pixel."""
        return change.abs().flatten(1).amax(dim=1)

    def tolerance(self, dimensions: int) -> float:
        """Return the rounding of one pixel."""
        return ROUNDING

    def random_start(self, clean: Tensor, eps: float, rng: ImageRng, restart: int) -> Tensor:
        """Return ``clean`` plus uniform noise from [-eps, eps]."""
        draws = _like(clean, rng.uniform(tuple(clean.shape[1:]), "start", restart))
        return clean + eps * (2 * draws - 1)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the sign of the gradient."""
        return gradient.sign()

    def project(self, images: Tensor, clean: Tensor, eps: float) -> Tensor:
        """Clamp the change of every pixel to [-eps, eps]."""
        return clean + (images - clean).clamp(-eps, eps)


class L2:
    """The change of an image has Euclidean length eps at most."""

    def measure(self, change: Tensor) -> Tensor:
        """Return the Euclidean length."""
        length: Tensor = torch.linalg.vector_norm(change.flatten(1), dim=1)
        return length

    def tolerance(self, dimensions: int) -> float:
        """Return the length of a change by one rounding in every pixel."""
        return ROUNDING * math.sqrt(dimensions)

    def random_start(self, clean: Tensor, eps: float, rng: ImageRng, restart: int) -> Tensor:
        """Return uniform draws from the balls: a normal direction, and radius eps u^(1/d) in d dimensions.

        (torchattacks' PGDL2 uses radius eps u, which in many dimensions crowds the centre.)
        """
        shape = tuple(clean.shape[1:])
        normal = _like(clean, rng.normal(shape, "start", restart))
        radius = _like(clean, rng.uniform((1, 1, 1), "radius", restart)) ** (1 / normal[0].numel())
        return clean + eps * radius * (normal / _length(normal))

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the gradient over its length."""
        # The squares of a small gradient underflow, and a confident model has small gradients: scale first.
        largest = gradient.abs().amax(dim=(1, 2, 3), keepdim=True)
        scaled = gradient / torch.where(largest > 0, largest, 1)
        return scaled / torch.where(largest > 0, _length(scaled), 1)

    def project(self, images: Tensor, clean: Tensor, eps: float) -> Tensor:
        """Shorten changes that are longer than eps."""
        change = images - clean
        return clean + change * (eps / _length(change)).clamp(max=1)


NORMS: dict[str, Norm] = {"linf": Linf(), "l2": L2()}


def _length(images: Tensor) -> Tensor:
    """Return the Euclidean length of each image, shape (N, 1, 1, 1)."""
    length: Tensor = torch.linalg.vector_norm(images, dim=(1, 2, 3), keepdim=True)
    return length


def _like(images: Tensor, draws: npt.NDArray[np.float32]) -> Tensor:
    if len(draws) != len(images):
        raise ValueError(
            f"rng has draws for {len(draws)} images, the batch has {len(images)}; give one id per image"
        )
    return torch.from_numpy(draws).to(images)
