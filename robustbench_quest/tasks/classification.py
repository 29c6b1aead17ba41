"""Classification: one label per image.

==================  ==========  ==========================================================================
column              type        meaning
==================  ==========  ==========================================================================
label               int32       true class
pred                list int32  the five likeliest classes (all, with fewer than five), likeliest first; where
                                logits tie, the true class comes last of the tied
prob                list float  their probabilities
nll                 float64     -log probability of the true class, in nats; infinite unless ``finite``
brier               float64     sum over classes of (probability - one-hot label)^2
margin              float64     logit of the true class minus the largest other logit
correct             bool        pred[0] is the label; false where ``finite`` is false
correct5            bool        the label is in pred; null with fewer than five classes
finite              bool        every logit is finite
==================  ==========  ==========================================================================

Where the model also answered the clean image, in addition:

==================  ==========  ==========================================================================
clean_pred          int32       prediction for the clean image; -1 where its logits are not finite
loss_start          float64     cross-entropy of the clean image, for the label that the attack used
loss_end            float64     the same of the returned image
==================  ==========  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import DataError
from .base import Task

if TYPE_CHECKING:
    from torch import Tensor

    from ..attacks.objective import Objective
    from ..datasets.base import Dataset
    from ..types import ModelSpec


class Classification(Task):
    """One label per image."""

    name = "classification"
    columns = (
        ("label", pa.int32()),
        ("pred", pa.list_(pa.int32())),
        ("prob", pa.list_(pa.float32())),
        ("nll", pa.float64()),
        ("brier", pa.float64()),
        ("margin", pa.float64()),
        ("correct", pa.bool_()),
        ("correct5", pa.bool_()),
        ("finite", pa.bool_()),
    )
    compared = (("clean_pred", pa.int32()), ("loss_start", pa.float64()), ("loss_end", pa.float64()))
    success = "correct"
    metrics = ("top1", "top5", "nll")
    clean_metric = "clean_top1"

    def check(self, model: ModelSpec, dataset: Dataset) -> None:
        """Refuse labels that the model cannot predict."""
        labels = dataset.labels
        hint = f"; {dataset.label_hint}" if dataset.label_hint else ""
        low, high = int(labels.min()), int(labels.max())
        if high >= model.num_classes or low < 0:
            worst = int(labels.argmax()) if high >= model.num_classes else int(labels.argmin())
            raise DataError(
                f"label {int(labels[worst])} of {dataset.image_ids[worst]} is out of range: the model has "
                f"classes 0-{model.num_classes - 1}; check the labels, or take the checkpoint for this "
                f"data{hint}"
            )
        if dataset.num_classes is not None and dataset.num_classes != model.num_classes:
            raise DataError(
                f"data set {dataset.name} has {dataset.num_classes} classes, the model {model.num_classes}; "
                f"check `root` and `checkpoint`{hint}"
            )

    def targets(self, dataset: Dataset, indices: npt.NDArray[np.int64]) -> Tensor:
        """Return the labels (N,), int64."""
        import torch

        return torch.from_numpy(dataset.labels[indices])

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return the columns for logits (N, K) and labels (N,); see ``scoring.score``."""
        from .scoring import score

        return {"label": targets.numpy(force=True).astype(np.int32), **score(outputs, targets)}

    def compare(
        self, scored: Mapping[str, Any], clean: Tensor, final: Tensor, aimed: Tensor
    ) -> dict[str, Any]:
        """Return the prediction for the clean image, and the loss before and after."""
        from .scoring import cross_entropy, predictions

        return {
            "clean_pred": predictions(scored),
            "loss_start": cross_entropy(clean, aimed),
            "loss_end": cross_entropy(final, aimed),
        }

    def objective(self) -> Objective:
        """Return cross-entropy, and misclassification."""
        from ..attacks.objective import CrossEntropy

        return CrossEntropy()


CLASSIFICATION = Classification()
