"""Projected gradient descent: Madry et al., 2018, arXiv:1706.06083."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..budget import parse_step, step_size
from ..errors import OptionError
from ..rng import ImageRng
from .base import Budgeted, Model, Proposal
from .settings import LABELS, NORM_NAMES, choice, eps_of, flag, hold, whole

if TYPE_CHECKING:
    from torch import Tensor

KEEP = ("last", "best")


@dataclass(frozen=True, repr=False)
class PGD(Budgeted):
    """Repeated steps up the loss, each projected back into the eps ball and clipped to the model's range.

    Of several restarts a misclassified result beats a correctly classified one, then the larger loss; so an
    image counts as robust only if every restart failed.

    Args:
        eps: the budget, as "4/255", a number or a Fraction; held as a Fraction.
        norm: "linf" or "l2".
        steps: gradient steps per restart, at least 1.
        alpha: length of a step: relative to eps as "0.15eps", held as text, or absolute as "1/255", held as a
            Fraction.
        random_start: start from a uniform point of the ball, else from the clean image.
        restarts: how often to start, at least 1; more than one needs a random start.
        labels: "true", or "predicted" to attack the model's own answer to the clean image.
        keep: "last" returns the last point of a restart, as published; "best" the worst for the model of all
            that were visited, the start included, by the rule for restarts.

    Raises:
        OptionError: a setting has a value that cannot be used.
    """

    eps: Any  # a Fraction once it is made; Any because text and numbers may be given
    norm: str = "linf"
    steps: int = 20
    alpha: Any = "0.15eps"  # text or a Fraction once it is made
    random_start: bool = True
    restarts: int = 1
    labels: str = "true"
    keep: str = "last"

    def __post_init__(self) -> None:
        choice("norm", self.norm, NORM_NAMES)
        choice("labels", self.labels, LABELS)
        choice("keep", self.keep, KEEP)
        whole("steps", self.steps)
        whole("restarts", self.restarts)
        flag("random_start", self.random_start)
        if self.restarts > 1 and not self.random_start:
            raise OptionError(
                f"restarts {self.restarts} without a random start would all be the same; use restarts 1 or a "
                "random start"
            )
        hold(self, eps=eps_of(self.eps, self.norm), alpha=parse_step(self.alpha))
        step_size(self.alpha, self.eps, self.norm)  # refuses a step that does not fit eps

    @property
    def passes(self) -> int:
        """``steps`` per restart, one more per restart when results are compared, one for predicted labels."""
        return self.restarts * (self.steps + self._compares) + (self.labels == "predicted")

    @property
    def _compares(self) -> bool:
        return self.restarts > 1 or self.keep == "best"

    def run(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Proposal:
        """See ``Attack.run``."""
        from .gradient import Oracle
        from .norms import NORMS
        from .ranking import Worst

        if self.eps == 0 or len(x) == 0:
            return Proposal.unchanged(x)
        oracle = Oracle(model, x)
        labels = oracle.loss_labels(self.labels, x, y)
        norm, eps, alpha = NORMS[self.norm], float(self.eps), step_size(self.alpha, self.eps)
        worst = Worst(y, oracle.objective)
        for restart in range(self.restarts):
            images = oracle.clip(norm.random_start(x, eps, rng, restart)) if self.random_start else x
            for _ in range(self.steps):
                gradient, logits = oracle.gradient(images, labels)
                if self.keep == "best":
                    worst.offer(images, logits, restart)
                images = norm.project(images + alpha * norm.direction(gradient), x, eps)
                images = oracle.clip(images)
            if not self._compares:
                return oracle.proposal(images)
            worst.offer(images, oracle.logits(images), restart)
        return oracle.proposal(worst.images, worst.restart)
