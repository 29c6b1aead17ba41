"""The fixed order of a data set's images, the same for every seed.

Within a class of n images, sorted by the hash of their ids, the r-th stands at (r + u) / n between 0 and 1,
where u in [0, 1) is hashed from the class; all images are sorted by that position. Up to any position t a
class has n * t images, give or take less than one. So every prefix is spread over the classes in proportion
to their sizes (for classes of equal size, no two are ever more than one image apart), and, u being as good
as random, no image is likelier than another to be in a prefix: without it, all classes of a single image
would stand at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..rng import digest


def fixed_order(image_ids: Sequence[str], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the permutation (N,) int64 that puts a listing into the fixed order.

    The order depends on the ids and labels and not on how they are listed.

    Args:
        image_ids: one id per image, unique.
        labels: (N,) int64.

    Raises:
        ValueError: an id occurs twice, or ids and labels differ in number.
    """
    if len(set(image_ids)) != len(image_ids):
        raise ValueError("image ids must be unique: draws and results are keyed by them")
    hashes = [digest("dataset-order", image_id) for image_id in image_ids]
    members: dict[int, list[int]] = {}
    for index, label in zip(range(len(image_ids)), labels.tolist(), strict=True):
        members.setdefault(label, []).append(index)
    positions = [0.0] * len(image_ids)
    for label, indices in members.items():
        indices.sort(key=hashes.__getitem__)
        offset = (int.from_bytes(digest("dataset-class", label)[:8], "big") >> 11) / 2**53
        for rank, index in enumerate(indices):
            positions[index] = (rank + offset) / len(indices)
    order = sorted(range(len(image_ids)), key=lambda index: (positions[index], hashes[index]))
    return np.array(order, dtype=np.int64)
