"""The result store: Parquet blocks under a content-addressed cell id.

    <root>/cells/<id[:2]>/<id>/cell.json                 what the cell is; its identity hashes to the id
                               block-00000.parquet ...   records of one block; the footer names cell and range
                               block-00000.json ...      side file: versions, device, batch size, time, host
                               block-00000.stage-0-...   the block's records after a stage of its attack,
                                                         until the block is written
                               block-00000.images.npz    kept images, if any were asked for
                               error.json                the last failure, with its traceback
                               DONE.json                 last: counts, and a digest of all records

Which blocks are missing follows from the names alone, so there are no locks: two processes that compute the
same block write the same rows, and either file may stay. Every file but the images states its own sha256
(``verified_files``); one that does not fit it is damaged, is named, and counts as missing. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .errors import StoreError
from .stored_cell import StoredCell
from .types import Cell
from .verified_files import Note


class Store:
    """A folder of cells.

    Args:
        root: the folder; it is made by ``make``, or when the first block is written.

    Raises:
        StoreError: there is something else under that name, or no such name can be.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        try:
            # Not Path.exists: of names that cannot be, some Pythons say that they are not there.
            os.lstat(self.root)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            name, reason = _shortened(self.root), _reason(error)
            raise StoreError(f"the store {name} cannot be used: {reason}; give another folder") from error
        if not self.root.exists():
            target = os.readlink(self.root)
            raise StoreError(f"the store {self.root} is a link to {target}, which is not there; make it")
        if not self.root.is_dir():
            raise StoreError(f"the store {self.root} is a file; give a folder with --out")

    def make(self) -> None:
        """Make the folder if it is not there.

        Raises:
            StoreError: it cannot be made.
        """
        try:
            (self.root / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror
            raise StoreError(f"cannot make the store {self.root}: {reason}; choose another --out") from error

    @property
    def contents(self) -> Path:
        """Where it is remembered what the files of data sets hold."""
        return self.root / "contents"

    def cell(self, cell: Cell) -> StoredCell:
        """Return the cell's place in the store; nothing is written."""
        return StoredCell(self.root / "cells" / cell.id[:2] / cell.id, cell)

    def cells(self, note: Note) -> Iterator[StoredCell]:
        """Yield every cell of the store, in the order of ids, from what the store holds alone.

        Args:
            note: is told of each folder that holds no cell that can be read.

        Raises:
            StoreError: the store cannot be listed.
        """
        for folder in _folders(self.root / "cells"):
            try:
                paths = _folders(folder)
            except StoreError as error:
                note(str(error))
                continue
            for path in paths:
                try:
                    stored = StoredCell.found(path)
                except StoreError as error:
                    note(str(error))
                    continue
                yield stored


def _folders(path: Path) -> list[Path]:
    """Return what a folder of the store holds, by name, but for hidden files; nothing where it is absent."""
    try:
        return sorted(path / name for name in os.listdir(path) if not name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be listed: {error.strerror}") from error


def _shortened(path: Path) -> str:
    text = str(path).encode("unicode_escape").decode()
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
