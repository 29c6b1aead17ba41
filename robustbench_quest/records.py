"""Records: one row per image, the only primary result. Every number elsewhere is computed from them.

==================  ==========  ==========================================================================
column              type        meaning
==================  ==========  ==========================================================================
index               int32       position in the data set's fixed order
image_id            string      the data set's name for the image
input_crc           uint32      CRC-32 of the clean pixels, float32 CHW
label               int32       true class
pred                list int32  the five likeliest classes (all, with fewer than five), likeliest first; where
                                logits tie, the true class comes last of the tied
prob                list float  their probabilities
nll                 float64     -log probability of the true class, in nats; infinite unless ``finite``
brier               float64     sum over classes of (probability - one-hot label)^2
margin              float64     logit of the true class minus the largest other logit
correct             bool        pred[0] is the label; false where ``finite`` is false
correct5            bool        the label is in pred; null with fewer than five classes
finite              bool        every logit is finite
==================  ==========  ==========================================================================

With an attack, in addition:

==================  ==========  ==========================================================================
clean_pred          int32       prediction for the clean image; -1 where its logits are not finite
linf, l2            float64     distance to the clean image, in pixels of [0, 1]
queries             int32       forward passes of this image that the attack made
loss_start          float64     cross-entropy of the clean image, for the label that the attack used
loss_end            float64     the same of the returned image
grad_zero           int32       gradients that were zero everywhere
grad_nonfinite      int32       gradients with a NaN or infinite entry
restart             int32       the restart that the image comes from
broken_by           string      "clean" (wrong before the attack), the attack's name, or "" (robust)
violation           bool        outside the eps ball or the range of pixels
==================  ==========  ==========================================================================

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

TOP = 5

_BASE = [
    ("index", pa.int32()),
    ("image_id", pa.string()),
    ("input_crc", pa.uint32()),
    ("label", pa.int32()),
    ("pred", pa.list_(pa.int32())),
    ("prob", pa.list_(pa.float32())),
    ("nll", pa.float64()),
    ("brier", pa.float64()),
    ("margin", pa.float64()),
    ("correct", pa.bool_()),
    ("correct5", pa.bool_()),
    ("finite", pa.bool_()),
]
_ATTACK = [
    ("clean_pred", pa.int32()),
    ("linf", pa.float64()),
    ("l2", pa.float64()),
    ("queries", pa.int32()),
    ("loss_start", pa.float64()),
    ("loss_end", pa.float64()),
    ("grad_zero", pa.int32()),
    ("grad_nonfinite", pa.int32()),
    ("restart", pa.int32()),
    ("broken_by", pa.string()),
    ("violation", pa.bool_()),
]


def schema(attacked: bool) -> pa.Schema:
    """Return the columns and types of the records of a clean or an attacked cell."""
    return pa.schema(_BASE + _ATTACK if attacked else _BASE)


def make_records(columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]], attacked: bool) -> Records:
    """Return records from one sequence per column; a missing or extra column is a ValueError."""
    expected = schema(attacked)
    if set(columns) != set(expected.names):
        raise ValueError(f"columns {sorted(set(columns) ^ set(expected.names))} are missing or extra")
    arrays = [pa.array(_plain(columns[field.name]), type=field.type) for field in expected]
    return pa.Table.from_arrays(arrays, schema=expected)


def column(records: Records, name: str) -> npt.NDArray[Any]:
    """Return one column as a NumPy array; a list column gives shape (n, k); nulls in it are a ValueError."""
    values = records[name]
    if values.null_count:
        raise ValueError(f"column {name} holds nulls")
    if pa.types.is_list(values.type):
        flat = values.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat).reshape(records.num_rows, -1)
    return np.asarray(values.to_numpy())


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
