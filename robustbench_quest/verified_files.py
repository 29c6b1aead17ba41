"""Files that are written whole and prove themselves when they are read. Imports no torch.

A file is written under a temporary name in its own folder, synced, and renamed, so it is absent or whole. It
holds the sha256 of its own content: JSON as its entry "sha256", over the canonical form of the other entries;
Parquet in its footer, over the bytes of the file with that sha256 written as zeros. A file that does not fit
its sha256 is damaged, and nothing of it is believed. The digest lies inside, so that two processes that write
the same file at once cannot leave the one's file with the other's digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import StoreError
from .records import Records
from .types import canonical

Note = Callable[[str], None]
"""Is told, in one line, of something that was put right or left aside."""

_FOOTER = b"rbq"
_DIGEST = "sha256"
_PLACE = b'"sha256":"'  # in canonical JSON, before the digest
_BLANK = "0" * 64


class Damaged(StoreError):
    """A file of the store that cannot be believed, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} {reason}; run the command again to compute it anew")


def silent(note: str) -> None:
    """Take note of nothing: a ``Note``."""


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a mapping as JSON that states its own sha256."""
    write_atomically(path, canonical({**contents, _DIGEST: _sha256(canonical(contents))}))


def read_json(path: Path) -> dict[str, Any]:
    """Return what ``write_json`` wrote.

    Raises:
        Damaged: the file is absent, or is not what was written.
    """
    try:
        contents = json.loads(_bytes(path))
        stated = contents.pop(_DIGEST)
        fits = stated == _sha256(canonical(contents))
    except KeyError:
        raise Damaged(
            path, f"cannot be read (it states no {_DIGEST}: damaged, or of an older version)"
        ) from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(path, f"cannot be read ({_line(error)})") from error
    if not fits or not isinstance(contents, dict):
        raise Damaged(path, f"cannot be read (its content does not fit its {_DIGEST})")
    return contents


def write_rows(path: Path, records: Records, facts: Mapping[str, Any]) -> None:
    """Write records as Parquet; the footer holds ``facts``, which say what the file is, and its sha256."""
    sink = pa.BufferOutputStream()
    described = records.replace_schema_metadata({_FOOTER: canonical({**facts, _DIGEST: _BLANK})})
    pq.write_table(described, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    place = data.rindex(_PLACE) + len(_PLACE)
    write_atomically(path, data[:place] + _sha256(data).encode() + data[place + len(_BLANK) :])


def read_rows(path: Path, schema: pa.Schema, facts: Mapping[str, Any]) -> Records:
    """Return what ``write_rows`` wrote with these ``facts``.

    Nothing but intact bytes is parsed: what a Parquet reader makes of damaged ones is not defined.

    Raises:
        Damaged: the file is absent, is not what was written, or is that of other facts or another schema.
    """
    data = _bytes(path)
    place = data.rfind(_PLACE) + len(_PLACE)
    stated = data[place : place + len(_BLANK)]
    if stated != _sha256(data[:place] + _BLANK.encode() + data[place + len(_BLANK) :]).encode():
        raise Damaged(path, f"cannot be read (its {len(data)} bytes do not fit their {_DIGEST})")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        footer = json.loads((file.metadata.metadata or {}).get(_FOOTER, b"{}"))
        # Threads that Arrow starts may still run when the program ends, which then aborts.
        records = file.read(use_threads=False).select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Damaged(path, f"cannot be read ({_line(error)})") from error
    if footer != {**facts, _DIGEST: stated.decode()}:
        raise Damaged(path, "belongs to another cell or range")
    return records


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either absent or whole, whatever happens meanwhile.

    Raises:
        StoreError: the folder cannot be written to.
    """
    temporary = path.with_name(
        f".tmp-{path.name}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if path.is_dir():
            raise StoreError(f"{path} is a folder where a file belongs; move it away") from error
        raise StoreError(
            f"cannot write {path}: {error.strerror}; free space, or choose another --out"
        ) from error


def _bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a folder; or a pipe, which would never end
            raise Damaged(path, "is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
