"""What a block was computed with: side-file facts that explain a number and are no part of it."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import time
from typing import Any

import torch

from ._version import __version__
from .device import device_name

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "Pillow", "pyarrow")


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, device, threads, host and time."""
    return {
        "robustbench_quest": __version__,
        "python": platform.python_version(),
        "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "host": socket.gethostname(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
