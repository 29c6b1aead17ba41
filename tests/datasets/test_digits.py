"""The embedded digits: the split, the pixels, the ids."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from robustbench_quest.datasets.digits import PREPROCESSING, Digits, load_arrays

FIRST = ["digits-test-1491", "digits-test-1662", "digits-test-1074"]


def test_the_split_is_500_and_1297_and_balanced():
    pixels, labels, test = load_arrays()
    assert pixels.shape == (1797, 32, 32, 3)
    assert (test.sum(), (~test).sum()) == (500, 1297)
    assert np.bincount(labels[test]).tolist() == [50] * 10


def test_train_and_test_share_no_image():
    pixels, _, test = load_arrays()
    train_images = {image.tobytes() for image in pixels[~test]}
    assert not any(image.tobytes() in train_images for image in pixels[test])


def test_ids_are_tied_to_scikit_learns_data():
    dataset = Digits()
    bunch = load_digits()
    indices = [int(image_id.removeprefix("digits-test-")) for image_id in dataset.image_ids]
    assert dataset.image_ids[0] == f"digits-test-{indices[0]:04d}"
    assert indices == sorted(set(indices))
    np.testing.assert_array_equal(dataset.labels, bunch.target[indices])
    small = torch.from_numpy(np.rint(bunch.images[indices] * 255 / 16)).unsqueeze(1)
    large = torch.nn.functional.interpolate(small, scale_factor=4, mode="bilinear").numpy()
    for index in range(len(dataset)):
        image = dataset.read(index)
        assert image.shape == (32, 32, 3)
        assert image.dtype == np.uint8
        assert (image == image[..., :1]).all()
        assert np.abs(image[..., 0] - large[index, 0]).max() <= 1


def test_facts():
    dataset = Digits()
    assert (dataset.name, dataset.num_classes, dataset.default_eps) == ("digits", 10, "4/255")
    assert dataset.class_names == tuple("0123456789")
    assert dataset.labels.dtype == np.int64
    assert (PREPROCESSING["size"], PREPROCESSING["resize"]) == (32, 0)


def test_the_numbers_of_this_version_stay():
    dataset = Digits()
    spec = dataset.spec
    assert (spec.name, spec.version, spec.task) == ("digits", 1, "classification")
    # Whoever changes these raises Digits.version.
    assert spec.fingerprint == "f439fbdb3ad9e445dbe1fc3cfa06bae026ccf33a353681e09582471855adf240"
    assert [dataset.image_ids[index] for index in dataset.order[:3]] == FIRST


def test_what_is_read_can_be_changed_without_changing_the_data():
    dataset = Digits()
    before = dataset.read(3).copy()
    dataset.read(3)[:] = 0
    np.testing.assert_array_equal(dataset.read(3), before)
