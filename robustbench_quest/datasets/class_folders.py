"""Names of class folders become labels: by WordNet id, by index, or by sorted name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DataError
from . import imagenet_classes

MAX_LABEL = 2**31 - 1
_WNID = re.compile(r"n\d{8}")
_INDEX = re.compile(r"[0-9]+")
# Never classes. Taken for some, a folder of splits would give labels that mean nothing.
_SPLITS = {"images", "test", "train", "val", "valid", "validation"}


@dataclass(frozen=True)
class ClassFolders:
    """What the names of class folders mean.

    Args:
        labels: folder -> label.
        num_classes: how many classes there are, or None where indices do not tell.
        class_names: their names, or None.
        note: how the names were read, one line.
    """

    labels: dict[str, int]
    num_classes: int | None
    class_names: tuple[str, ...] | None
    note: str


def read_class_folders(names: Sequence[str]) -> ClassFolders:
    """Return what the names of class folders mean. All must be of one kind.

    Names like n01440764 are looked up among ImageNet-1k's 1,000 classes, so that a part of the folders keeps
    the labels of the whole. Numbers are the labels themselves, with or without leading zeros. Other names are
    counted from 0 in sorted order, as torchvision's ``ImageFolder`` does.

    Raises:
        DataError: the names are of several kinds, or splits; a wnid is not in ImageNet-1k; two folders mean
            the same index, or an index is too large.
    """
    kinds = {kind: [name for name in names if _kind(name) == kind] for kind in ("wnids", "indices", "names")}
    found = {kind: members for kind, members in kinds.items() if members}
    if len(found) > 1:
        examples = ", ".join(f"{kind} ({some(members)})" for kind, members in found.items())
        raise DataError(f"expected class folders of one kind, found {examples}; rename or remove some")
    if kinds["wnids"]:
        return _by_wnid(names)
    if kinds["indices"]:
        return _by_index(names)
    return _by_name(names)


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few of ``names``, for a message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _kind(name: str) -> str:
    if _WNID.fullmatch(name):
        return "wnids"
    return "indices" if _INDEX.fullmatch(name) else "names"


def _by_wnid(names: Sequence[str]) -> ClassFolders:
    index = {wnid: label for label, wnid in enumerate(imagenet_classes.wnids())}
    strangers = [name for name in names if name not in index]
    if strangers:
        raise DataError(
            f"expected class folders from ImageNet-1k's {len(index)} wnids, found {len(strangers)} others: "
            f"{some(strangers)}; remove them, or name all folders by index"
        )
    note = f"class folders named by wnid: {len(names)} of ImageNet-1k's {len(index)} classes"
    return ClassFolders(
        {name: index[name] for name in names}, len(index), imagenet_classes.class_names(), note
    )


def _by_index(names: Sequence[str]) -> ClassFolders:
    folder_of: dict[int, str] = {}
    for name in names:
        label = int(name)
        if label > MAX_LABEL:
            raise DataError(f"expected class folders named by index, found {name}, which is too large")
        if label in folder_of:
            raise DataError(
                f"expected one folder per class, found {folder_of[label]} and {name} for class {label}; "
                "merge them"
            )
        folder_of[label] = name
    note = f"class folders named by index: the {len(names)} numbers are the labels"
    return ClassFolders({name: label for label, name in folder_of.items()}, None, None, note)


def _by_name(names: Sequence[str]) -> ClassFolders:
    if all(name.lower() in _SPLITS for name in names):
        raise DataError(
            f"expected class folders or a labels.csv, found only {some(names)}; point --data at the folder "
            "whose subfolders are the classes, or add a labels.csv"
        )
    ordered = tuple(sorted(names))
    note = f"class folders named by name: labels count the {len(ordered)} sorted names from 0"
    return ClassFolders({name: label for label, name in enumerate(ordered)}, len(ordered), ordered, note)
