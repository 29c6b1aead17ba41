"""What a module computes, as text and hashes: its structure and its weights; and the hash of a file."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .device import HOST

_PACKAGE = __name__.partition(".")[0]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def structure(module: nn.Module) -> str:
    """Return a text that differs where two modules of equal weights can differ in function.

    It holds the modules' representation and their plain attributes: numbers of heads, scales, pooling. A
    representation alone hides those.
    """
    lines = [_ADDRESS.sub("", repr(module))]
    for name, part in module.named_modules():
        plain = {key: text for key, value in vars(part).items() if (text := _plain(key, value))}
        lines.append(f"{name}: {type(part).__qualname__} {sorted(plain.items())}")
    return "\n".join(lines)


def weights_sha256(module: nn.Module) -> str:
    """Return the sha256 of every parameter and buffer (names, dtypes, shapes, bytes) and of ``structure``."""
    digest = hashlib.sha256(structure(module).encode())
    for name, tensor in sorted((*module.named_parameters(), *module.named_buffers())):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().to(HOST).contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _plain(key: str, value: object) -> str:
    """Return a text for a value that is the same in every process, or "" for one that has none."""
    if key == "training" or key.startswith("_"):
        return ""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ",".join(_plain("item", item) for item in value) + "]"
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__qualname__
    if isinstance(value, nn.Module):
        return ""
    if dataclasses.is_dataclass(value) or type(value).__module__.startswith(_PACKAGE):
        held = _fields(value)
        inner = sorted((name, text) for name, item in held.items() if (text := _plain(name, item)))
        return f"{type(value).__qualname__}{inner}"
    return ""


def _fields(value: Any) -> dict[str, object]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value))
