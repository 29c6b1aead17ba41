"""``open_dataset``: a name and a root, or one line that says what is wrong with them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from PIL import Image

from robustbench_quest.datasets import open_dataset
from robustbench_quest.datasets.base import file_fingerprint
from robustbench_quest.datasets.digits import Digits
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.errors import OptionError
from robustbench_quest.registry import DATASETS


def test_opens_by_name(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "cat" / "1.png")
    assert type(open_dataset("digits")) is Digits
    folder = open_dataset("folder", tmp_path)
    assert type(folder) is Folder
    assert len(folder) == 1


def test_a_dataset_goes_by_its_registered_name():
    for name in DATASETS:
        assert DATASETS.load(name).name == name


@pytest.mark.parametrize(
    ("name", "root", "message"),
    [
        (
            "digits",
            "images",
            "data set 'digits' is embedded and reads no --data, found --data images; drop --data, or use "
            "--dataset folder",
        ),
        ("folder", None, "data set 'folder' needs --data DIR, the folder with its images"),
        ("digit", None, "unknown data set 'digit'; did you mean 'digits'? Available: digits, folder"),
    ],
)
def test_wrong_options(name, root, message):
    with pytest.raises(OptionError) as caught:
        open_dataset(name, root)
    assert str(caught.value).startswith(message)


def test_the_fingerprint_of_files_depends_on_every_fact_and_not_on_their_order():
    ids, digests, labels = ("a/1", "a/2", "b"), ("33", "44", "55"), np.array([0, 0, 1])
    same = file_fingerprint(ids, digests, labels)
    turned = [2, 0, 1]
    assert file_fingerprint([ids[i] for i in turned], [digests[i] for i in turned], labels[turned]) == same
    others = [
        file_fingerprint(("a/1", "a/2", "c"), digests, labels),
        file_fingerprint(ids, ("33", "44", "56"), labels),
        file_fingerprint(ids, digests, np.array([0, 0, 2])),
        file_fingerprint(ids[:2], digests[:2], labels[:2]),
    ]
    assert len({same, *others}) == 5
    assert same == hashlib.sha256(b'[["a/1","33",0],["a/2","44",0],["b","55",1]]').hexdigest()
