"""Read a checkpoint file safely, and say in one line what is wrong with one that cannot be read."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError, brief, brief_path
from ..identity import file_sha256
from .bounds import MOST_HEADER, MOST_METADATA
from .containers import find_containers
from .unpickle import read_pickle

SUFFIXES = (".pt", ".pth", ".safetensors", ".bin", ".tar")

# First bytes -> what such a file is.
_OTHER_KINDS = {
    b"version https://git-lfs": "a git-LFS pointer, not the weights; run `git lfs pull`",
    b"\x93NUMPY": "a numpy array",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "gzip-compressed; decompress it first",
    b"BZh": "bzip2-compressed; decompress it first",
    b"\xfd7zXZ": "xz-compressed; decompress it first",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF document",
}
_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<!--")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# How pickles of protocol 0 begin, which have no magic number: a dict, a list, or a global.
_OLD_PICKLE = re.compile(rb"\([dl]p\d+\n|c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds. Tensors are on the host, and mapped from the file where it allows that.

    Args:
        path: the file.
        sha256: of the file's bytes.
        format: "torch.save (zip)", "torch.save (legacy)" or "safetensors".
        metadata: what the key "rbq" holds: the file's own declaration, or nothing.
        args: the training script's arguments, or nothing.
        containers: name -> state dict; "" for a file that is a state dict itself.
        entries: every top-level key that is not a tensor.
    """

    path: Path
    sha256: str
    format: str
    metadata: Mapping[str, Any]
    args: Mapping[str, Any]
    containers: Mapping[str, Mapping[str, Tensor]]
    entries: tuple[str, ...]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a ``.pt``, ``.pth`` or ``.safetensors`` file; its content, not its name, says which it is.

    Raises:
        CheckpointError: no such file, not a checkpoint, damaged, or one that needs code to be read.
    """
    if not str(path):
        raise CheckpointError("the path of the checkpoint is empty; give a .pt, .pth or .safetensors file")
    try:
        return _read(Path(path))
    except OSError as error:
        raise CheckpointError(f"{brief_path(path)} cannot be read: {error.strerror or error}") from error


def _read(path: Path) -> Checkpoint:
    if "\0" in str(path):
        raise CheckpointError(f"no such checkpoint: {brief_path(path)}; no path holds a NUL byte")
    kind = _kind(path)
    if kind == "safetensors":
        return _read_safetensors(path)
    loaded = read_pickle(path, zipped=kind == "zip")
    content = loaded if isinstance(loaded, dict) else {}
    return Checkpoint(
        path=path,
        sha256=file_sha256(path),
        format="torch.save (zip)" if kind == "zip" else "torch.save (legacy)",
        metadata=_metadata(path, content.get("rbq")),
        args=_arguments(content),
        containers=find_containers(path, loaded),
        entries=tuple(str(key) for key, value in content.items() if not isinstance(value, Tensor)),
    )


def _kind(path: Path) -> str:
    """Return "zip", "pickle" or "safetensors" from the file's first bytes."""
    if path.is_dir():
        inside = sorted(item.name for item in path.iterdir() if item.suffix in SUFFIXES)
        hint = (
            f"give one of the files in it: {', '.join(inside[:5])}"
            if inside
            else "it holds no checkpoint file"
        )
        raise CheckpointError(f"{path} is a directory, expected a checkpoint file; {hint}")
    try:
        found = path.stat()
    except FileNotFoundError:
        raise CheckpointError(f"no such checkpoint: {brief_path(path)}") from None
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, forever
        raise CheckpointError(f"{path} is a device, pipe or socket, expected a checkpoint file")
    with path.open("rb") as file:
        head = file.read(1024)
    if found.st_size == 0:
        raise CheckpointError(f"{path} is empty; copy or download it again")
    if head.startswith(b"PK"):
        return "zip"
    if head[0] == 0x80 and head[1:2] <= bytes([pickle.HIGHEST_PROTOCOL]):
        return "pickle"
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        _refuse_other_kinds(path, head)
        return "safetensors"
    _refuse_other_kinds(path, head)
    raise CheckpointError(
        f"{path} is not a checkpoint: expected a file of torch.save or safetensors; {_looks(head)}"
    )


def _refuse_other_kinds(path: Path, head: bytes) -> None:
    if head.removeprefix(_BYTE_ORDER_MARK).lstrip().lower().startswith(_PAGES):
        raise CheckpointError(f"{path} is an HTML page, saved in place of the checkpoint; download it again")
    for magic, what in _OTHER_KINDS.items():
        if head.startswith(magic):
            raise CheckpointError(f"{path} is {what}; expected a file of torch.save or safetensors")
    if _OLD_PICKLE.match(head):
        raise CheckpointError(
            f"{path} is a pickle of protocol 0, not a file of torch.save; nothing was run. Save the state "
            "dict with torch.save"
        )
    if head[257:262] == b"ustar":
        raise CheckpointError(
            f"{path} is a tar archive, or of PyTorch before 0.1.10; unpack it, or save it again"
        )


def _looks(head: bytes) -> str:
    if head.isascii() and head.strip(b"\x00") != b"":
        first = head.decode("ascii").strip().splitlines()[:1]
        return f"it is text and begins {first[0][:40]!r}" if first else "it is blank"
    return f"it begins with the bytes {head[:8].hex(' ')}"


def _read_safetensors(path: Path) -> Checkpoint:
    with path.open("rb") as begin:
        header = int.from_bytes(begin.read(8), "little")
    if MOST_HEADER < header <= path.stat().st_size:
        raise CheckpointError(
            f"{path} has a header of {header:,} bytes, expected at most {MOST_HEADER:,}; save the state dict "
            "alone, without large metadata"
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise CheckpointError(f"{path} is damaged or truncated: {reason}; copy it again") from error
    return Checkpoint(
        path=path,
        sha256=file_sha256(path),
        format="safetensors",
        metadata=_metadata(path, metadata.get("rbq")),
        args={},
        containers=find_containers(path, tensors),
        entries=(),
    )


def _metadata(path: Path, text: object) -> Mapping[str, Any]:
    if text is None:
        return {}
    if isinstance(text, str) and len(text) > MOST_METADATA:
        raise CheckpointError(
            f"{path}: its metadata 'rbq' has {len(text):,} characters, expected at most {MOST_METADATA:,}"
        )
    try:
        content = json.loads(text, object_pairs_hook=_unique) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its metadata 'rbq' is not usable JSON: {str(error)[:120]}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: its metadata 'rbq' must be a mapping; got {type(content).__name__}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of two equal keys the last would win silently."""
    content = dict(pairs)
    if len(content) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {brief(twice)} is there twice")
    return content


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    args = content.get("args")
    found = (
        dict(vars(args))
        if isinstance(args, argparse.Namespace)
        else dict(args)
        if isinstance(args, dict)
        else {}
    )
    # timm's training script also stores the architecture by itself.
    if isinstance(content.get("arch"), str):
        found.setdefault("model", content["arch"])
    return found
