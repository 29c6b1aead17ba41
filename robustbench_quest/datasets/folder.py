"""Images in a folder: one subfolder per class, or a ``labels.csv``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import DataError, OptionError, unknown
from ..files import shown
from .base import Dataset, file_fingerprint
from .class_folders import read_class_folders, some
from .contents import Contents
from .decode import decode, read_content
from .labels_csv import FILE, IMAGES, find_images, read_labels
from .listing import ENDINGS, Listing, list_images

LABELS = ("auto", "sorted")


class Folder(Dataset):
    """A folder of images; ids are paths relative to it, sorted. No image is opened until it is read.

    Class folders are named by ImageNet wnid, by index, or by any name (``read_class_folders``); images may
    lie deeper in them. Or a ``labels.csv`` beside the images, or beside ``images/``, has the columns filename
    and label, and target_label if there are targets; ids are then the file names as listed.

    Args:
        root: the folder.
        labels: what class folders mean: "auto", by their names; or "sorted", counted in sorted order as
            torchvision's ``ImageFolder`` does.

    Raises:
        OptionError: no such ``labels``, or they are in a labels.csv.
        DataError: there is nothing usable at ``root``; see ``list_images``, ``read_class_folders``,
            ``read_labels`` and ``find_images`` for what can be wrong.
    """

    name = "folder"
    version = 2

    contents: Contents

    def __init__(self, root: str | os.PathLike[str], *, labels: str = "auto") -> None:
        if labels not in LABELS:
            raise OptionError(unknown("value of labels", str(labels), LABELS))
        self.root = Path(root)
        listing = list_images(self.root)
        if FILE not in listing.others:
            self._use_class_folders(listing, labels)
        elif labels == "auto":
            self._use_csv(listing)
        else:
            raise OptionError(
                f"labels={labels} is for class folders, but {shown(self.root / FILE)} says which label each "
                "image has; leave labels out, or remove the file"
            )
        self.contents = Contents(self.root, self._paths)
        self.notes += _left_out(listing)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image at ``index`` of the listing: (H, W, 3) uint8, RGB; see ``decode`` for errors.

        Raises:
            DataError: also where the file is no longer the one that the last fingerprint is of.
        """
        path = self.root / self._paths[index]
        content = read_content(path, shown(path))
        self.contents.check(index, content)
        return decode(content, shown(path))

    def fingerprint(self) -> str:
        """Return the sha256 over the sorted (relative path, sha256 of the bytes, label), as they are now."""
        return file_fingerprint(self.image_ids, self.contents.digests(), self.labels)

    def _use_class_folders(self, listing: Listing, labels: str) -> None:
        if not any(listing.folders.values()):
            raise DataError(_no_images(listing))
        classes = read_class_folders(list(listing.folders), labels)
        labelled = sorted(
            (image, classes.labels[folder]) for folder, images in listing.folders.items() for image in images
        )
        self.image_ids = tuple(image for image, _ in labelled)
        self._paths: Sequence[str] = self.image_ids
        self.labels = np.array([label for _, label in labelled], dtype=np.int64)
        self.num_classes, self.class_names = classes.num_classes, classes.class_names
        self.notes, self.label_hint = classes.notes, classes.hint
        empty = [folder for folder, images in listing.folders.items() if not images]
        if empty:
            self.notes += (f"class folders without images: {len(empty)} ({some(empty)})",)
        if listing.loose:
            self.notes += (f"images outside the class folders, left out: {len(listing.loose)}",)

    def _use_csv(self, listing: Listing) -> None:
        rows = read_labels(self.root / FILE)
        listed_in = {row.filename.partition("/")[0] for row in rows}
        rivals = [
            folder
            for folder, images in listing.folders.items()
            if images and folder not in {IMAGES, *listed_in}
        ]
        if rivals:
            raise DataError(
                f"{shown(self.root)}: expected a {FILE} or class folders, found both ({some(rivals)}); "
                f"remove {FILE} to use the folders, or the folders to use {FILE}"
            )
        self._paths = find_images(rows, self.root)
        self.image_ids = tuple(row.filename for row in rows)
        self.labels = np.array([row.label for row in rows], dtype=np.int64)
        self.notes = (f"{FILE}: {len(rows)} images; labels are used as they are",)
        targets = [row.target_label for row in rows if row.target_label is not None]
        if len(targets) == len(rows):
            self.target_labels = np.array(targets, dtype=np.int64)
        elif targets:
            self.notes += (f"target labels, not used: only {len(targets)} of {len(rows)} images have one",)
        images = {*listing.loose, *(image for images in listing.folders.values() for image in images)}
        unlisted = images.difference(self._paths)
        if unlisted:
            self.notes += (f"images that {FILE} does not list, left out: {len(unlisted)}",)


def _left_out(listing: Listing) -> tuple[str, ...]:
    others = [file for file in listing.others if file != FILE]
    notes = []
    if others:
        notes.append(f"files that are not images, left out: {len(others)} ({some(others)})")
    if listing.system:
        notes.append(f"system folders and files, left out: {len(listing.system)} ({some(listing.system)})")
    if listing.hidden:
        notes.append(f"hidden files and folders, left out: {listing.hidden}")
    return tuple(notes)


def _no_images(listing: Listing) -> str:
    found = [f"folders without images: {len(listing.folders)}"] if listing.folders else []
    if listing.loose:
        found.append(f"images outside of folders: {len(listing.loose)}")
    if listing.others:
        found.append(f"files of other kinds: {len(listing.others)} ({some(listing.others)})")
    if listing.system:
        found.append(f"system folders and files: {len(listing.system)} ({some(listing.system)})")
    return (
        f"no images in class folders in {shown(listing.root)}: expected one folder per class with images "
        f"({' '.join(ENDINGS)}), or a {FILE}; found {', '.join(found) or 'nothing'}"
    )
