"""What an attack is: a frozen dataclass of settings that proposes perturbed images.

The attack proposes, the evaluator judges: it checks the eps ball and the range of every image, scores each
once, and records what it finds. An attack sees a callable in its protocol's space and never a normalisation.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ..budget import Budget, format_eps
from ..rng import ImageRng

if TYPE_CHECKING:
    from torch import Tensor

Model = Callable[["Tensor"], "Tensor"]
"""Images (N, 3, H, W) to outputs, for classification logits (N, K). A model may say more about itself:
``bounds`` is the range of its input, a pair, or None for none (default (0, 1)); ``batch_size`` how many
images it takes at once (default all); ``objective`` what to raise (default cross-entropy)."""


@dataclass(frozen=True)
class Proposal:
    """Perturbed images, and what it took to find them. Arrays have one entry per image.

    Args:
        images: (N, 3, H, W), same dtype and device as the input, detached.
        queries: forward passes of each image, int64.
        grad_zero: gradients of each image that were zero everywhere, int64.
        grad_nonfinite: gradients of each image with a NaN or infinite entry, int64.
        restart: which restart each image comes from, int64.
    """

    images: Tensor
    queries: npt.NDArray[np.int64]
    grad_zero: npt.NDArray[np.int64]
    grad_nonfinite: npt.NDArray[np.int64]
    restart: npt.NDArray[np.int64]

    @classmethod
    def unchanged(cls, x: Tensor) -> Proposal:
        """Return the images ``x`` bit for bit, found without asking the model."""
        none = [np.zeros(len(x), dtype=np.int64) for _ in range(4)]
        return cls(x.detach().clone(), *none)


class Attack(abc.ABC):
    """Base of all attacks; subclasses are dataclasses with ``frozen=True, repr=False``.

    The ``repr`` can be pasted back. ``version`` is raised when an attack's numbers change; it is part of
    every cell id. Importing an attack imports no torch, so that its settings can be listed and checked
    without it: what computes is imported in ``run``.

    Attributes:
        only_robust: whether images that the model already gets wrong are left alone. An attack by itself
            moves every image, since Top-5 and NLL of a wrong one can still get worse; an ensemble that
            reports the worst case does not.
        labels: what its loss is taken against, "true" or "predicted".
    """

    version: ClassVar[int] = 1
    only_robust: ClassVar[bool] = False
    labels: str = "true"

    @property
    def budget(self) -> Budget | None:
        """How far it may move an image; None for an attack that looks for the shortest way."""
        return None

    def stages(self) -> tuple[tuple[str, Attack], ...]:
        """Return (name, attack) of what is tried in turn, each on the images that are still robust.

        An attack by itself is one stage without a name.
        """
        return (("", self),)

    def __repr__(self) -> str:
        settings = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        text = ", ".join(f"{name}={self._text(value)!r}" for name, value in settings)
        return f"{type(self).__name__}({text})"

    def _text(self, value: object) -> object:
        if not isinstance(value, Fraction):
            return value
        return format_eps(value, self.budget.norm) if self.budget else format_eps(value)

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Forward passes that an image takes, at most: for progress and estimates of time. None at eps 0."""

    def __call__(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Tensor:
        """Return perturbed images, shape and dtype of ``x``.

        Args:
            model: callable in the attack's space.
            x: clean images (N, 3, H, W) in the model's range.
            y: true labels (N,), int64.
            rng: draws for these N images.
        """
        return self.run(model, x, y, rng).images

    @abc.abstractmethod
    def run(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Proposal:
        """Do what ``__call__`` does and also say what it took."""


class Budgeted(Attack):
    """An attack that stays within ``eps`` (a Fraction, in the unit of the images) in ``norm``."""

    eps: Fraction
    norm: str

    @property
    def budget(self) -> Budget:
        """How far it may move an image."""
        return Budget(self.norm, self.eps)
