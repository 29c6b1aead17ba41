"""Names of class folders become labels: by WordNet id, by index, or by sorted name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import DataError
from ..files import shown
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
        notes: how the names were read, one line each.
        hint: what to do where a model does not fit these labels, or "".
    """

    labels: dict[str, int]
    num_classes: int | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    hint: str = ""


def read_class_folders(names: Sequence[str], labels: str = "auto") -> ClassFolders:
    """Return what the names of class folders mean.

    "auto": all must be of one kind. Names like n01440764 are looked up among ImageNet-1k's 1,000 classes, so
    that a part of the folders keeps the labels of the whole. Numbers are the labels themselves, with or
    without leading zeros. Other names are counted from 0 in sorted order.
    "sorted": whatever they look like, they are counted as torchvision's ``ImageFolder`` does.

    Raises:
        DataError: the names are of several kinds, or splits; a wnid is not in ImageNet-1k; two folders mean
            the same index, or an index is too large.
    """
    if all(name.lower() in _SPLITS for name in names):
        raise DataError(
            f"expected class folders or a labels.csv, found only {some(names)}; point --data at the folder "
            "whose subfolders are the classes, or add a labels.csv"
        )
    if labels == "sorted":
        hint = "labels=sorted was asked for; without it, class folders are read by their names"
        return _by_sorted_name(names, "class folders counted by sorted name, as asked for", hint)
    kinds = {kind: [name for name in names if _kind(name) == kind] for kind in ("wnids", "indices", "names")}
    found = {kind: members for kind, members in kinds.items() if members}
    if len(found) > 1:
        examples = ", ".join(f"{kind} ({some(members)})" for kind, members in found.items())
        raise DataError(
            f"expected class folders of one kind, found {examples}; rename or remove some, "
            f"or {_sorted(names)}"
        )
    if kinds["wnids"]:
        return _by_wnid(names)
    if kinds["indices"]:
        return _by_index(names)
    return _by_sorted_name(names, "class folders named by name")


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few of ``names``, for a message."""
    return ", ".join(shown(name) for name in names[:most]) + (", ..." if len(names) > most else "")


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
            f"{some(strangers)}; remove them, or name all folders by index, or {_sorted(names)}"
        )
    note = f"class folders named by wnid: {len(names)} of ImageNet-1k's {len(index)} classes"
    labels = {name: index[name] for name in names}
    return ClassFolders(labels, len(index), imagenet_classes.class_names(), (note,), _hint(names, labels))


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
    labels = {name: label for label, name in folder_of.items()}
    notes = [f"class folders named by index: the {len(names)} numbers are the labels"]
    in_text_order = sorted(names)
    if sorted(folder_of) == list(range(len(names))) and any(
        labels[name] != place for place, name in enumerate(in_text_order)
    ):
        # The numbers could be either: what another program's list of classes says is not known here.
        first = next(name for place, name in enumerate(in_text_order) if labels[name] != place)
        notes.append(
            f"torchvision's ImageFolder would sort them as text ({first} as class "
            f"{in_text_order.index(first)}); for a model trained with it, {_sorted(names)}"
        )
    return ClassFolders(labels, None, None, tuple(notes), _hint(names, labels))


def _by_sorted_name(names: Sequence[str], how: str, hint: str = "") -> ClassFolders:
    ordered = tuple(sorted(names))
    note = f"{how}: labels count the {len(ordered)} sorted names from 0"
    labels = {name: label for label, name in enumerate(ordered)}
    return ClassFolders(labels, len(ordered), ordered, (note,), hint)


def _sorted(names: Sequence[str]) -> str:
    return (
        "open the data set with `dataset_options` labels=sorted, which counts the "
        f"{len(names)} folders from 0 in sorted order"
    )


def _hint(names: Sequence[str], labels: Mapping[str, int]) -> str:
    """Return what to do where the model was trained on these folders alone, counted by sorted name."""
    counted = {name: place for place, name in enumerate(sorted(names))}
    return "" if counted == labels else f"for a model trained on these folders alone, {_sorted(names)}"
