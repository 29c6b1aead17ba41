"""What a file claims, compared with its size before it is read: a small file must not fill the memory."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError

# Each is ten to a hundred times what the largest published checkpoints need.
MOST_DIRECTORY = 1 << 24  # bytes of a zip archive's list of members
MOST_HEADER = 1 << 24  # bytes of the header of safetensors
MOST_METADATA = 1 << 18  # characters of what a file declares
MOST_STEPS = 1_000_000  # of a pickle
MOST_IN_TUPLE = 1_000_000  # values, counted as often as they are reached
MOST_NESTED = 100  # tuples in tuples
MOST_HOLLOW = 1 << 30  # elements of expanded tensors, which take no space in the file

# opcode -> (whether it takes all down to a mark, how many it takes beside, how many it leaves)
_EFFECTS = {
    op.name: (
        pickletools.markobject in op.stack_before,
        len(
            [kind for kind in op.stack_before if kind not in (pickletools.markobject, pickletools.stackslice)]
        ),
        len(op.stack_after),
    )
    for op in pickletools.opcodes
}

# The one function that torch's reader allows and that takes a length.
_ALLOCATES = ("builtins bytearray", "__builtin__ bytearray")


def check_directory(path: Path) -> None:
    """Refuse a zip archive whose list of members would take minutes to read.

    Raises:
        CheckpointError: with the size of the list.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16) - 98))  # the end records, and the longest comment
        tail = file.read()
    # The size in the end record, and in that of zip64, which counts where there is one.
    places = ((b"PK\x05\x06", 12, 4), (b"PK\x06\x06", 40, 8))
    ends = [(tail.rfind(magic) + offset, width) for magic, offset, width in places if magic in tail]
    size = max((int.from_bytes(tail[at : at + width], "little") for at, width in ends), default=0)
    if size > MOST_DIRECTORY:
        raise CheckpointError(
            f"{path} lists its members in {size:,} bytes, expected at most {MOST_DIRECTORY:,}; save the "
            "state dict alone"
        )


def check_members(path: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse compressed members, which torch.save does not write, and more bytes than the file has.

    torch maps tensors from the file as they lie there, so it would take compressed bytes for numbers.

    Raises:
        CheckpointError: with what to do.
    """
    packed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise CheckpointError(
            f"{path} was zipped again with compression (its member {packed.filename!r}); unpack it and zip "
            "the folder without, as in `zip -0 -r vit.pt FOLDER`, or save it again with torch.save"
        )
    claimed, size = sum(member.file_size for member in members), path.stat().st_size
    if claimed > size:
        raise CheckpointError(
            f"{path} is damaged: its members claim {claimed:,} bytes and it has {size:,}; copy it again"
        )


def check_pickle(path: Path, operations: Iterable[tuple[str, object]]) -> None:
    """Refuse a pickle of very many steps, and tuples so nested that their hash would take for ever.

    Tuples are followed because they can be keys; what else is in a pickle nobody walks through.

    Raises:
        CheckpointError: with what is too large.
    """
    stack: list[tuple[int, int]] = []  # of each value: how many values are in it, how deep
    outer: list[list[tuple[int, int]]] = []
    memo: dict[object, tuple[int, int]] = {}
    for step, (name, argument) in enumerate(operations):
        if name == "MARK":
            outer.append(stack)
            stack = []
        elif "GET" in name:
            stack.append(memo[argument])
        elif name == "MEMOIZE" or "PUT" in name:
            memo[len(memo) if argument is None else argument] = stack[-1]
        else:
            marked, count, left = _EFFECTS[name]
            taken: list[tuple[int, int]] = []
            if marked:
                taken, stack = stack, outer.pop()
            taken += [stack.pop() for _ in range(count)]
            made = (1, 0)
            if name.startswith("TUPLE"):
                made = (1 + sum(size for size, _ in taken), 1 + max((deep for _, deep in taken), default=0))
            stack += [made] * left
            if name == "GLOBAL" and argument in _ALLOCATES:
                raise CheckpointError(
                    f"{path} asks for a bytearray while it is read, which could fill the memory; nothing was "
                    "run. Save the state dict alone"
                )
            if step > MOST_STEPS or made[0] > MOST_IN_TUPLE or made[1] > MOST_NESTED:
                raise CheckpointError(
                    f"{path} holds values that are too many or too deeply nested to be read (at step "
                    f"{step:,} of its pickle); save the state dict alone"
                )


def check_hollow(path: Path, state: Mapping[str, Tensor], name: str) -> None:
    """Refuse tensors that claim far more elements than the file holds.

    Raises:
        CheckpointError: with the largest of them.
    """
    size = path.stat().st_size
    hollow = {
        key: tensor.numel()
        for key, tensor in state.items()
        if tensor.layout is torch.strided and not tensor.is_meta  # others are refused where they are used
        if tensor.numel() * tensor.element_size() > min(size, tensor.untyped_storage().nbytes())
    }
    if sum(hollow.values()) > MOST_HOLLOW:
        largest = max(hollow, key=lambda key: hollow[key])
        raise CheckpointError(
            f"{path}: {largest} of {name} claims {hollow[largest]:,} elements, which the file does not hold; "
            "save the model again"
        )
