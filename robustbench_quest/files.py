"""Writing files that are either absent or whole."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path

TEMPORARY = ".tmp-"


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
