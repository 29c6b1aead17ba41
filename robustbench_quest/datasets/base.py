"""What a data set is: labelled images in one fixed listing order, read one at a time."""

from __future__ import annotations

import abc
import hashlib
import inspect
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import DataError, OptionError, unknown
from ..files import shown
from ..registry import DATASETS
from ..types import DatasetSpec, Note, canonical
from .contents import Contents
from .order import fixed_order


class Dataset(abc.ABC):
    """Labelled images. A subclass sets the attributes below and implements ``read`` and ``fingerprint``.

    Attributes:
        name: the name that ``--dataset`` takes.
        version: raised when the numbers of this reader change; it is part of every cell id.
        needs_root: whether ``--data`` has to say where the images are.
        task: what it asks of a model, a name of the registry of tasks.
        default_eps: the budget of an attack when nobody names one, as k/255; None: the protocol's.
        num_classes: how many classes the labels are out of; None where the data does not say.
        class_names: the name of each class; None where the data does not say.
        image_ids: one id per image, unique, in listing order. Everything random is keyed by it.
        labels: (N,) int64, in listing order.
        target_labels: (N,) int64 labels for targeted attacks, or None.
        label_hint: what to do where the labels do not fit a model, or "".
        notes: what a user should know about how the data was read, one line each.
        contents: what the files hold; None where the data is embedded.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs_root: ClassVar[bool] = True
    default_eps: ClassVar[str | None] = None
    task: ClassVar[str] = "classification"

    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    image_ids: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    target_labels: npt.NDArray[np.int64] | None = None
    label_hint: str = ""
    notes: tuple[str, ...] = ()
    contents: Contents | None = None

    def __len__(self) -> int:
        return len(self.image_ids)

    @abc.abstractmethod
    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image at ``index`` of the listing: (H, W, 3) uint8, RGB.

        Raises:
            DataError: the image cannot be read; the message names it and the cause.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Return the sha256, 64 hexadecimal digits, of what the data set holds, however it is listed."""

    def remember_contents_in(self, folder: Path, note: Note | None = None) -> None:
        """Keep what files hold in ``folder``, so that unchanged ones are read for the fingerprint only once.

        Without it, that is kept in memory. Embedded data has no need of it.

        Args:
            folder: beside the results; several processes and data sets may share it.
            note: told, in a sentence, that many files must be read.
        """
        if self.contents is not None:
            self.contents.remember_in(folder, note)

    @property
    def spec(self) -> DatasetSpec:
        """The data set's part of a cell, of the data as it is now.

        Raises:
            DataError: an image is missing or cannot be read.
        """
        return DatasetSpec(self.name, self.fingerprint(), self.version, self.task)

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """The fixed permutation of the listing, of which ``--limit N`` takes the first N."""
        return fixed_order(self.image_ids, self.labels)


def file_fingerprint(image_ids: Sequence[str], digests: Sequence[str], labels: npt.NDArray[np.int64]) -> str:
    """Return the sha256 over a data set's sorted (relative path, sha256 of the file's bytes, label)."""
    rows = zip(image_ids, digests, labels.tolist(), strict=True)
    return hashlib.sha256(canonical(sorted(rows))).hexdigest()


def dataset_options(name: str) -> dict[str, Any]:
    """Return the options of a data set's reader and their defaults: its keyword-only arguments.

    Raises:
        OptionError: no such data set.
    """
    parameters = inspect.signature(DATASETS.load(name)).parameters.values()
    return {option.name: option.default for option in parameters if option.kind is option.KEYWORD_ONLY}


def open_dataset(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Return the data set called ``name``.

    Args:
        name: a registered name: digits, folder ...
        root: where its images are; only for data sets that are not embedded.
        options: of its reader; see ``dataset_options``.

    Raises:
        OptionError: no such data set; or ``root`` is missing, or given to an embedded one; or
            an option that its reader does not have.
        DataError: what is at ``root`` cannot be used.
    """
    kind = DATASETS.load(name)
    known = dataset_options(name)
    for option in options:
        if option not in known:
            choice = (
                unknown("option", option, known) if known else f"it has none, found {option}; leave it out"
            )
            raise OptionError(f"options of data set {name!r}: {choice}")
    if not kind.needs_root:
        if root is not None:
            raise OptionError(
                f"data set {name!r} is embedded and reads no --data, found --data {shown(root)}; "
                "drop --data, or use --dataset folder"
            )
        dataset = kind(**options)
    elif root is None:
        raise OptionError(f"data set {name!r} needs --data DIR, the folder with its images")
    else:
        dataset = kind(root, **options)
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{kind!r} is registered as data set {name!r} but is no Dataset")
    if len(dataset) == 0:
        raise DataError(f"data set {name!r} holds no images")
    return dataset
