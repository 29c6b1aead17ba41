"""Batches: the same bytes from any number of workers, in order, leaving nothing behind."""

from __future__ import annotations

import binascii
import io
import itertools
import multiprocessing
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robustbench_quest.datasets import Dataset, loader
from robustbench_quest.datasets.digits import Digits
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.loader import Batch, load_batches
from robustbench_quest.datasets.transform import resize_and_crop, to_unit
from robustbench_quest.errors import DataError, OptionError
from robustbench_quest.rng import generator
from robustbench_quest.types import Preprocessing

AS_IS = Preprocessing(32, 0)
SMALL = Preprocessing(24, 28)


class Probe(Dataset):
    """Images of one pixel whose value is what ``measure`` returns in the process that reads them."""

    name = "probe"

    def __init__(self, size: int, measure) -> None:
        self.image_ids = tuple(str(index) for index in range(size))
        self.labels = np.arange(size, dtype=np.int64)
        self.measure = measure

    def read(self, index: int) -> np.ndarray:
        return np.full((1, 1, 3), self.measure(index), dtype=np.uint8)

    def fingerprint(self) -> str:
        return "probe"


ONE_PIXEL = Preprocessing(1, 0)


def workers_alive() -> int:
    return len(multiprocessing.active_children())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draws = generator("loader-test")
    for index in range(12):
        path = tmp_path / str(index % 3) / f"{index:02d}.png"
        path.parent.mkdir(exist_ok=True)
        shape = (*draws.randint(20, 60, 2), 3)
        Image.fromarray(draws.randint(0, 256, shape).astype(np.uint8)).save(path)
    return tmp_path


def whole(batches: list[Batch]) -> tuple[np.ndarray, ...]:
    return (
        np.concatenate([batch.indices for batch in batches]),
        np.concatenate([batch.images for batch in batches]),
        np.concatenate([batch.input_crc for batch in batches]),
    )


def test_batches_hold_what_was_asked_for(folder):
    dataset = Folder(folder)
    wanted = [5, 3, 11, 0, 7, 3, 2]
    batches = list(load_batches(dataset, SMALL, wanted, batch_size=3, workers=0))
    assert [len(batch.images) for batch in batches] == [3, 3, 1]
    indices, images, crcs = whole(batches)
    assert indices.tolist() == wanted
    assert (images.dtype, crcs.dtype) == (np.uint8, np.uint32)
    np.testing.assert_array_equal(images, np.stack([resize_and_crop(dataset.read(i), SMALL) for i in wanted]))
    assert crcs.tolist() == [binascii.crc32(to_unit(image).tobytes()) for image in images]


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_nothing(folder, workers):
    dataset = Folder(folder)
    # Work that uses the threads of this process first: a forked worker must not wait for them.
    torch.ones(600, 600) @ torch.ones(600, 600)
    alone, together = (
        list(load_batches(dataset, SMALL, dataset.order, batch_size=2, workers=count))
        for count in (0, workers)
    )
    for ours, theirs in zip(whole(alone), whole(together), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert workers_alive() == 0


def test_other_systems_start_method_works(monkeypatch):
    monkeypatch.setattr(loader, "START_METHOD", "spawn")
    dataset = Digits()
    alone, together = (
        list(load_batches(dataset, AS_IS, range(6), batch_size=4, workers=count)) for count in (0, 1)
    )
    np.testing.assert_array_equal(whole(alone)[1], whole(together)[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_state_is_left_alone(workers):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    list(load_batches(Digits(), AS_IS, range(20), batch_size=8, workers=workers))
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_a_consumer_that_stops_leaves_no_process():
    batches = load_batches(Digits(), AS_IS, range(200), batch_size=8, workers=2)
    next(batches)
    assert workers_alive() == 2
    batches.close()
    assert workers_alive() == 0


def test_a_loop_that_breaks_leaves_no_process():
    for _ in load_batches(Digits(), AS_IS, range(200), batch_size=8, workers=2):
        assert workers_alive() == 2
        break
    assert workers_alive() == 0


def truncate(path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(generator("cut").randint(0, 256, (40, 40, 3)).astype(np.uint8)).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue()[:-2000])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_arrives_as_it_is(folder, workers):
    bad = folder / "1" / "04.png"
    truncate(bad)
    dataset = Folder(folder)
    order = [0, 1, 2, 3, dataset.image_ids.index("1/04.png"), 11]
    batches = load_batches(dataset, SMALL, order, batch_size=2, workers=workers)
    assert [*next(batches).indices, *next(batches).indices] == [0, 1, 2, 3]
    with pytest.raises(DataError) as caught:
        next(batches)
    # While the error and its traceback are still held:
    assert workers_alive() == 0
    assert str(caught.value).startswith(f"{bad}: cannot be decoded, it is damaged or truncated: ")
    assert "\n" not in str(caught.value)
    assert type(caught.value) is DataError


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_does_not_fit_is_named(folder, workers):
    dataset = Folder(folder)
    with pytest.raises(DataError, match=r"^0/00\.png: expected 32x32 pixels, as the model's"):
        list(load_batches(dataset, AS_IS, [0], batch_size=2, workers=workers))


def test_a_fault_of_a_reader_is_not_taken_for_bad_data():
    def broken(_: int) -> int:
        raise ZeroDivisionError("a fault")

    with pytest.raises(ZeroDivisionError, match="a fault"):
        list(load_batches(Probe(2, broken), ONE_PIXEL, range(2), batch_size=1, workers=1))
    assert workers_alive() == 0


def test_alone_nothing_is_read_ahead():
    read = []
    dataset = Probe(12, lambda index: read.append(index) or 0)
    next(load_batches(dataset, ONE_PIXEL, range(12), batch_size=3, workers=0))
    assert read == [0, 1, 2]


def test_workers_read_ahead_one_batch_each(tmp_path):
    def leave_a_trace(index: int) -> int:
        (tmp_path / str(index)).touch()
        return 0

    batches = load_batches(Probe(60, leave_a_trace), ONE_PIXEL, range(60), batch_size=3, workers=2)
    for _ in itertools.islice(batches, 2):
        pass
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == (2 + 2) * 3


def test_a_worker_uses_one_thread():
    (batch,) = load_batches(
        Probe(1, lambda _: torch.get_num_threads()), ONE_PIXEL, [0], batch_size=1, workers=1
    )
    assert batch.images.max() == 1


def test_more_workers_than_batches_are_not_started():
    batches = load_batches(Digits(), AS_IS, range(8), batch_size=8, workers=4)
    next(batches)
    assert workers_alive() <= 1


def test_no_indices_give_no_batches():
    assert list(load_batches(Digits(), AS_IS, [], batch_size=8, workers=2)) == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batch_size": 0}, OptionError, "expected a batch size of at least 1, found 0; change --batch-size"),
        ({"workers": -1}, OptionError, "expected 0 or more workers, found -1; change --workers"),
        ({"indices": [0, 500]}, IndexError, "expected indices from 0 to 499, found 0 to 500"),
        ({"indices": [-1]}, IndexError, "expected indices from 0 to 499, found -1 to -1"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(change, error, message):
    arguments = {"indices": [0], "batch_size": 1, "workers": 0} | change
    with pytest.raises(error) as caught:
        load_batches(Digits(), AS_IS, **arguments)
    assert str(caught.value) == message
