"""Folders of images: what each layout means, and what is refused."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from robustbench_quest.datasets import listing
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.imagenet_classes import wnids
from robustbench_quest.errors import DataError


def png(colour: tuple[int, int, int] = (1, 2, 3)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(buffer, "PNG")
    return buffer.getvalue()


def fill(root: Path, *names: str) -> Path:
    """Put an image at every name; a name that ends in / becomes an empty folder."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    return root


def with_csv(root: Path, text: str, *names: str) -> Path:
    fill(root, *names)
    (root / "labels.csv").write_text(text, encoding="utf-8")
    return root


def refusal(root: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        Folder(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Class folders


def test_wnids_keep_their_imagenet_labels(tmp_path):
    fill(tmp_path, "n15075141/a.JPEG", "n01440764/b.JPEG", "n01443537/c.JPEG")
    dataset = Folder(tmp_path)
    assert dataset.image_ids == ("n01440764/b.JPEG", "n01443537/c.JPEG", "n15075141/a.JPEG")
    assert dataset.labels.tolist() == [0, 1, 999]
    assert dataset.labels.dtype == np.int64
    assert dataset.num_classes == 1000
    assert dataset.class_names[999].startswith("toilet tissue")
    assert dataset.notes == ("class folders named by wnid: 3 of ImageNet-1k's 1000 classes",)


def test_indices_are_labels_whatever_they_sort_to(tmp_path):
    dataset = Folder(fill(tmp_path, "10/a.png", "9/b.png", "003/c.png"))
    assert dict(zip(dataset.image_ids, dataset.labels.tolist(), strict=True)) == {
        "003/c.png": 3,
        "10/a.png": 10,
        "9/b.png": 9,
    }
    assert (dataset.num_classes, dataset.class_names) == (None, None)
    assert dataset.notes == ("class folders named by index: the 3 numbers are the labels",)


def test_names_are_counted_in_sorted_order_as_torchvision_does(tmp_path):
    fill(tmp_path, "dog/a.png", "Zebra/b.png", "cat/c.png", "dog/deep/er/d.png")
    dataset = Folder(tmp_path)
    theirs = ImageFolder(tmp_path)
    assert dataset.class_names == tuple(theirs.classes)
    assert dataset.num_classes == 3
    assert sorted(
        (str(tmp_path / name), label) for name, label in zip(dataset.image_ids, dataset.labels, strict=True)
    ) == (sorted(theirs.samples))
    assert dataset.notes == ("class folders named by name: labels count the 3 sorted names from 0",)


def test_an_empty_class_folder_counts_and_is_noted(tmp_path):
    dataset = Folder(fill(tmp_path, "bird/", "cat/a.png", "ant/"))
    assert dataset.class_names == ("ant", "bird", "cat")
    assert dataset.labels.tolist() == [2]
    assert "class folders without images: 2 (ant, bird)" in dataset.notes


def test_what_is_left_out_is_noted(tmp_path):
    fill(tmp_path, "cat/a.png", "cat/.b.png", ".git/c.png", "d.png", "cat/sub/.DS_Store")
    (tmp_path / "cat" / "readme.txt").write_text("x")
    (tmp_path / "Thumbs.db").write_text("x")
    dataset = Folder(tmp_path)
    assert dataset.image_ids == ("cat/a.png",)
    assert dataset.notes[1:] == (
        "images outside the class folders, left out: 1",
        "files that are not images, left out: 1 (cat/readme.txt)",
        "system folders and files, left out: 1 (Thumbs.db)",
        "hidden files and folders, left out: 3",
    )


def test_endings_in_any_case(tmp_path):
    names = [f"cat/{number}{ending}" for number, ending in enumerate(listing.ENDINGS)]
    names += [f"cat/upper{number}{ending.upper()}" for number, ending in enumerate(listing.ENDINGS)]
    assert len(Folder(fill(tmp_path, *names, "cat/x.gif", "cat/y.jpg.txt"))) == 20


def test_links_are_followed_and_loops_are_not(tmp_path):
    real = fill(tmp_path / "real", "n01440764/a.png", "b.png")
    root = tmp_path / "set"
    (root / "cat").mkdir(parents=True)
    (root / "fish").symlink_to(real / "n01440764")
    (root / "cat" / "c.png").symlink_to(real / "b.png")
    (root / "cat" / "up").symlink_to(root)
    dataset = Folder(root)
    assert dataset.image_ids == ("cat/c.png", "fish/a.png")
    assert dataset.read(0).shape == (2, 3, 3)


def test_a_listing_decodes_nothing(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", fail)
    dataset = Folder(fill(tmp_path, "cat/a.png"))
    assert (len(dataset.spec.fingerprint), len(dataset.order)) == (64, 1)
    with pytest.raises(DataError, match="an image was opened"):
        dataset.read(0)


def test_an_image_that_cannot_be_read_is_named_with_its_folder(tmp_path):
    path = fill(tmp_path, "cat/a.png") / "cat" / "a.png"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"^{path}: expected an image, found an empty file"):
        Folder(tmp_path).read(0)


def test_the_fingerprint_is_that_of_the_content_not_of_the_place(tmp_path):
    here, there = (fill(tmp_path / name, "1/a.png", "2/b.png") for name in ("here", "there"))
    assert Folder(here).spec == Folder(there).spec
    (there / "2").rename(there / "3")
    assert Folder(here).spec != Folder(there).spec
    other = fill(tmp_path / "other", "1/a.png", "2/b.png")
    (other / "1" / "a.png").write_bytes(png() + b"x")
    assert Folder(here).spec != Folder(other).spec


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            [],
            "no images in class folders in {root}: expected one folder per class with images (.jpg .jpeg",
        ),
        (["cat/", "dog/"], "or a labels.csv; found folders without images: 2"),
        (["a.png", "b.png"], "or a labels.csv; found images outside of folders: 2"),
        (
            ["cat/a.gif"],
            "or a labels.csv; found folders without images: 1, files of other kinds: 1 (cat/a.gif)",
        ),
        (
            ["n99999999/a.png", "n01440764/b.png"],
            "expected class folders from ImageNet-1k's 1000 wnids, found 1",
        ),
        (
            ["n01440764/a.png", "3/b.png", "cat/c.png"],
            "found wnids (n01440764), indices (3), names (cat); rename",
        ),
        (["1/a.png", "001/b.png"], "expected one folder per class, found 001 and 1 for class 1; merge them"),
        (
            ["99999999999/a.png"],
            "expected class folders named by index, found 99999999999, which is too large",
        ),
        (
            ["train/cat/a.png", "val/cat/b.png"],
            "found only train, val; point --data at the folder whose subfold",
        ),
        (["images/a.png"], "expected class folders or a labels.csv, found only images; point --data"),
    ],
)
def test_class_folders_that_mean_nothing(tmp_path, names, message):
    assert message.format(root=tmp_path) in refusal(fill(tmp_path, *names))


def test_a_root_that_is_missing_or_a_file(tmp_path):
    assert (
        refusal(tmp_path / "no") == f"no data at {tmp_path / 'no'}: expected a folder of images; check --data"
    )
    file = fill(tmp_path, "a.png") / "a.png"
    assert refusal(str(file)).startswith(
        f"{file} is a file: expected a folder of images; unpack it, or check"
    )


def test_a_broken_link_is_an_error(tmp_path):
    fill(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "b.png").symlink_to(tmp_path / "gone")
    message = refusal(tmp_path)
    assert message == f"{tmp_path}/cat/b.png: cannot be read: No such file or directory; is it a broken link?"


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    def walk(path: Path, *, onerror, **_: object):
        onerror(PermissionError(13, "Permission denied", f"{path}/cat"))
        return iter(())

    monkeypatch.setattr(os, "walk", walk)
    assert refusal(fill(tmp_path, "cat/a.png")) == f"{tmp_path}/cat: cannot be read: Permission denied"


def test_a_name_that_is_not_utf8_is_an_error(tmp_path):
    fill(tmp_path, "cat/a.png")
    try:
        os.rename(tmp_path / "cat" / "a.png", os.fsencode(tmp_path / "cat") + b"/\xff.png")
    except OSError:
        pytest.skip("this file system keeps names in UTF-8")
    assert refusal(tmp_path) == (
        f"b'cat/\\xff.png' in {tmp_path} is not UTF-8: results are keyed by name; rename it"
    )


# labels.csv


def test_a_csv_with_images_beside_it_or_in_images(tmp_path):
    text = "filename,label,author\nb.png,7,X\na.png,3,Y\nsub/c.png,0,Z\n"
    dataset = Folder(with_csv(tmp_path, text, "images/a.png", "b.png", "sub/c.png"))
    assert dataset.image_ids == ("a.png", "b.png", "sub/c.png")
    assert dataset.labels.tolist() == [3, 7, 0]
    assert (dataset.num_classes, dataset.class_names, dataset.target_labels) == (None, None, None)
    assert dataset.notes == ("labels.csv: 3 images; labels are used as they are",)
    assert [dataset.read(index).shape for index in range(3)] == [(2, 3, 3)] * 3


def test_target_labels_follow_their_images(tmp_path):
    text = "label,target_label,filename\n1,5,b.png\n2,6,a.png\n"
    dataset = Folder(with_csv(tmp_path, text, "a.png", "b.png"))
    assert dataset.target_labels.tolist() == [6, 5]
    assert dataset.target_labels.dtype == np.int64


def test_some_target_labels_are_not_used_and_noted(tmp_path):
    dataset = Folder(
        with_csv(tmp_path, "filename,label,target_label\na.png,1,5\nb.png,2,\n", "a.png", "b.png")
    )
    assert dataset.target_labels is None
    assert "target labels, not used: only 1 of 2 images have one" in dataset.notes


def test_what_a_csv_leaves_out_is_noted(tmp_path):
    dataset = Folder(with_csv(tmp_path, "filename,label\na.png,1\n", "images/a.png", "images/b.png", "c.png"))
    assert dataset.notes[1:] == ("images that labels.csv does not list, left out: 2",)


def test_a_byte_order_mark_spaces_and_blank_lines_do_no_harm(tmp_path):
    text = "\ufefffilename, label\r\n\r\n a.png , 4 \r\n"
    dataset = Folder(with_csv(tmp_path, text, "a.png"))
    assert (dataset.image_ids, dataset.labels.tolist()) == (("a.png",), [4])


def test_the_order_of_rows_does_not_matter(tmp_path):
    rows = ["a.png,1", "b.png,2", "c.png,3"]
    sets = []
    for name, order in (("one", rows), ("two", rows[::-1])):
        text = "\n".join(["filename,label", *order])
        sets.append(Folder(with_csv(fill(tmp_path, f"{name}/") / name, text, "a.png", "b.png", "c.png")))
    assert sets[0].image_ids == sets[1].image_ids
    assert sets[0].spec == sets[1].spec


def test_folders_without_images_are_no_rival_to_a_csv(tmp_path):
    dataset = Folder(with_csv(tmp_path, "filename,label\na.png,1\n", "a.png", "licences/"))
    assert len(dataset) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "labels.csv: expected a header with the columns filename and label, found an empty file"),
        ("file,class\na.png,1\n", "expected a header with the columns filename and label, found file, class"),
        ("filename;label\na.png;1\n", "the columns filename and label, found filename;label"),
        ("filename,label\n", "labels.csv: expected one row per image, found only the header"),
        (
            "filename,label\na.png,cat\n",
            "labels.csv, line 2: expected an integer in column label, found 'cat'; wr",
        ),
        ("filename,label\na.png,1.0\n", "line 2: expected an integer in column label, found '1.0'"),
        ("filename,label\na.png,1_0\n", "line 2: expected an integer in column label, found '1_0'"),
        ("filename,label\na.png\n", "line 2: expected an integer in column label, found ''"),
        (
            "filename,label\na.png,-1\n",
            "line 2: expected a label of 0 or more, found -1; labels are class indices",
        ),
        (
            "filename,label\na.png,4294967296\n",
            "line 2: expected a label of at most 2147483647, found 4294967296",
        ),
        ("filename,label,target_label\na.png,1,x\n", "expected an integer in column target_label, found 'x'"),
        ("filename,label\n,1\n", "line 2: expected the path of an image inside the folder, found ''"),
        ("filename,label\n../a.png,1\n", "expected the path of an image inside the folder, found '../a.png'"),
        ("filename,label\n/a.png,1\n", "expected the path of an image inside the folder, found '/a.png'"),
        (
            "filename,label\na.png,1\nb.png,2\nc.png,3\n",
            "2 of 3 listed images are missing: b.png, c.png; expected",
        ),
        (
            "filename,label\na.png,1\n./a.png,1\n",
            "labels.csv: expected each image once, found a.png twice; remove",
        ),
        ('filename,label\n"a.png,1\n', "expected an integer in column label, found ''"),
    ],
)
def test_a_csv_that_cannot_be_used(tmp_path, text, message):
    assert message in refusal(with_csv(tmp_path, text, "images/a.png"))


def test_the_same_file_under_two_names_is_listed_twice(tmp_path):
    text = "filename,label\nimages/a.png,1\na.png,1\n"
    assert "expected each image once, found images/a.png twice" in refusal(
        with_csv(tmp_path, text, "images/a.png")
    )


def test_a_csv_in_another_encoding(tmp_path):
    fill(tmp_path, "a.png")
    (tmp_path / "labels.csv").write_bytes("filename,label\né.png,1\n".encode("latin-1"))
    message = refusal(tmp_path)
    assert message == f"{tmp_path}/labels.csv: expected UTF-8 text, found other bytes; save it as UTF-8"


def test_a_csv_with_a_field_too_large(tmp_path):
    message = refusal(with_csv(tmp_path, f"filename,label\n{'a' * 200_000},1\n", "a.png"))
    assert message.startswith(f"{tmp_path}/labels.csv: expected comma-separated values: field larger than")


def test_a_csv_and_class_folders_are_one_too_many(tmp_path):
    message = refusal(with_csv(tmp_path, "filename,label\na.png,1\n", "a.png", "cat/b.png", "dog/c.png"))
    assert message == (
        f"{tmp_path}: expected a labels.csv or class folders, found both (cat, dog); remove labels.csv to "
        "use the folders, or the folders to use labels.csv"
    )


# Real data


def test_nips17(nips17):
    dataset = Folder(nips17)
    assert len(dataset) == 300
    assert dataset.notes == ("labels.csv: 300 images; labels are used as they are",)
    at = dataset.image_ids.index("0411ca972e637297.jpg")
    assert (dataset.labels[at], dataset.target_labels[at]) == (967, 696)
    assert dataset.read(at).shape == (299, 299, 3)
    assert 0 <= dataset.labels.min() <= dataset.labels.max() < len(wnids())
