"""Records: one row per image, the only primary result. Every number elsewhere is computed from them.

==================  ==========  ==========================================================================
column              type        meaning
==================  ==========  ==========================================================================
index               int32       position in the data set's fixed order
image_id            string      the data set's name for the image
input_crc           uint32      CRC-32 of the clean pixels, float32 CHW
==================  ==========  ==========================================================================

What else a record holds follows from the data set's task (``tasks``) and the kind of threat (``threats``).
No times and no host names: the same work gives the same bytes. Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Records: TypeAlias = pa.Table
"""A table of records. An alias: pyarrow has no type information."""

Columns: TypeAlias = tuple[tuple[str, Any], ...]
"""Names and pyarrow types, in order."""

COMMON: Columns = (("index", pa.int32()), ("image_id", pa.string()), ("input_crc", pa.uint32()))


def make_records(columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]], schema: pa.Schema) -> Records:
    """Return records from one sequence per column; a missing or extra column is a ValueError."""
    if set(columns) != set(schema.names):
        raise ValueError(f"columns {sorted(set(columns) ^ set(schema.names))} are missing or extra")
    arrays = [pa.array(_plain(columns[field.name]), type=field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def column(records: Records, name: str) -> npt.NDArray[Any]:
    """Return one column as a NumPy array; a list column gives shape (n, k); nulls in it are a ValueError."""
    values = records[name]
    if values.null_count:
        raise ValueError(f"column {name} holds nulls")
    if pa.types.is_list(values.type):
        flat = values.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat).reshape(records.num_rows, -1)
    return np.asarray(values.to_numpy())


def columns_of(records: Records) -> dict[str, npt.NDArray[Any]]:
    """Return every column as an array that can be written to; nulls are None in an array of objects."""
    return {
        name: np.array(records[name].to_pylist(), dtype=object)
        if records[name].null_count
        else np.array(column(records, name))
        for name in records.column_names
    }


def digest(records: Records) -> str:
    """Return a sha256 of the rows' values; how they are stored and library versions do not matter."""
    running = hashlib.sha256()
    for field in records.schema:
        values = records[field.name].combine_chunks()
        # Parquet renames the element field of a list type, so the element's type stands for the list's.
        element = field.type.value_type if pa.types.is_list(field.type) else field.type
        running.update(f"{field.name}:{element}:{len(values)};".encode())
        running.update(np.asarray(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_string(field.type):
            for text in values.to_pylist():
                running.update(f"{len(text.encode())}:{text};".encode())
        elif pa.types.is_list(field.type):
            running.update(np.diff(values.offsets.to_numpy()).astype("<i4").tobytes())
            running.update(_little_endian(values.flatten()))
        else:
            running.update(_little_endian(values.fill_null(False) if values.null_count else values))
    return running.hexdigest()


def _little_endian(values: pa.Array) -> bytes:
    array = np.asarray(values.to_numpy(zero_copy_only=False))
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def _plain(values: Sequence[Any] | npt.NDArray[Any]) -> Any:
    return list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values
