"""What class folders mean: by their names, or, where the user says so, counted as torchvision does."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from robustbench_quest.datasets import open_dataset
from robustbench_quest.datasets.base import Dataset, dataset_options
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.imagenet_classes import wnids
from robustbench_quest.errors import DataError, OptionError

IMAGENETTE = ("n01440764", "n02102040", "n02979186", "n03000684", "n03028079", "n03394916", "n03417042")
SORTED = "open the data set with `dataset_options` labels=sorted, which counts the"


def classes(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(root / name / "a.png")
    return root


def labels_of(dataset: Dataset) -> dict[str, int]:
    folders = (image_id.partition("/")[0] for image_id in dataset.image_ids)
    return dict(zip(folders, dataset.labels.tolist(), strict=True))


@pytest.mark.parametrize(
    "names",
    [
        IMAGENETTE,
        [str(number) for number in range(12)],
        ["n99999999", "n01440764"],
        ["n01440764", "3", "cat"],
        ["Zebra", "cat", "dog"],
    ],
    ids=["wnids", "indices", "other wnids", "several kinds", "names"],
)
def test_sorted_labels_are_those_of_image_folder(tmp_path: Path, names: list[str]) -> None:
    dataset = open_dataset("folder", classes(tmp_path, *names), labels="sorted")
    theirs = ImageFolder(tmp_path)
    assert labels_of(dataset) == theirs.class_to_idx
    assert dataset.class_names == tuple(theirs.classes)
    assert dataset.num_classes == len(names)
    assert dataset.notes == (
        "class folders counted by sorted name, as asked for: labels count the "
        f"{len(names)} sorted names from 0",
    )


def test_the_labels_are_part_of_what_the_data_is(tmp_path: Path) -> None:
    classes(tmp_path, "n01440764", "n02102040")
    assert Folder(tmp_path).spec != Folder(tmp_path, labels="sorted").spec
    classes(tmp_path / "names", "cat", "dog")
    assert Folder(tmp_path / "names").spec == Folder(tmp_path / "names", labels="sorted").spec


def test_part_of_imagenet_says_how_a_model_of_this_part_is_served(tmp_path: Path) -> None:
    dataset = Folder(classes(tmp_path, *IMAGENETTE))
    assert dataset.num_classes == 1000
    assert dataset.label_hint == (
        f"for a model trained on these folders alone, {SORTED} 7 folders from 0 in sorted order"
    )


def test_sorted_labels_say_how_to_get_back(tmp_path: Path) -> None:
    dataset = Folder(classes(tmp_path, *IMAGENETTE), labels="sorted")
    assert dataset.label_hint == (
        "labels=sorted was asked for; without it, class folders are read by their names"
    )


def test_there_is_no_hint_where_sorting_would_change_nothing(tmp_path: Path) -> None:
    assert Folder(classes(tmp_path / "all", *wnids()[:3])).label_hint == ""
    assert Folder(classes(tmp_path / "names", "cat", "dog")).label_hint == ""
    assert Folder(classes(tmp_path / "few", "0", "1", "2")).label_hint == ""
    assert open_dataset("digits").label_hint == ""


def test_numbers_that_sort_otherwise_as_text_are_noted(tmp_path: Path) -> None:
    dataset = Folder(classes(tmp_path / "11", *map(str, range(11))))
    assert labels_of(dataset)["10"] == 10
    assert dataset.notes == (
        "class folders named by index: the 11 numbers are the labels",
        "torchvision's ImageFolder would sort them as text (10 as class 2); for a model trained with it, "
        f"{SORTED} 11 folders from 0 in sorted order",
    )
    padded = Folder(classes(tmp_path / "padded", *(f"{number:02d}" for number in range(11))))
    assert len(padded.notes) == 1
    part = Folder(classes(tmp_path / "part", "9", "10"))
    assert len(part.notes) == 1
    assert part.label_hint.startswith("for a model trained on these folders alone, ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["n99999999", "n01440764"],
            "expected class folders from ImageNet-1k's 1000 wnids, found 1 others: n99999999; remove them, "
            f"or name all folders by index, or {SORTED} 2 folders from 0 in sorted order",
        ),
        (
            ["n01440764", "3"],
            "expected class folders of one kind, found wnids (n01440764), indices (3); rename or remove "
            f"some, or {SORTED} 2 folders from 0 in sorted order",
        ),
    ],
)
def test_folders_that_mean_nothing_by_name_say_what_helps(
    tmp_path: Path, names: list[str], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        Folder(classes(tmp_path, *names))
    assert str(caught.value) == message


def test_splits_are_no_classes_however_they_are_sorted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^expected class folders or a labels\.csv, found only train, val;"):
        Folder(classes(tmp_path, "val", "train"), labels="sorted")


def test_a_labels_csv_is_not_sorted(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("filename,label\na.png,1\n")
    with pytest.raises(OptionError) as caught:
        Folder(tmp_path, labels="sorted")
    assert str(caught.value) == (
        f"labels=sorted is for class folders, but {tmp_path}/labels.csv says which label each image has; "
        "leave labels out, or remove the file"
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "folder",
            {"lables": "sorted"},
            "options of data set 'folder': unknown option 'lables'; did you mean 'labels'? Available: labels",
        ),
        (
            "folder",
            {"labels": "sort"},
            "unknown value of labels 'sort'; did you mean 'sorted'? Available: auto, sorted",
        ),
        ("folder", {"labels": 3}, "unknown value of labels '3'; Available: auto, sorted"),
        (
            "digits",
            {"labels": "sorted"},
            "options of data set 'digits': it has none, found labels; leave it out",
        ),
    ],
)
def test_wrong_options_list_the_right_ones(
    tmp_path: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        open_dataset(name, None if name == "digits" else classes(tmp_path, "cat"), **options)
    assert str(caught.value) == message


def test_the_options_of_a_data_set_can_be_listed() -> None:
    assert dataset_options("folder") == {"labels": "auto"}
    assert dataset_options("digits") == {}
