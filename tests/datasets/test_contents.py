"""The content of files counts, is read once, and is never taken from a cache that could be wrong."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustbench_quest import files
from robustbench_quest.datasets import content_cache, contents, loader
from robustbench_quest.datasets.contents import Contents
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.loader import load_batches
from robustbench_quest.errors import DataError
from robustbench_quest.evaluation import evaluate
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.types import Preprocessing

AS_IS = Preprocessing(4, 0)


def bmp(value: int) -> bytes:
    """An image whose size in bytes does not depend on its pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(buffer, "BMP")
    return buffer.getvalue()


def make_set(root: Path, count: int = 4) -> Path:
    for index in range(count):
        path = root / str(index % 2) / f"{index}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bmp(index))
    return root


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old."""
    monkeypatch.setattr(contents, "RACY", -(10**15))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read for their digest, as they are read."""
    names: list[str] = []
    digest = contents._digest

    def counted(path: Path) -> object:
        names.append(path.name)
        return digest(path)

    monkeypatch.setattr(contents, "_digest", counted)
    return names


def fingerprint(root: Path, kept_in: Path | None = None) -> str:
    dataset = Folder(root)
    if kept_in is not None:
        dataset.remember_contents_in(kept_in)
    return dataset.spec.fingerprint


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


# What counts


def test_other_pixels_under_the_same_name_size_and_time_are_another_set(tmp_path: Path) -> None:
    image = make_set(tmp_path / "set") / "0" / "0.bmp"
    before, status = fingerprint(tmp_path / "set", tmp_path / "kept"), image.stat()
    image.write_bytes(bmp(77))
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert image.stat().st_size == status.st_size
    assert fingerprint(tmp_path / "set", tmp_path / "kept") != before


def test_a_copy_with_other_times_is_the_same_set(tmp_path: Path) -> None:
    here = make_set(tmp_path / "here")
    there = shutil.copytree(here, tmp_path / "there", copy_function=shutil.copyfile)
    for path in there.rglob("*.bmp"):
        os.utime(path, (1, 1))
    assert fingerprint(there, tmp_path / "kept") == fingerprint(here, tmp_path / "kept")


def test_a_change_is_noticed_within_one_process(tmp_path: Path) -> None:
    dataset = Folder(make_set(tmp_path))
    before = dataset.spec
    assert dataset.spec == before
    (tmp_path / "1" / "3.bmp").write_bytes(bmp(9))
    assert dataset.spec != before
    (tmp_path / "1" / "3.bmp").write_bytes(bmp(3))
    assert dataset.spec == before


def test_two_images_that_trade_places_are_noticed(tmp_path: Path, settled: None) -> None:
    root = make_set(tmp_path / "set")
    before = fingerprint(root, tmp_path / "kept")
    first, second = root / "0" / "0.bmp", root / "0" / "2.bmp"
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert fingerprint(root, tmp_path / "kept") != before


def test_a_link_that_leads_elsewhere_is_noticed(tmp_path: Path, settled: None) -> None:
    real, root = make_set(tmp_path / "real"), tmp_path / "set"
    (root / "0").mkdir(parents=True)
    link = root / "0" / "a.bmp"
    link.symlink_to(real / "0" / "0.bmp")
    dataset = Folder(root)
    before = dataset.spec
    link.unlink()
    link.symlink_to(real / "0" / "2.bmp")
    assert dataset.spec != before


def test_results_of_other_pixels_are_never_shown_nor_resumed(tmp_path: Path) -> None:
    root, store = make_set(tmp_path / "set"), str(tmp_path / "store")
    brightness = nn.Linear(3 * 4 * 4, 2)
    with torch.no_grad():
        brightness.weight.copy_(torch.stack([torch.ones(48), -torch.ones(48)]))
        brightness.bias.zero_()
    model = Classifier(nn.Sequential(nn.Flatten(), brightness), size=4, resize=0)

    def margins() -> list[float]:
        dataset = Folder(root)
        dataset.remember_contents_in(tmp_path / "store" / "contents")
        records = evaluate(model, dataset, store=store, block_size=2)
        return [abs(margin) for margin in records.column("margin").to_pylist()]

    before = margins()
    assert margins() == before
    cells = list((tmp_path / "store" / "cells").glob("*/*"))
    blocks = sorted(cells[0].glob("block-*.parquet"))
    blocks[1].unlink()  # as if killed half-way
    for path in root.rglob("*.bmp"):
        status = path.stat()
        path.write_bytes(bmp(200))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(set(margins())) == 1  # all images are alike now: no old block is among them
    assert min(margins()) > max(before)


# What is read


def test_each_file_is_read_once_and_then_only_where_it_changed(
    tmp_path: Path, settled: None, reads: list[str]
) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    first = fingerprint(root, folder)
    assert sorted(reads) == ["0.bmp", "1.bmp", "2.bmp", "3.bmp"]
    assert fingerprint(root, folder) == first
    assert len(reads) == 4
    (root / "0" / "2.bmp").write_bytes(bmp(50))
    (root / "1" / "5.bmp").write_bytes(bmp(5))
    assert fingerprint(root, folder) == fingerprint(root)  # the second reads all five
    assert sorted(reads[4:6]) == ["2.bmp", "5.bmp"]
    fingerprint(root, folder)
    assert len(reads) == 4 + 2 + 5


def test_what_one_process_read_before_it_was_given_a_folder_is_kept(
    tmp_path: Path, settled: None, reads: list[str]
) -> None:
    dataset = Folder(make_set(tmp_path / "set"))
    first = dataset.spec
    dataset.remember_contents_in(tmp_path / "kept")
    assert dataset.spec == first
    assert len(reads) == 4
    dataset.spec  # noqa: B018
    (tmp_path / "set" / "0" / "0.bmp").touch()
    dataset.spec  # noqa: B018
    assert Folder(tmp_path / "set").spec == first
    assert len(reads) == 4 + 1 + 4


def test_files_that_were_just_written_are_read_again(tmp_path: Path, reads: list[str]) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    old = 1_000_000_000
    os.utime(root / "0" / "0.bmp", (old, old))  # its ctime is still that of now
    first = fingerprint(root, folder)
    assert fingerprint(root, folder) == first
    assert len(reads) == 8
    assert kept(folder) == []


def test_files_with_a_time_in_the_future_are_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    now = time.time_ns()
    os.utime(root / "0" / "0.bmp", ns=(now, now + 10**13))
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**12)  # a quarter of an hour later
    fingerprint(root, folder)
    fingerprint(root, folder)
    assert reads[4:] == ["0.bmp"]


def test_a_second_folder_of_data_has_its_own_digests(tmp_path: Path, settled: None) -> None:
    folder = tmp_path / "kept"
    prints = {fingerprint(make_set(tmp_path / f"set{n}", n), folder) for n in (2, 3)}
    assert len(prints) == 2
    assert len(list(folder.iterdir())) == 2


def test_an_interrupt_loses_nothing_that_was_read(
    tmp_path: Path, settled: None, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = make_set(tmp_path / "set", 6), tmp_path / "kept"
    monkeypatch.setattr(contents, "_AT_ONCE", 2)
    counted = contents._digest

    def interrupted(path: Path) -> object:
        if len(reads) >= 4:
            raise KeyboardInterrupt
        return counted(path)

    with monkeypatch.context() as patch:
        patch.setattr(contents, "_digest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fingerprint(root, folder)
    fingerprint(root, folder)
    assert len(reads) == 6


def test_long_reading_is_kept_as_it_goes(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_AT_ONCE", 1)
    monkeypatch.setattr(contents, "_SAVE_EVERY", -1.0)
    saved: list[int] = []
    monkeypatch.setattr(contents, "keep", lambda folder, root, found: saved.append(len(found.paths)))
    fingerprint(make_set(tmp_path / "set"), tmp_path / "kept")
    assert saved == [1, 2, 3, 4]


def test_a_note_tells_of_many_files_and_not_of_few(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MANY", 4)
    notes: list[str] = []
    for count in (3, 5):
        dataset = Folder(make_set(tmp_path / str(count), count))
        dataset.remember_contents_in(tmp_path / "kept", notes.append)
        assert dataset.spec == dataset.spec
    assert notes == ["reading 5 images once, to know their content"]


# What is kept


def test_what_is_kept_is_named_by_its_own_digest(tmp_path: Path, settled: None) -> None:
    fingerprint(make_set(tmp_path / "set"), tmp_path / "kept")
    (path,) = kept(tmp_path / "kept")
    assert path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()}.npz"


def spoil(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def with_other_digests(content: bytes) -> bytes:
    """A cache of the same files that says something else."""
    with np.load(io.BytesIO(content)) as arrays:
        changed = dict(arrays)
    changed["digests"] = changed["digests"] ^ 255
    buffer = io.BytesIO()
    np.savez(buffer, **changed)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage", [spoil, with_other_digests, lambda content: content[:40], lambda content: b""]
)
def test_a_damaged_cache_is_never_believed(
    tmp_path: Path, settled: None, reads: list[str], damage: Callable[[bytes], bytes]
) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    first = fingerprint(root, folder)
    (path,) = kept(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert fingerprint(root, folder) == first
    assert len(reads) == 8
    assert fingerprint(root, folder) == first
    assert len(reads) == 8


def rebuilt(content: bytes, **changes: np.ndarray) -> bytes:
    with np.load(io.BytesIO(content)) as arrays:
        changed = {**arrays, **changes}
    buffer = io.BytesIO()
    np.savez(buffer, **changed)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "foreign",
    [
        lambda content: b"no archive",
        lambda content: rebuilt(content, format=np.zeros(3, np.uint8)),
        lambda content: rebuilt(content, root=np.zeros(3, np.uint8)),
        lambda content: rebuilt(content, stats=np.zeros((1, 4), np.int64)),
        lambda content: rebuilt(content, digests=np.zeros((4, 20), np.uint8)),
    ],
)
def test_a_cache_of_something_else_is_never_believed(
    tmp_path: Path, settled: None, reads: list[str], foreign: Callable[[bytes], bytes]
) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    first = fingerprint(root, folder)
    (path,) = kept(folder)
    content = foreign(path.read_bytes())
    path.unlink()
    (path.parent / f"{hashlib.sha256(content).hexdigest()}.npz").write_bytes(content)
    assert fingerprint(root, folder) == first
    assert len(reads) == 8


def test_old_caches_and_abandoned_writes_are_removed(tmp_path: Path, settled: None) -> None:
    root, folder = make_set(tmp_path / "set"), tmp_path / "kept"
    for value in range(6):
        (root / "0" / "0.bmp").write_bytes(bmp(100 + value))
        fingerprint(root, folder)
    place = kept(folder)[0].parent
    for name, age in ((f"{files.TEMPORARY}old", 7200), (f"{files.TEMPORARY}new", 0)):
        (place / name).touch()
        status = (place / name).stat()
        os.utime(place / name, (status.st_atime - age, status.st_mtime - age))
    (root / "0" / "0.bmp").write_bytes(bmp(200))
    fingerprint(root, folder)
    names = [path.name for path in kept(folder)]
    assert len([name for name in names if name.endswith(".npz")]) == content_cache._KEPT
    assert [name for name in names if name.startswith(files.TEMPORARY)] == [f"{files.TEMPORARY}new"]


def test_machines_that_see_other_data_under_one_path_do_not_undo_each_other(
    tmp_path: Path, settled: None, reads: list[str]
) -> None:
    folder, root = tmp_path / "kept", tmp_path / "set"
    places = [make_set(tmp_path / "one"), make_set(tmp_path / "two")]
    for turn in (0, 1, 0, 1):
        places[turn].rename(root)
        fingerprint(root, folder)
        root.rename(places[turn])
    assert len(reads) == 8


def test_a_folder_that_cannot_be_written_to_is_done_without(tmp_path: Path, settled: None) -> None:
    root = make_set(tmp_path / "set")
    (tmp_path / "kept").write_text("a file")
    assert fingerprint(root, tmp_path / "kept") == fingerprint(root)


# Changes meanwhile


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_changes_while_it_is_evaluated_is_refused(tmp_path: Path, workers: int) -> None:
    root = make_set(tmp_path)
    dataset = Folder(root)
    assert len(list(load_batches(dataset, AS_IS, range(4), 2, workers))) == 2
    dataset.spec  # noqa: B018
    assert len(list(load_batches(dataset, AS_IS, range(4), 2, workers))) == 2
    (root / "1" / "1.bmp").write_bytes(bmp(99))
    with pytest.raises(DataError) as caught:
        list(load_batches(dataset, AS_IS, range(4), 2, workers))
    assert str(caught.value) == (
        f"{root}/1/1.bmp changed while the data set was being evaluated; run again, with the files left alone"
    )
    dataset.spec  # noqa: B018
    assert len(list(load_batches(dataset, AS_IS, range(4), 2, workers))) == 2


def test_an_image_that_was_only_touched_is_read(tmp_path: Path) -> None:
    dataset = Folder(make_set(tmp_path))
    before = dataset.spec
    (tmp_path / "0" / "0.bmp").touch()
    assert dataset.read(0)[0, 0].tolist() == [0, 0, 0]
    assert dataset.spec == before


def test_a_file_that_is_being_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))
    monkeypatch.setattr(contents, "_key", lambda status: (next(times),) * 4)
    with pytest.raises(DataError, match=r"0\.bmp: is being written to; run again when it is complete$"):
        contents._digest(make_set(tmp_path) / "0" / "0.bmp")


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    dataset = Folder(make_set(tmp_path))
    (tmp_path / "0" / "0.bmp").unlink()
    with pytest.raises(DataError, match=r"0/0\.bmp: cannot be read: No such file or directory; is it a"):
        dataset.spec  # noqa: B018


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(make_set(tmp_path) / "0" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: expected an image, found no regular file; remove it$"):
        Folder(tmp_path)


def test_workers_that_are_started_anew_get_the_digests_and_not_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Folder(make_set(tmp_path))
    dataset.remember_contents_in(tmp_path / "kept", lambda text: None)  # a lambda cannot be pickled
    dataset.spec  # noqa: B018
    monkeypatch.setattr(loader, "START_METHOD", "spawn")
    (tmp_path / "0" / "0.bmp").write_bytes(bmp(99))
    with pytest.raises(DataError, match=r"0\.bmp changed while the data set was being evaluated"):
        list(load_batches(dataset, AS_IS, range(4), 2, workers=1))


def test_contents_survive_pickling(tmp_path: Path) -> None:
    found = Contents(make_set(tmp_path), ["0/0.bmp"])
    assert pickle.loads(pickle.dumps(found)).digests() == found.digests()


@pytest.mark.parametrize("value", [-1, 2**70])
def test_times_that_no_calendar_has_do_no_harm(value: int) -> None:
    status = os.stat_result((0,) * 10, {"st_mtime_ns": value, "st_ctime_ns": value})
    key = contents._key(status)
    assert all(0 <= number < 2**63 for number in key)
