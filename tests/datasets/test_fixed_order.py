"""The fixed order: a permutation, whatever the listing, whose every prefix is spread over the classes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from robustbench_quest.datasets.digits import Digits
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.order import fixed_order
from robustbench_quest.rng import generator

CASES = [(1, 1), (7, 1), (50, 7), (200, 10), (200, 150), (333, 3)]  # images, classes


def labelled(images: int, classes: int, skew: bool) -> tuple[list[str], np.ndarray]:
    draws = generator("order-test", images, classes)
    labels = draws.randint(0, classes, images)
    if skew:
        labels[: images * 3 // 4] = 0
    return [f"folder/{draws.randint(10**9)}-{index}.jpg" for index in range(images)], labels.astype(np.int64)


def even(per_class: int, classes: int) -> tuple[list[str], np.ndarray]:
    labels = np.repeat(np.arange(classes), per_class)
    return [f"image-{index}" for index in range(len(labels))], labels


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize(("images", "classes"), CASES)
def test_is_a_permutation(images, classes, skew):
    ids, labels = labelled(images, classes, skew)
    order = fixed_order(ids, labels)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(images))


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize(("images", "classes"), CASES)
def test_does_not_depend_on_the_listing(images, classes, skew):
    ids, labels = labelled(images, classes, skew)
    expected = [ids[index] for index in fixed_order(ids, labels)]
    shuffle = generator("shuffle").permutation(images)
    shuffled = [ids[index] for index in shuffle]
    assert [shuffled[index] for index in fixed_order(shuffled, labels[shuffle])] == expected


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize(("images", "classes"), CASES)
def test_every_prefix_holds_each_class_in_proportion(images, classes, skew):
    ids, labels = labelled(images, classes, skew)
    sizes = Counter(labels.tolist())
    counts: Counter[int] = Counter()
    for k, index in enumerate(fixed_order(ids, labels), start=1):
        counts[int(labels[index])] += 1
        for label, size in sizes.items():
            share = Fraction(size, images)
            bound = 1 + share * max(len(sizes) - 2, 0)
            assert abs(counts[label] - share * k) <= bound


@pytest.mark.parametrize(("per_class", "classes"), [(5, 10), (50, 10), (4, 100)])
def test_classes_of_equal_size_are_never_two_images_apart(per_class, classes):
    ids, labels = even(per_class, classes)
    ordered = labels[fixed_order(ids, labels)]
    for k in range(1, len(ordered) + 1):
        counts = np.bincount(ordered[:k], minlength=classes)
        assert counts.max() - counts.min() <= 1


def test_small_classes_are_as_likely_as_large_ones():
    # One class of 200 images and 200 classes of one: a prefix must draw from both alike.
    labels = np.array([0] * 200 + list(range(1, 201)))
    ordered = labels[fixed_order([f"image-{index}" for index in range(400)], labels)]
    for k in (50, 100, 200):
        # Binomial with p = 1/2: four standard deviations.
        assert abs(int((ordered[:k] > 0).sum()) - k / 2) <= 4 * (k / 4) ** 0.5


def test_is_not_the_listing_order_within_a_class():
    ids, labels = even(100, 1)
    assert fixed_order(ids, labels).tolist() != list(range(100))


def test_the_order_of_this_version_stays():
    # Whoever changes it raises the version of every data set.
    assert (Digits.version, Folder.version) == (1, 2)
    ids, labels = even(3, 3)
    assert fixed_order(ids, labels).tolist() == [2, 5, 8, 0, 3, 7, 1, 4, 6]


def test_refuses_an_id_that_occurs_twice():
    with pytest.raises(ValueError, match="image ids must be unique"):
        fixed_order(["a", "a"], np.zeros(2, dtype=np.int64))


def test_refuses_labels_of_another_number():
    with pytest.raises(ValueError, match="zip"):
        fixed_order(["a", "b"], np.zeros(3, dtype=np.int64))
