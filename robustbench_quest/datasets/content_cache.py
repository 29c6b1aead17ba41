"""Digests of a folder's files, kept from one run to the next beside the results.

    <folder>/<root>/<digest>.npz

``root`` is hashed from the absolute path of the data. A file is never changed: it is named by the sha256 of
its own bytes, so processes that write at the same time cannot spoil each other's, and a damaged one is
noticed and ignored. An entry counts only for a file of the same path and the same stat. A few files are kept,
for machines that see other data under one path.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..files import TEMPORARY, write_atomically

STAT = 4  # numbers that a file's stat is compared by
DIGEST = 32  # bytes of a sha256
_FORMAT = "rbq contents 1"
_NAME = re.compile(r"([0-9a-f]{64})\.npz")
_KEPT = 3
_ABANDONED = 3600  # seconds; no write takes that long


@dataclass(frozen=True, eq=False)
class Digests:
    """What is known of some files.

    Args:
        paths: N paths relative to the root.
        stats: (N, 4) int64, the stat of each when it was read.
        digests: (N, 32) uint8, the sha256 of each file's bytes.
    """

    paths: Sequence[str]
    stats: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint8]


def recall(
    folder: Path, root: Path, paths: Sequence[str], stats: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return the digests (N, 32) of files of these paths and stats, and which of them are known (N,)."""
    digests = np.zeros((len(paths), DIGEST), dtype=np.uint8)
    known = np.zeros(len(paths), dtype=bool)
    for saved in _saved(_place(folder, root), root):
        row_of = {path: row for row, path in enumerate(saved.paths)}
        rows = np.array([row_of.get(path, -1) for path in paths], dtype=np.int64)
        agree = ~known & (rows >= 0)
        agree[agree] = (saved.stats[rows[agree]] == stats[agree]).all(axis=1)
        digests[agree] = saved.digests[rows[agree]]
        known |= agree
        if known.all():
            break
    return digests, known


def keep(folder: Path, root: Path, found: Digests) -> None:
    """Keep digests for the next run, and remove old files of the same root.

    Raises:
        OSError: the folder cannot be written to.
    """
    buffer = io.BytesIO()
    np.savez(
        buffer,
        format=_bytes(_FORMAT),
        root=_bytes(str(root)),
        paths=_bytes("\0".join(found.paths)),
        stats=found.stats,
        digests=found.digests,
    )
    content = buffer.getvalue()
    place = _place(folder, root)
    write_atomically(place / f"{hashlib.sha256(content).hexdigest()}.npz", content)
    with contextlib.suppress(OSError):
        _tidy(place)


def _place(folder: Path, root: Path) -> Path:
    return folder / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def _saved(place: Path, root: Path) -> Iterator[Digests]:
    """Yield what the files of a root hold, the newest first, leaving out what is damaged or foreign."""
    for path in _newest_first(place):
        # A file may be removed by another process, or hold anything; it is only a cache.
        with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
            content = path.read_bytes()
            if path.name == f"{hashlib.sha256(content).hexdigest()}.npz":
                yield _parsed(content, root)


def _parsed(content: bytes, root: Path) -> Digests:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        if _text(arrays["format"]) != _FORMAT or _text(arrays["root"]) != str(root):
            raise ValueError("another format or root")
        found = Digests(_text(arrays["paths"]).split("\0"), arrays["stats"], arrays["digests"])
    count = len(found.paths)
    if found.stats.shape != (count, STAT) or found.digests.shape != (count, DIGEST):
        raise ValueError("columns of different lengths")
    return found


def _newest_first(place: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(place) if _NAME.fullmatch(entry.name)]
        entries.sort(key=lambda entry: (entry.stat().st_mtime_ns, entry.name), reverse=True)
    except OSError:
        return []
    return [Path(entry.path) for entry in entries]


def _tidy(place: Path) -> None:
    for path in _newest_first(place)[_KEPT:]:
        path.unlink(missing_ok=True)
    for path in place.glob(f"{TEMPORARY}*"):
        if path.stat().st_mtime < time.time() - _ABANDONED:
            path.unlink(missing_ok=True)


def _bytes(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)


def _text(array: npt.NDArray[np.uint8]) -> str:
    return array.tobytes().decode("utf-8", "surrogateescape")
