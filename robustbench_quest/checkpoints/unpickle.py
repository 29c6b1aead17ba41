"""Read a file of ``torch.save`` without running any code that is in it, or say why it cannot be read.

``torch.load(weights_only=True)`` builds tensors and plain containers and refuses every other global. Training
scripts also store their arguments (``argparse.Namespace``) and metrics as numpy scalars: those two are
allowed, the scalars through functions of our own that make numbers and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import pickletools
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from ..device import HOST
from ..errors import CheckpointError
from .bounds import check_directory, check_members, check_pickle

NEWEST_PROTOCOL = 3  # of pickle, that torch's reader without code understands
NUMBER_KINDS = "biuf"  # numpy's codes for bool, signed, unsigned and floating


class _Refused(pickle.UnpicklingError):
    """What our stand-ins for numpy's functions do not make."""


def read_pickle(path: Path, *, zipped: bool) -> object:
    """Return what ``torch.save`` wrote, tensors on the host.

    Args:
        path: the file.
        zipped: whether it is a zip archive, the format since PyTorch 1.6; its tensors are mapped, not copied.

    Raises:
        CheckpointError: the file is damaged, or needs code to be read; the message names what.
    """
    if zipped:
        _check_archive(path)
    try:
        check_pickle(path, _operations(path, zipped))
    except CheckpointError:
        raise
    except Exception:  # damage, which reading will name
        pass
    try:
        with (
            contextlib.ExitStack() as stack,
            torch.serialization.safe_globals(_allowed()),
            warnings.catch_warnings(),
        ):
            # About old protocols and sparse tensors, which are refused by name.
            warnings.simplefilter("ignore")
            if path.suffix != ".safetensors":
                return torch.load(path, map_location=HOST, weights_only=True, mmap=zipped or None)
            # By that name torch would choose another reader; an open file has none, and cannot be mapped.
            file = stack.enter_context(path.open("rb"))
            return torch.load(file, map_location=HOST, weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise CheckpointError(_diagnosis(path, zipped, error)) from error


def _allowed() -> list[Any]:
    """Return the globals that a file may use beyond torch's own: (object, "module.name")."""
    numbers = {type(np.dtype(code)) for code in "?bhilqBHILQefd"}
    return [
        argparse.Namespace,
        (_number_type, "numpy.dtype"),
        (_number, "numpy.core.multiarray.scalar"),
        (_number, "numpy._core.multiarray.scalar"),
        # A dtype's byte order is set after it was made, which torch allows for listed classes only.
        *sorted(numbers, key=lambda kind: kind.__name__),
    ]


def _number_type(code: str, *_: object) -> np.dtype[Any]:
    """Stand in for ``numpy.dtype``: dtypes of single numbers only."""
    dtype = np.dtype(code)
    if dtype.kind not in NUMBER_KINDS:
        raise _Refused(f"numpy dtype {code!r} is not a number's")
    return dtype


def _number(dtype: np.dtype[Any], data: bytes) -> Any:
    """Stand in for numpy's ``scalar``, which for some dtypes returns any object it is given."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in NUMBER_KINDS or not isinstance(data, bytes):
        raise _Refused("a numpy scalar in the file is not a number")
    return np.frombuffer(data, dtype, count=1)[0]


def _check_archive(path: Path) -> None:
    """Refuse archives that torch.save did not write, and those whose bytes have changed since.

    torch checks no checksum: a flipped bit in a tensor would change the numbers and nothing else. Files saved
    with ``torch.serialization.set_crc32_options(False)`` hold zeros in place of checksums.
    """
    check_directory(path)
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is truncated: it begins as a zip archive and its end is missing; copy it again"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_other_archives(path, archive.namelist())
            check_members(path, archive.infolist())
            damaged = _damaged_member(archive)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged or truncated: {' '.join(str(error).split())[:120]}; copy it again"
        ) from error
    if damaged:
        raise CheckpointError(
            f"{path} is damaged: the checksum of its member {damaged!r} is wrong; copy it again"
        )


def _refuse_other_archives(path: Path, names: list[str]) -> None:
    if any(name.endswith("/constants.pkl") for name in names):
        raise CheckpointError(
            f"{path} is a TorchScript program, which is code; save the state dict of the Python model instead"
        )
    inside = _pickle_in(names)
    if not inside:
        kind = "a numpy .npz archive" if any(name.endswith(".npy") for name in names) else "a zip archive"
        raise CheckpointError(
            f"{path} is {kind}, not a file of torch.save; expected .pt, .pth or .safetensors"
        )
    folder, _, rest = inside.partition("/")
    outside = (
        [inside] if rest != "data.pkl" else [name for name in names if not name.startswith(f"{folder}/")]
    )
    if outside:
        raise CheckpointError(
            f"{path} was zipped again in another layout: it holds {outside[0]}, expected one folder with "
            "data.pkl in it; zip that folder alone, as in `zip -0 -r vit.pt FOLDER`"
        )


def _pickle_in(names: list[str]) -> str:
    return next((name for name in names if name.split("/")[-1] == "data.pkl"), "")


def _damaged_member(archive: zipfile.ZipFile) -> str:
    """Return the first member with a checksum that is not that of its bytes, or ""."""
    for member in archive.infolist():
        if not member.CRC:
            continue
        try:
            with archive.open(member) as stream:
                while stream.read(1 << 22):
                    pass
        except (zipfile.BadZipFile, zlib.error, EOFError):
            return member.filename
    return ""


def _diagnosis(path: Path, zipped: bool, error: Exception) -> str:
    """Return one line that names the cause: a foreign class, a whole model, or damage."""
    scan = _scan(path, zipped)
    foreign = [name for name in scan.names if not _known(name)]
    if foreign and isinstance(error, pickle.UnpicklingError):
        if {"_parameters", "_modules"} <= set(scan.strings):
            return (
                f"{path} holds a whole pickled model (class {foreign[0]}), which runs code when it is read; "
                "nothing was run. Save its state_dict instead: torch.save(model.state_dict(), ...)"
            )
        return (
            f"{path} asks for {foreign[0]} while it is read; nothing was run. Only tensors, plain values, "
            "argparse.Namespace and numpy numbers are read: save the state dict alone, and declare the "
            "variant in a sidecar"
        )
    if scan.protocol > NEWEST_PROTOCOL:
        return (
            f"{path} is written in pickle protocol {scan.protocol}, which cannot be read without running "
            f"code; save it with torch.save's default, protocol {torch.serialization.DEFAULT_PROTOCOL}"
        )
    # torch puts advice about weights_only around the cause.
    cause = error.__context__ if isinstance(error, pickle.UnpicklingError) and error.__context__ else error
    first = " ".join(str(cause).split())[:120] or type(cause).__name__
    if isinstance(cause, _Refused):
        return f"{path} is refused: {first}; nothing was run. Save the state dict alone"
    return f"{path} is damaged or truncated: {first}; copy it again"


def _known(name: str) -> bool:
    default: dict[str, object] = torch._weights_only_unpickler._get_allowed_globals()
    ours = {
        entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__name__}"
        for entry in _allowed()
    }
    # Storage classes are resolved by torch's persistent ids; legacy files also name them.
    return name in default or name in ours or (name.startswith("torch.") and name.endswith("Storage"))


class _Scan(NamedTuple):
    """The globals that a file's pickles name, in order, their strings, and the newest protocol."""

    names: list[str]
    strings: list[str]
    protocol: int


def _scan(path: Path, zipped: bool) -> _Scan:
    """Return what the file's pickles name, as far as they are whole. Nothing is unpickled."""
    names: list[str] = []
    strings: list[str] = []
    protocol = 0
    try:
        for operation, argument in _operations(path, zipped):
            if operation in ("GLOBAL", "INST"):
                names.append(str(argument).replace(" ", "."))
            elif operation == "STACK_GLOBAL":
                names.append(".".join(strings[-2:]))
            elif operation == "PROTO" and isinstance(argument, int):
                protocol = max(protocol, argument)
            elif isinstance(argument, str):
                strings.append(argument)
    except Exception:  # damaged: what was read up to here is what can be said
        return _Scan(names, strings, protocol)
    return _Scan(names, strings, protocol)


def _operations(path: Path, zipped: bool) -> Iterator[tuple[str, object]]:
    def walk(file: IO[bytes], pickles: int) -> Iterator[tuple[str, object]]:
        for _ in range(pickles):
            for operation, argument, _position in pickletools.genops(file):
                yield operation.name, argument

    if not zipped:
        with path.open("rb") as legacy:
            yield from walk(legacy, pickles=4)  # magic number, protocol, machine, object
        return
    with zipfile.ZipFile(path) as archive, archive.open(_pickle_in(archive.namelist())) as member:
        yield from walk(member, pickles=1)
