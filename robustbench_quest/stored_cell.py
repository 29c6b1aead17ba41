"""One cell in the store: its blocks, what is missing or damaged of them, and what else its folder holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from .cell_json import cell_from_json, cell_to_json, check_version
from .errors import StoreError
from .records import Records, column, digest
from .tasks import schema_of, task_of
from .types import Cell, canonical
from .verified_files import Damaged, Note, read_json, read_rows, silent, write_json, write_rows

CELL, DONE, ERROR = "cell.json", "DONE.json", "error.json"
_OF_A_BLOCK = re.compile(r"block-(\d{5,})\.(parquet|json|images\.npz|stage-\d+-.*\.parquet)")

# Facts of a side file that can change the last bits of a number.
ENVIRONMENT = ("robustbench_quest", "libraries", "device", "device_name", "threads")


@dataclass(frozen=True)
class Environments:
    """In how many environments (device and library versions) the blocks of a cell were computed.

    Args:
        known: different ones.
        lost: blocks of which it is not known, since their side files are lost or damaged.
        blocks: of the cell.
    """

    known: int
    lost: int
    blocks: int


class StoredCell:
    """One cell in the store.

    Args:
        path: its folder.
        cell: what it is.
    """

    def __init__(self, path: Path, cell: Cell) -> None:
        self.path = path
        self.cell = cell

    @classmethod
    def found(cls, path: Path) -> StoredCell:
        """Return the cell whose folder is ``path``, from its cell.json alone.

        Raises:
            StoreError: there is no cell.json, or it is damaged, of another version or of another cell.
        """
        if not path.is_dir():
            raise StoreError(f"{path} is no folder of a cell; move it away")
        facts = path / CELL
        cell = cell_from_json(read_json(facts), facts)
        if (path.parent.name, path.name) != (cell.id[:2], cell.id):
            raise StoreError(
                f"{facts} states the cell {cell.id[:12]}, but its folder is {path.parent.name}/{path.name}"
            )
        return cls(path, cell)

    def names(self) -> dict[str, Any]:
        """Return what people read of the cell, from cell.json; see ``names.names_of``.

        Raises:
            StoreError: there is no cell.json, or it is damaged.
        """
        names: dict[str, Any] = read_json(self.path / CELL)["names"]
        return names

    def missing(self) -> list[int]:
        """Return the numbers of the blocks that have no file yet; one folder listing."""
        present = set(self._listing())
        return [
            number for number in range(len(self.cell.blocks)) if self.block_path(number).name not in present
        ]

    def damaged(self) -> list[tuple[int, Path, str]]:
        """Return number, file and reason of every block that is there and cannot be believed; reads all."""
        found = []
        absent = set(self.missing())
        for number in range(len(self.cell.blocks)):
            try:
                if number not in absent:
                    self.read_block(number)
            except Damaged as damage:
                found.append((number, damage.path, damage.reason))
        return found

    def foreign(self) -> list[str]:
        """Return the names in the cell's folder that are not the store's; hidden files are left out."""
        return sorted(
            name
            for name in self._listing()
            if not name.startswith(".") and name not in (CELL, DONE, ERROR) and not self._is_planned(name)
        )

    def write_cell(self, names: Mapping[str, Any], note: Note = silent) -> None:
        """Write cell.json where it is not there or is damaged; ``names`` are those of the last command.

        Args:
            names: what people read, and changes no number.
            note: is told of damage.

        Raises:
            StoreError: it is that of another cell or version, or cannot be written.
        """
        facts = self.path / CELL
        wanted = json.loads(canonical(cell_to_json(self.cell, names)))
        if not os.path.lexists(facts):
            write_json(facts, wanted)
            return
        try:
            found = read_json(facts)
        except Damaged as damage:
            note(f"{damage.path} {damage.reason}; it is written again")
            write_json(facts, wanted)
            return
        check_version(found.get("identity"), self.path)
        if found["identity"] != wanted["identity"]:
            raise StoreError(f"{facts} states another cell; delete {self.path} and run again")
        if found != wanted:
            try:
                write_json(facts, wanted)
            except StoreError as error:  # the numbers can be read all the same
                note(f"{error}; its names stay those of an earlier command")

    def write_block(self, number: int, records: Records, side: Mapping[str, Any]) -> None:
        """Write one block, after its side file."""
        expected = self.cell.blocks[number]
        if column(records, "index").tolist() != list(expected):
            raise ValueError(
                f"block {number} must hold the images {expected.start}-{expected.stop - 1} in order"
            )
        write_json(self._side_path(number), side)
        write_rows(self.block_path(number), records, self._facts(number))
        for path in self.path.glob(f"block-{number:05d}.stage-*.parquet"):
            with contextlib.suppress(OSError):
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
            Damaged: the file is not what was written, or belongs to another cell or range.
        """
        return self.read_rows(self.block_path(number), number, self._facts(number))

    def read_rows(self, path: Path, number: int, facts: Mapping[str, Any]) -> Records:
        """Return a block's rows from a file that was written with ``facts``.

        Raises:
            Damaged: the file is not what was written, or belongs to another cell or range.
        """
        records = read_rows(path, schema_of(self.cell.dataset, self.cell.threat), facts)
        if column(records, "index").tolist() != list(self.cell.blocks[number]):
            raise Damaged(path, "belongs to another cell or range")
        return records

    def read(self) -> Records:
        """Return all records of a complete cell, in order.

        Raises:
            StoreError: blocks are missing or damaged.
        """
        missing = self.missing()
        if missing:
            raise StoreError(
                f"cell {self.cell.id[:12]}: {len(missing)} of {len(self.cell.blocks)} blocks are missing"
            )
        return pa.concat_tables([self.read_block(number) for number in range(len(self.cell.blocks))])

    def finish(self, note: Note = silent) -> Records:
        """Write DONE.json once every block is there; return all records.

        The blocks, which were verified one by one, are right where DONE.json disagrees: it is written again.
        """
        records = self.read()
        done = self.path / DONE
        wanted = json.loads(canonical(self._done(records)))
        found = None
        if os.path.lexists(done):
            try:
                found, reason = read_json(done), "does not state what its blocks hold"
            except Damaged as damage:
                reason = damage.reason
            if found != wanted:
                note(f"{done} {reason}; every block was verified, and it is written again")
        if found != wanted:
            write_json(done, wanted)
        with contextlib.suppress(OSError):
            (self.path / ERROR).unlink(missing_ok=True)
        return records

    def environments(self) -> Environments:
        """Return in how many environments the blocks that are there were computed."""
        found, lost, absent = set(), 0, set(self.missing())
        for number in set(range(len(self.cell.blocks))) - absent:
            try:
                facts = read_json(self._side_path(number))
                found.add(canonical({key: facts.get(key) for key in ENVIRONMENT}))
            except Damaged:
                lost += 1
        return Environments(len(found), lost, len(self.cell.blocks))

    def write_error(self, error: Mapping[str, Any], names: Mapping[str, Any]) -> None:
        """Keep what went wrong, so that a table shows the cell as failed and not as absent.

        Args:
            error: "error", one line, and "traceback".
            names: as for ``write_cell``: the cell may have failed before it was written.
        """
        self.write_cell(names)
        write_json(self.path / ERROR, error)

    def error(self) -> str:
        """Return the last failure in one line, "" where there is none."""
        path = self.path / ERROR
        if not os.path.lexists(path):
            return ""
        try:
            return str(read_json(path).get("error", "")) or "it failed without a reason"
        except Damaged as damage:
            return f"it failed, but {damage.path} {damage.reason}"

    def _listing(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.path} cannot be listed: {error.strerror}; move it away") from error

    def _is_planned(self, name: str) -> bool:
        """Return whether a name is that of a file of one of the cell's blocks."""
        match = _OF_A_BLOCK.fullmatch(name)
        if match is None or int(match[1]) >= len(self.cell.blocks):
            return False
        return name.startswith(f"block-{int(match[1]):05d}.")

    def _side_path(self, number: int) -> Path:
        return self.path / f"block-{number:05d}.json"

    def _facts(self, number: int) -> dict[str, Any]:
        block = self.cell.blocks[number]
        return {"cell": self.cell.id, "block": number, "start": block.start, "stop": block.stop}

    def _done(self, records: Records) -> dict[str, Any]:
        return {
            "cell": self.cell.id,
            "blocks": len(self.cell.blocks),
            "n": records.num_rows,
            **task_of(self.cell.dataset).summary(records),
            "digest": digest(records),
        }


class StoredStages:
    """The records of one block as they are after each stage of an attack; gone once the block is written."""

    def __init__(self, stored: StoredCell, number: int) -> None:
        self._stored = stored
        self._number = number

    def read(self, stage: int, name: str) -> Records | None:
        """Return the block's records after a stage, or None where there are none that can be used."""
        path = self._path(stage, name)
        try:
            return self._stored.read_rows(path, self._number, self._facts(stage, name))
        except Damaged:  # or absent: the stage runs again
            return None

    def write(self, stage: int, name: str, records: Records) -> None:
        """Keep the block's records as they are after a stage."""
        write_rows(self._path(stage, name), records, self._facts(stage, name))

    def _path(self, stage: int, name: str) -> Path:
        return self._stored.path / f"block-{self._number:05d}.stage-{stage}-{name}.parquet"

    def _facts(self, stage: int, name: str) -> dict[str, Any]:
        return {"cell": self._stored.cell.id, "block": self._number, "stage": stage, "name": name}
