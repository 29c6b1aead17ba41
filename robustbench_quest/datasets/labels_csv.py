"""A ``labels.csv`` says which label each image has: columns filename and label, perhaps target_label."""

from __future__ import annotations

import csv
import os
import posixpath
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..files import shown
from .class_folders import MAX_LABEL, some

FILE = "labels.csv"
IMAGES = "images"
_DIGITS = 20  # Python refuses to read numbers of thousands
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Row:
    """One image: its path as listed, relative to the folder or to its images/, and its labels."""

    filename: str
    label: int
    target_label: int | None


def read_labels(path: Path) -> list[Row]:
    """Return the rows of a labels.csv, sorted by file name. Columns other than the three are ignored.

    Raises:
        DataError: the file is not UTF-8 or not CSV, has no such columns or no rows; a file name is empty or
            leads out of the folder; a label is not an integer of 0 or more.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise DataError(f"{shown(path)}: expected a file, found something else; rename it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            _require_columns(columns, path)
            rows = [_row(fields, f"{path.name}, line {reader.line_num}") for fields in reader]
    except UnicodeDecodeError:
        raise DataError(f"{shown(path)}: expected UTF-8 text, found other bytes; save it as UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{shown(path)}: expected comma-separated values: {error}") from None
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    if not rows:
        raise DataError(f"{shown(path)}: expected one row per image, found only the header")
    return sorted(rows, key=lambda row: row.filename)


def find_images(rows: Sequence[Row], root: Path) -> list[str]:
    """Return where each row's image is, relative to ``root``: beside the labels.csv, or in images/.

    Raises:
        DataError: a listed image is missing, or listed twice.
    """
    paths = []
    missing = []
    seen = set()
    for row in rows:
        candidates = (row.filename, f"{IMAGES}/{row.filename}")
        path = next((name for name in candidates if _is_file(root / name)), None)
        if path is None:
            missing.append(row.filename)
            continue
        if path in seen:
            raise DataError(
                f"{shown(root / FILE)}: expected each image once, found {shown(row.filename)} twice; remove "
                "one row"
            )
        seen.add(path)
        paths.append(path)
    if missing:
        raise DataError(
            f"{shown(root / FILE)}: {len(missing)} of {len(rows)} listed images are missing: "
            f"{some(missing)}; expected them in {shown(root)} or "
            f"{shown(root / IMAGES)}"
        )
    return paths


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # also names that no file system takes
        return False


def _require_columns(columns: Sequence[str], path: Path) -> None:
    if "filename" not in columns or "label" not in columns:
        found = ", ".join(columns) if columns else "an empty file"
        raise DataError(
            f"{shown(path)}: expected a header with the columns filename and label, found {found}"
        )
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise DataError(
            f"{shown(path)}: expected each column once, found {', '.join(twice)} twice; remove one"
        )


def _row(fields: dict[str, str | None], where: str) -> Row:
    filename = (fields["filename"] or "").strip()
    normal = posixpath.normpath(filename)
    if not filename or normal.startswith(("/", "../")) or normal == "..":
        raise DataError(
            f"{where}: expected the path of an image inside the folder, found {shown(filename)!r}"
        )
    target = (fields.get("target_label") or "").strip()
    return Row(
        normal,
        _label(fields["label"], "label", where),
        _label(target, "target_label", where) if target else None,
    )


def _label(text: str | None, column: str, where: str) -> int:
    text = (text or "").strip()
    found = f"found {shown(text)!r}"
    if not _INTEGER.fullmatch(text):
        raise DataError(
            f"{where}: expected an integer in column {column}, {found}; write the index of the class"
        )
    if len(text) > _DIGITS or int(text) > MAX_LABEL:
        raise DataError(f"{where}: expected a {column} of at most {MAX_LABEL}, found {shown(text)}")
    if int(text) < 0:
        raise DataError(
            f"{where}: expected a {column} of 0 or more, found {shown(text)}; labels are class indices"
        )
    return int(text)
