"""Settings of a run: what is evaluated of a cell, and how. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import OptionError

DEFAULT_BATCH = 32


@dataclass(frozen=True)
class Run:
    """What can change a number, beside model, data set and threat.

    Args:
        limit: number of images, a prefix of the data set's fixed order; None is all.
        seed: of every draw.
        block_size: images per block, the unit of work and resume; None is the kind of threat's own.
        protocol: named attack settings, or the path of a YAML file of them; decides the space of attacks.
        adaptive: whether gradients go through Elliptical's M; None is the protocol's.

    Raises:
        OptionError: a size that makes no sense.
    """

    limit: int | None = None
    seed: int = 0
    block_size: int | None = None
    protocol: str = "pixel"
    adaptive: bool | None = None

    def __post_init__(self) -> None:
        _at_least(1, limit=self.limit, block_size=self.block_size)


@dataclass(frozen=True)
class How:
    """What changes no number: memory and speed, and what is kept beside the records.

    Args:
        batch_size: images per model call; splits a block and changes no draw.
        workers: processes that read images; 0 reads in this one.
        keep_images: of how many images, from the first, pixels are kept beside the cell as npz.

    Raises:
        OptionError: a size that makes no sense.
    """

    batch_size: int = DEFAULT_BATCH
    workers: int = 0
    keep_images: int = 0

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)
        _at_least(0, workers=self.workers, keep_images=self.keep_images)


def _at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise OptionError(f"`{name}` must be at least {least}, but is {value}")
