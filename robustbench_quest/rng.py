"""The only source of randomness: one frozen generator per image, keyed by a hash.

What an image gets depends on (seed, stream, image id, step) and on nothing else: not on the batch, the
worker, the order, or what was drawn before. ``RandomState`` over ``Philox`` is used because NumPy freezes its
streams (NEP 19); the distributions of ``Generator`` may change between NumPy versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def digest(*parts: str | int) -> bytes:
    """Return 32 bytes that depend on ``parts`` alone; ("a", "b") and ("ab",) differ."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).digest()


def generator(*key: str | int) -> np.random.RandomState:
    """Return the frozen generator of a key."""
    philox = np.random.Philox(key=int.from_bytes(digest(*key)[:16], "little"))
    return np.random.RandomState(philox)


class ImageRng:
    """Draws for the images of one batch.

    Args:
        seed: the run's seed.
        stream: what the draws are for, usually the name of the attack.
        image_ids: one id per image, in batch order.
    """

    def __init__(self, seed: int, stream: str, image_ids: Sequence[str]) -> None:
        self.seed = seed
        self.stream = stream
        self.image_ids = tuple(image_ids)

    def __len__(self) -> int:
        return len(self.image_ids)

    def uniform(self, shape: tuple[int, ...], *step: str | int) -> npt.NDArray[np.float32]:
        """Return float32 draws from [0, 1), shape (N, *shape). The same step gives the same draws."""
        return np.stack([g.random_sample(shape) for g in self._generators(step)]).astype(np.float32)

    def normal(self, shape: tuple[int, ...], *step: str | int) -> npt.NDArray[np.float32]:
        """Return float32 standard normal draws, shape (N, *shape)."""
        return np.stack([g.standard_normal(shape) for g in self._generators(step)]).astype(np.float32)

    def _generators(self, step: tuple[str | int, ...]) -> list[np.random.RandomState]:
        return [generator(self.seed, self.stream, image, *step) for image in self.image_ids]
