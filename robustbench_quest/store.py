"""The result store: Parquet blocks under a content-addressed cell id.

    <root>/cells/<id[:2]>/<id>/cell.json                 what the cell is; its identity hashes to the id
                               block-00000.parquet ...   records of one block; the footer names cell and range
                               block-00000.json ...      side file: versions, device, batch size, time, host
                               block-00000.stage-0-...   the block's records after a stage of its attack,
                                                         until the block is written
                               block-00000.images.npz    kept images, if any were asked for
                               error.json                the last failure, with its traceback
                               DONE.json                 last: counts, and a digest of all records

Every file is written under a temporary name in its own folder, synced, and renamed. Which blocks are missing
follows from the names alone, so there are no locks: two processes that compute the same block write the same
rows, and either file may stay. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import files
from .errors import StoreError
from .records import Records, column, digest
from .tasks import schema_of, task_of
from .types import SCHEMA_VERSION, Cell, canonical

_BLOCK = re.compile(r"block-(\d{5,})\.parquet")
_FOOTER = b"rbq"

# Facts of a side file that can change the last bits of a number.
ENVIRONMENT = ("robustbench_quest", "libraries", "device", "device_name", "threads")


class Store:
    """A folder of cells.

    Args:
        root: the folder; it is made by ``make``, or when the first block is written.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
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

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield the contents of every cell.json, in the order of cell ids."""
        for path in sorted(self.root.glob("cells/??/*/cell.json")):
            yield _read_json(path)


class StoredCell:
    """One cell in the store."""

    def __init__(self, path: Path, cell: Cell) -> None:
        self.path = path
        self.cell = cell

    def missing(self) -> list[int]:
        """Return the numbers of the blocks that have no file yet; one folder listing."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            names = []
        present = {int(match[1]) for name in names if (match := _BLOCK.fullmatch(name))}
        return [number for number in range(len(self.cell.blocks)) if number not in present]

    def write_cell(self, names: Mapping[str, Any]) -> None:
        """Write cell.json if it is not there; ``names`` is what people read, and changes no number."""
        facts = self.path / "cell.json"
        contents = {"id": self.cell.id, "identity": self.cell.identity(), "names": dict(names)}
        if facts.exists():
            self._check(_read_json(facts), json.loads(canonical(contents)))
            return
        write_atomically(facts, canonical(contents))

    def write_block(self, number: int, records: Records, side: Mapping[str, Any]) -> None:
        """Write one block, after its side file."""
        expected = self.cell.blocks[number]
        if column(records, "index").tolist() != list(expected):
            raise ValueError(
                f"block {number} must hold the images {expected.start}-{expected.stop - 1} in order"
            )
        write_atomically(self.path / f"block-{number:05d}.json", canonical(side))
        write_rows(self.block_path(number), records, self._footer(number))
        for path in self.path.glob(f"block-{number:05d}.stage-*.parquet"):
            path.unlink(missing_ok=True)

    def block_path(self, number: int) -> Path:
        """Return where a block's records are, or will be."""
        return self.path / f"block-{number:05d}.parquet"

    def stages(self, number: int) -> StoredStages:
        """Return where the stages of a block's attack are kept until the block is written."""
        return StoredStages(self, number)

    def read_block(self, number: int) -> Records:
        """Return one block's records.

        Raises:
            StoreError: the file is torn, or belongs to another cell or range.
        """
        return self.read_rows(self.block_path(number), number, self._footer(number))

    def read_rows(self, path: Path, number: int, expected_footer: Mapping[str, Any]) -> Records:
        """Return a block's rows from a file whose footer is ``expected_footer``.

        Raises:
            StoreError: the file is torn, or belongs to another cell or range.
        """
        expected = schema_of(self.cell.dataset, self.cell.threat)
        try:
            table = pq.ParquetFile(path).read()
            footer = json.loads((table.schema.metadata or {}).get(_FOOTER, b"{}"))
            records = table.select(expected.names).cast(expected)
        except (pa.ArrowInvalid, OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise StoreError(
                f"{path} cannot be read ({reason}); delete it and run the command again"
            ) from error
        block = self.cell.blocks[number]
        if footer != expected_footer or column(records, "index").tolist() != list(block):
            raise StoreError(f"{path} belongs to another cell or range; delete it and run the command again")
        return records

    def read(self) -> Records:
        """Return all records of a complete cell, in order.

        Raises:
            StoreError: blocks are missing or damaged, or DONE.json states other records.
        """
        missing = self.missing()
        if missing:
            raise StoreError(
                f"cell {self.cell.id[:12]}: {len(missing)} of {len(self.cell.blocks)} blocks are missing"
            )
        records = pa.concat_tables([self.read_block(number) for number in range(len(self.cell.blocks))])
        done = self.path / "DONE.json"
        if done.exists() and _read_json(done) != self._done(records):
            raise StoreError(f"{done} does not state what its blocks hold; delete {self.path} and run again")
        return records

    def finish(self) -> Records:
        """Write DONE.json once every block is there; return all records."""
        records = self.read()
        done = self.path / "DONE.json"
        if not done.exists():
            write_atomically(done, canonical(self._done(records)))
        (self.path / "error.json").unlink(missing_ok=True)
        return records

    def _done(self, records: Records) -> dict[str, Any]:
        return {
            "cell": self.cell.id,
            "blocks": len(self.cell.blocks),
            "n": records.num_rows,
            **task_of(self.cell.dataset).summary(records),
            "digest": digest(records),
        }

    def environments(self) -> int:
        """Return how many different environments the blocks were computed in: device and library versions."""
        found = set()
        for number in range(len(self.cell.blocks)):
            side = self.path / f"block-{number:05d}.json"
            if side.exists():
                facts = _read_json(side)
                found.add(canonical({key: facts.get(key) for key in ENVIRONMENT}))
        return len(found)

    def write_error(self, error: Mapping[str, Any]) -> None:
        """Keep what went wrong, so that a table shows the cell as failed and not as absent."""
        write_atomically(self.path / "error.json", canonical(error))

    def _footer(self, number: int) -> dict[str, Any]:
        block = self.cell.blocks[number]
        return {"cell": self.cell.id, "block": number, "start": block.start, "stop": block.stop}

    def _check(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        identity = found.get("identity")
        version = identity.get("schema") if isinstance(identity, dict) else None
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this program {SCHEMA_VERSION}; use another --out"
            )
        if identity != expected["identity"]:
            raise StoreError(f"{self.path}/cell.json states another cell; delete {self.path} and run again")


class StoredStages:
    """The records of one block as they are after each stage of an attack; gone once the block is written."""

    def __init__(self, stored: StoredCell, number: int) -> None:
        self._stored = stored
        self._number = number

    def read(self, stage: int, name: str) -> Records | None:
        """Return the block's records after a stage, or None where there are none that can be used."""
        path = self._path(stage, name)
        try:
            return self._stored.read_rows(path, self._number, self._footer(stage, name))
        except StoreError:  # absent or damaged: the stage runs again
            return None

    def write(self, stage: int, name: str, records: Records) -> None:
        """Keep the block's records as they are after a stage."""
        write_rows(self._path(stage, name), records, self._footer(stage, name))

    def _path(self, stage: int, name: str) -> Path:
        return self._stored.path / f"block-{self._number:05d}.stage-{stage}-{name}.parquet"

    def _footer(self, stage: int, name: str) -> dict[str, Any]:
        return {"cell": self._stored.cell.id, "block": self._number, "stage": stage, "name": name}


def write_rows(path: Path, records: Records, footer: Mapping[str, Any]) -> None:
    """Write records as Parquet, with what the file is in its footer."""
    sink = pa.BufferOutputStream()
    described = records.replace_schema_metadata({_FOOTER: canonical(footer)})
    pq.write_table(described, sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either absent or whole, whatever happens meanwhile.

    Raises:
        StoreError: the folder cannot be written to.
    """
    try:
        files.write_atomically(path, data)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; free space, or choose another --out"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_bytes())
        if not isinstance(contents, dict):
            raise ValueError("no mapping")
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); delete {path.parent} and run again") from error
    return contents
