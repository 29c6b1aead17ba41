"""Data sets and models that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from robustbench_quest.datasets.base import Dataset
from robustbench_quest.models.classifier import Classifier


class Images(Dataset):
    """Random 8x8 images that a test makes up."""

    name = "images"

    def __init__(self, count: int = 12, classes: int = 10) -> None:
        self.image_ids = tuple(f"image-{i}" for i in range(count))
        self.labels = np.arange(count) % classes
        self.pixels = np.random.RandomState(0).randint(0, 256, (count, 8, 8, 3), np.uint8)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        return np.asarray(self.pixels[index])

    def fingerprint(self) -> str:
        return f"{len(self.image_ids):064d}"


class Rule(nn.Module):
    """A model that is a plain function."""

    def __init__(self, function: Callable[[Tensor], Tensor], num_classes: int = 10) -> None:
        super().__init__()
        self.function = function
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def linear(x: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, 10 * 3 * 8 * 8, dtype=x.dtype).sin().reshape(3 * 8 * 8, 10)
    return x.flatten(1) @ weights


def rule(function: Callable[[Tensor], Tensor], classes: int = 10, **options: Any) -> Classifier:
    return Classifier(Rule(function, classes), size=8, resize=0, **options)
