"""Fast gradient sign method: Goodfellow et al., 2015, arXiv:1412.6572."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..rng import ImageRng
from .base import Budgeted, Model, Proposal
from .settings import LABELS, NORM_NAMES, choice, eps_of, hold

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, repr=False)
class FGSM(Budgeted):
    """One step of length eps in the direction in which the loss rises fastest, clipped to the model's range.

    For linf that is x + eps sign(gradient), for l2 x + eps gradient / |gradient| ("fast gradient method"). An
    image whose gradient is zero stays as it is.

    Args:
        eps: the budget, as "4/255", a number or a Fraction; held as a Fraction.
        norm: "linf" or "l2".
        labels: "true", or "predicted" to attack the model's own answer to the clean image.

    Raises:
        OptionError: a setting has a value that cannot be used.
    """

    eps: Any  # a Fraction once it is made; Any because text and numbers may be given
    norm: str = "linf"
    labels: str = "true"

    def __post_init__(self) -> None:
        choice("norm", self.norm, NORM_NAMES)
        choice("labels", self.labels, LABELS)
        hold(self, eps=eps_of(self.eps, self.norm))

    @property
    def passes(self) -> int:
        """One, and one more to find the labels when they are predicted."""
        return 1 + (self.labels == "predicted")

    def run(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Proposal:
        """See ``Attack.run``."""
        from .gradient import Oracle
        from .norms import NORMS

        if self.eps == 0 or len(x) == 0:
            return Proposal.unchanged(x)
        oracle = Oracle(model, x)
        labels = oracle.loss_labels(self.labels, x, y)
        gradient, _ = oracle.gradient(x, labels)
        step = float(self.eps) * NORMS[self.norm].direction(gradient)
        return oracle.proposal(oracle.clip(x + step))
