"""What a number belongs to: models, data sets, threats and cells. Frozen, and importable without torch.

The canonical JSON of a cell's ``identity`` names the cell: everything that can change one of its numbers is
in it, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

SCHEMA_VERSION = 2

Note = Callable[[str], None]
"""Told what a user should know, one line each."""

OptionValue = str | int | float | bool
Options = tuple[tuple[str, OptionValue], ...]


def canonical(value: object) -> bytes:
    """Return the one JSON form of ``value``: sorted keys, no spaces, no NaN, fractions as "1/255"."""
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_fraction_text,
    )
    return text.encode()


def _fraction_text(value: object) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An attention variant with every option filled in; ``source_hash`` is that of a user's file."""

    name: str
    options: Options = ()
    version: int = 1
    source_hash: str = ""

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "name": self.name,
            "options": dict(self.options),
            "version": self.version,
            "source": self.source_hash,
        }

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.name}({options})" if options else self.name


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a decoded image becomes a model's input.

    It is resized, the centre ``size`` x ``size`` cut out, values become [0, 1], and, inside the classifier,
    (x - mean) / std. ``crop_mode`` says which side gets ``resize`` pixels: the shorter one ("center"), both
    ("squash"), or the longer one, with the mean's colour around what is too small ("border"). ``resize`` 0
    leaves the image as it is.
    """

    size: int
    resize: int
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    crop_mode: str = "center"

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "size": self.size,
            "resize": self.resize,
            "crop_mode": self.crop_mode,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, as far as it can change a number (``identity``), and how that was found out (``sources``)."""

    name: str
    checkpoint: str  # sha256 of the file, or of the weights of a module given in Python
    arch: str
    attention: AttentionSpec | None
    weights: str  # which container of the file: "", "model", "state_dict_ema" ...
    preprocessing: Preprocessing
    num_classes: int
    arch_options: Options = ()
    source_hash: str = ""  # of a user's model file
    sources: Options = ()  # setting -> where it came from
    guessed: tuple[str, ...] = ()  # settings that nothing declared

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "checkpoint": self.checkpoint,
            "arch": self.arch,
            "arch_options": dict(self.arch_options),
            "attention": None if self.attention is None else self.attention.identity(),
            "weights": self.weights,
            "preprocessing": self.preprocessing.identity(),
            "source": self.source_hash,
        }


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A data set: its name, the fingerprint of its content, the reader's version, and the task it sets."""

    name: str
    fingerprint: str
    version: int
    task: str = "classification"

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "version": self.version,
            "task": self.task,
        }


@dataclass(frozen=True, slots=True)
class Threat:
    """What the images go through: nothing, an attack, a corruption ...; ``kind`` says which of these.

    ``options`` holds every setting, defaults included; budgets and absolute steps are exact fractions (as
    text where the threat was read back from a store).
    """

    kind: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()
    version: int = 1

    @property
    def eps(self) -> Fraction | None:
        """The budget, or None for a threat without one."""
        value = dict(self.options).get("eps")
        return None if value is None else Fraction(value)

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "kind": self.kind,
            "name": self.name,
            "options": dict(self.options),
            "version": self.version,
        }


CLEAN = Threat("clean", "clean")


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """The space in which attacks move images, as far as it can change a number.

    Args:
        kind: "pixel", or "normalised": (pixels - mean) / std.
        std: per channel, for "normalised"; None is the model's own.
        clamp: the range to which attacks clip; None for none.
    """

    kind: str = "pixel"
    std: tuple[float, float, float] | None = None
    clamp: tuple[float, float] | None = (0.0, 1.0)

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {
            "kind": self.kind,
            "std": None if self.std is None else list(self.std),
            "clamp": None if self.clamp is None else list(self.clamp),
        }


@dataclass(frozen=True, slots=True)
class AttackSide:
    """What an attack is allowed to see of a model; part of the cells of attacks and of no others.

    Args:
        space: where it moves images.
        adaptive: whether its gradient goes through Elliptical attention's metric M, which the reference code
            computes without one.
    """

    space: SpaceSpec = SpaceSpec()
    adaptive: bool = True

    def identity(self) -> dict[str, Any]:
        """Return what of this can change a number."""
        return {"space": self.space.identity(), "adaptive": self.adaptive}


@dataclass(frozen=True, slots=True)
class Cell:
    """One box of a robustness table: a model, a data set, a threat; and how it is cut into blocks.

    Args:
        limit: number of images, at most the data set's size.
        seed: of the draws; None where the threat draws nothing.
        side: what an attack may see; None for threats that see no model.
        protocol: a label; what it stands for is in ``threat`` and ``side``.
    """

    model: ModelSpec
    dataset: DatasetSpec
    threat: Threat
    limit: int
    block_size: int
    seed: int | None = None
    side: AttackSide | None = None
    protocol: str = ""
    precision: str = "float32"

    def identity(self) -> Mapping[str, Any]:
        """Return what of this can change a number."""
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model.identity(),
            "dataset": self.dataset.identity(),
            "threat": self.threat.identity(),
            "limit": self.limit,
            "block_size": self.block_size,
            "seed": self.seed,
            "side": None if self.side is None else self.side.identity(),
            "precision": self.precision,
        }

    @property
    def id(self) -> str:
        """The sha256 of the canonical identity, 64 hexadecimal digits."""
        return hashlib.sha256(canonical(self.identity())).hexdigest()

    @property
    def blocks(self) -> list[range]:
        """The blocks: consecutive ranges of the data set's order that together hold ``limit`` images."""
        return [
            range(start, min(start + self.block_size, self.limit))
            for start in range(0, self.limit, self.block_size)
        ]
