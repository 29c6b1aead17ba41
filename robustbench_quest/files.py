"""Writing files that are either absent or whole, and showing paths in one line."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path

TEMPORARY = ".tmp-"
_SHOWN = 240  # characters of a path


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path for a message: one line of printable text, and not thousands of characters.

    >>> shown("data/a\\nb.png")
    'data/a\\\\nb.png'
    """
    text = os.fspath(path)
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either absent or whole, whatever happens meanwhile; make its folder.

    Raises:
        OSError: the folder cannot be made or written to; nothing is left behind.
    """
    temporary = path.with_name(
        f"{TEMPORARY}{path.name}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
