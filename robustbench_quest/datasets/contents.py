"""What the files of a data set hold, known as git knows it: by stat, and read where the stat differs.

A file whose size, times and inode are as they were when it was read is not read again. A file that was
written less than ``RACY`` seconds before it was read could be written again within the same tick of the
clock; its stat proves nothing, and it is read again the next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..files import shown
from ..types import Note
from .content_cache import DIGEST, STAT, Digests, keep, recall

RACY = 2_000_000_000  # ns; the coarsest clock of a file system in use
MANY = 1000  # files; reading fewer is not worth a note
_THREADS = 8  # hide a network's latency
_AT_ONCE = 256  # files between two looks at the clock; an interrupt waits for them
_SAVE_EVERY = 60.0  # seconds of reading that a kill may lose
_POSITIVE = 2**63 - 1
_ATTEMPTS = 3


class Contents:
    """The sha256 of every file of a data set.

    Args:
        root: the folder.
        paths: relative to it, N of them.

    Raises:
        DataError: a file is missing or is no regular file.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root = root
        self._paths = paths
        _stats(root, paths)
        # No stat is negative: these agree with no file.
        self._stats = np.full((len(paths), STAT), -1, dtype=np.int64)
        self._digests = np.zeros((len(paths), DIGEST), dtype=np.uint8)
        self._settled = np.zeros(len(paths), dtype=bool)
        self._folder: Path | None = None
        self._recalled = self._unsaved = False
        self._note: Note | None = None

    def remember_in(self, folder: Path, note: Note | None = None) -> None:
        """Keep digests in ``folder`` from now on, and use those that are there.

        Args:
            folder: made when there is something to keep; one that cannot be written to is done without.
            note: told, in a sentence, that many files must be read.
        """
        self._folder, self._note = folder, note
        self._recalled = False

    def digests(self) -> list[str]:
        """Return the sha256 of every file as it is now, 64 hexadecimal digits each, in order.

        Raises:
            DataError: a file is missing, cannot be read, or keeps changing.
        """
        stats = _stats(self._root, self._paths)
        unknown = ~self._settled | (stats != self._stats).any(axis=1)
        if unknown.any() and self._folder is not None and not self._recalled:
            unknown = self._recall(self._folder, stats, unknown)
        try:
            self._read(np.flatnonzero(unknown))
        finally:
            self._save()
        digits = self._digests.tobytes().hex()
        return [digits[start : start + 2 * DIGEST] for start in range(0, len(digits), 2 * DIGEST)]

    def check(self, index: int, content: bytes) -> None:
        """Refuse bytes that are not those of the last ``digests``; before it, everything is right.

        Raises:
            DataError: the file changed.
        """
        taken = self._stats[index, 0] >= 0
        if taken and hashlib.sha256(content).digest() != self._digests[index].tobytes():
            raise DataError(
                f"{shown(self._root / self._paths[index])} changed while the data set was being evaluated; "
                "run again, with the files left alone"
            )

    def __getstate__(self) -> dict[str, Any]:
        # What listens to notes cannot go to another process.
        return {**self.__dict__, "_note": None}

    def _recall(
        self, folder: Path, stats: npt.NDArray[np.int64], unknown: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Take over what was kept; return which files are still unknown."""
        digests, known = recall(folder, self._where(), self._paths, stats)
        known &= unknown
        self._stats[known], self._digests[known], self._settled[known] = stats[known], digests[known], True
        self._recalled = True
        return unknown & ~known

    def _read(self, unknown: npt.NDArray[np.int64]) -> None:
        if self._note is not None and len(unknown) >= MANY:
            self._note(f"reading {len(unknown):,} images once, to know their content")
        saved = time.monotonic()
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(0, len(unknown), _AT_ONCE):
                indices: list[int] = unknown[start : start + _AT_ONCE].tolist()
                paths = [self._root / self._paths[index] for index in indices]
                for index, (key, digest, settled) in zip(indices, pool.map(_digest, paths), strict=True):
                    self._stats[index] = key
                    self._digests[index] = np.frombuffer(digest, dtype=np.uint8)
                    self._settled[index] = settled
                    self._unsaved |= settled
                if time.monotonic() > saved + _SAVE_EVERY:
                    self._save()
                    saved = time.monotonic()

    def _save(self) -> None:
        if self._folder is None or not self._unsaved:
            return
        rows: list[int] = np.flatnonzero(self._settled).tolist()
        found = Digests([self._paths[row] for row in rows], self._stats[rows], self._digests[rows])
        with contextlib.suppress(OSError):  # without it, files are read once more the next time
            keep(self._folder, self._where(), found)
        self._unsaved = False

    def _where(self) -> Path:
        return self._root.resolve()


def _stats(root: Path, paths: Sequence[str]) -> npt.NDArray[np.int64]:
    keys = np.empty((len(paths), STAT), dtype=np.int64)
    for row, path in enumerate(paths):
        full = f"{root}/{path}"
        try:
            status = os.stat(full)
        except OSError as error:
            raise DataError(
                f"{shown(full)}: cannot be read: {error.strerror}; is it a broken link?"
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{shown(full)}: expected an image, found no regular file; remove it")
        keys[row] = _key(status)
    return keys


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    size, modified, changed, inode = (
        value & _POSITIVE for value in (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    )
    return size, modified, changed, inode


def _digest(path: Path) -> tuple[tuple[int, int, int, int], bytes, bool]:
    """Return a file's stat, its sha256, and whether the stat will prove that it is still the same."""
    try:
        for _ in range(_ATTEMPTS):
            with path.open("rb", buffering=0) as file:
                now = time.time_ns()
                before = os.fstat(file.fileno())
                sha256 = hashlib.sha256()
                while chunk := file.read(2**20):
                    sha256.update(chunk)
                if _key(os.fstat(file.fileno())) == _key(before):
                    latest = max(before.st_mtime_ns, before.st_ctime_ns)
                    return _key(before), sha256.digest(), latest < now - RACY
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    raise DataError(f"{shown(path)}: is being written to; run again when it is complete")
