"""Images are read once, however many cells ask for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from robustbench_quest.datasets.base import Dataset
from robustbench_quest.datasets.window import Windows
from robustbench_quest.errors import DataError
from robustbench_quest.types import Preprocessing

ONE_PIXEL = Preprocessing(1, 0)


class Counting(Dataset):
    """Images whose value is their index, and which of them were read."""

    name = "counting"

    def __init__(self, count: int = 20, broken: int | None = None) -> None:
        self.image_ids = tuple(f"image-{index:02d}" for index in range(count))
        self.labels = np.zeros(count, dtype=np.int64)
        self.broken = broken
        self.reads: list[int] = []

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        self.reads.append(index)
        if index == self.broken:
            raise DataError(f"{self.image_ids[index]} is broken")
        return np.full((1, 1, 3), index, dtype=np.uint8)

    def fingerprint(self) -> str:
        return "0" * 64


def values(windows: Windows, block: range) -> list[int]:
    return [int(image.max()) for image in windows.window(block).images]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_read_once_in_the_data_sets_order(workers: int) -> None:
    data = Counting()
    with Windows(data, ONE_PIXEL, range(20), batch_size=3, workers=workers) as windows:
        assert values(windows, range(8)) == data.order[:8].tolist()
        for start in (0, 4):  # another cell, with smaller blocks
            assert values(windows, range(start, start + 4)) == data.order[start : start + 4].tolist()
        windows.forget_before(8)
        assert values(windows, range(8, 20)) == data.order[8:].tolist()
    if not workers:
        assert sorted(data.reads) == list(range(20))


def test_only_what_will_be_asked_for_is_read() -> None:
    data = Counting()
    with Windows(data, ONE_PIXEL, [*range(4, 8), *range(16, 20)], batch_size=4, workers=0) as windows:
        assert values(windows, range(4, 8)) == data.order[4:8].tolist()
        assert values(windows, range(16, 20)) == data.order[16:].tolist()
    assert sorted(data.reads) == sorted(data.order[[*range(4, 8), *range(16, 20)]].tolist())


def test_one_broken_image_does_not_cost_the_others() -> None:
    data = Counting()
    data.broken = int(data.order[5])
    with Windows(data, ONE_PIXEL, range(20), batch_size=2, workers=0) as windows:
        with pytest.raises(DataError, match="is broken"):
            windows.window(range(4, 8))
        assert values(windows, range(8, 12)) == data.order[8:12].tolist()
        with pytest.raises(DataError, match="is broken"):  # whoever asks again hears it again
            windows.window(range(8))


def test_crcs_are_those_of_the_images() -> None:
    data = Counting()
    with Windows(data, ONE_PIXEL, range(20), batch_size=20, workers=0) as windows:
        whole, part = windows.window(range(20)), windows.window(range(6, 9))
    assert whole.crcs[6:9].tolist() == part.crcs.tolist()
    assert len(set(whole.crcs.tolist())) == 20
