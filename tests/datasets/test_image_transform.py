"""Resize, crop and scale: byte for byte what timm's evaluation transform does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import CenterCrop, Resize
from torchvision.transforms.functional import InterpolationMode

from robustbench_quest.datasets.decode import decode
from robustbench_quest.datasets.transform import (
    INTERPOLATIONS,
    center_crop,
    resize_and_crop,
    resize_shorter_side,
    to_unit,
)
from robustbench_quest.errors import DataError, OptionError
from robustbench_quest.rng import generator
from robustbench_quest.types import Preprocessing

SHAPES = [(1, 1), (31, 33), (33, 500), (500, 33), (224, 224), (249, 248), (299, 301), (427, 640)]
CROPS = [0.875, 0.9, 1.0]


def random_image(height: int, width: int) -> np.ndarray:
    return generator("transform-test", height, width).randint(0, 256, (height, width, 3)).astype(np.uint8)


def prepare(image: np.ndarray, how: Preprocessing) -> np.ndarray:
    """What the loader does to an image."""
    return to_unit(resize_and_crop(image, how))


def timm_prepare(image: np.ndarray, crop_pct: float, interpolation: str) -> np.ndarray:
    transform = create_transform(
        (3, 224, 224), crop_pct=crop_pct, interpolation=interpolation, mean=(0, 0, 0), std=(1, 1, 1)
    )
    return transform(Image.fromarray(image)).numpy()


def preprocessing(crop_pct: float, interpolation: str) -> Preprocessing:
    return Preprocessing(224, math.floor(224 / crop_pct), interpolation)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_pct", CROPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_timm_on_random_images(shape, crop_pct, interpolation):
    image = random_image(*shape)
    pixels = prepare(image, preprocessing(crop_pct, interpolation))
    assert pixels.shape == (3, 224, 224)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, timm_prepare(image, crop_pct, interpolation))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_pct", CROPS)
def test_equals_timm_on_real_images(nips17, crop_pct, interpolation):
    for path in sorted((nips17 / "images").iterdir())[:8]:
        image = decode(path, path.name)
        pixels = prepare(image, preprocessing(crop_pct, interpolation))
        np.testing.assert_array_equal(pixels, timm_prepare(image, crop_pct, interpolation))


MODES = ["center", "squash", "border"]
MEAN = (0.485, 0.456, 0.406)


def timm_pixels(image: np.ndarray, how: Preprocessing, crop_pct: float) -> np.ndarray:
    """What timm's evaluation transform gives before it normalises: (S, S, 3) uint8."""
    transform = create_transform(
        (3, how.size, how.size),
        crop_pct=crop_pct,
        crop_mode=how.crop_mode,
        interpolation=how.interpolation,
        mean=how.mean,
        normalize=False,
    )
    return np.moveaxis(transform(Image.fromarray(image)).numpy(), 0, -1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_pct", [0.5, 0.875, 0.95, 1.0])
@pytest.mark.parametrize("size", [32, 63, 224])
def test_every_crop_mode_equals_timms(size: int, crop_pct: float, interpolation: str, mode: str) -> None:
    how = Preprocessing(size, math.floor(size / crop_pct), interpolation, MEAN, crop_mode=mode)
    compared = 0
    for shape in (*SHAPES, (2, 3), (61, 47), (48, 47), (63, 32), (640, 120)):
        image = random_image(*shape)
        np.testing.assert_array_equal(resize_and_crop(image, how), timm_pixels(image, how, crop_pct))
        compared += 1
    assert compared == len(SHAPES) + 5


def test_the_crop_modes_differ() -> None:
    image = random_image(61, 47)
    made = {
        resize_and_crop(image, Preprocessing(32, 36, "bicubic", MEAN, crop_mode=mode)).tobytes()
        for mode in MODES
    }
    assert len(made) == len(MODES)


def test_every_crop_mode_leaves_an_image_as_it_is_without_a_resize() -> None:
    image = random_image(32, 32)
    for mode in MODES:
        np.testing.assert_array_equal(resize_and_crop(image, Preprocessing(32, 0, crop_mode=mode)), image)


def test_an_unknown_crop_mode_lists_the_right_ones() -> None:
    with pytest.raises(
        OptionError,
        match=r"^unknown crop mode 'centre'; did you mean 'center'\? Available: border, center",
    ):
        resize_and_crop(random_image(4, 4), Preprocessing(2, 2, crop_mode="centre"))


def test_a_sliver_of_which_nothing_would_be_left_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"^1x1000 pixels are too narrow: resized to 32 on the longer side nothing would be"
    ):
        resize_and_crop(random_image(1000, 1), Preprocessing(32, 32, crop_mode="border"))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_every_interpolation_equals_torchvision(interpolation):
    image = random_image(61, 47)
    expected = Resize(32, InterpolationMode(interpolation))(Image.fromarray(image))
    np.testing.assert_array_equal(resize_shorter_side(image, 32, interpolation), np.asarray(expected))


@pytest.mark.parametrize("size", [5, 6, 31, 32, 33, 40])
@pytest.mark.parametrize("shape", [(32, 32), (31, 32), (33, 30), (4, 50), (7, 7)])
def test_the_crop_equals_torchvision_also_where_it_pads(shape, size):
    image = random_image(*shape)
    expected = np.asarray(CenterCrop(size)(Image.fromarray(image)))
    np.testing.assert_array_equal(center_crop(image, size), expected)


def test_without_a_resize_the_image_stays_as_it_is():
    image = random_image(32, 32)
    np.testing.assert_array_equal(resize_and_crop(image, Preprocessing(32, 0)), image)


def test_without_a_resize_another_size_is_refused():
    expected = r"^expected 32x32 pixels, as the model's .* found 31x33; resize the images, or give"
    with pytest.raises(DataError, match=expected):
        prepare(random_image(33, 31), Preprocessing(32, 0))


def test_a_sliver_is_refused_before_it_takes_all_memory():
    with pytest.raises(
        DataError, match=r"^100000x1 pixels are too narrow: resized to 256 .* 25600000 on the"
    ):
        prepare(np.zeros((1, 100_000, 3), np.uint8), Preprocessing(224, 256))


def test_an_unknown_interpolation_lists_the_right_ones():
    with pytest.raises(
        OptionError, match=r"unknown interpolation 'cubic'; did you mean 'bicubic'\? Available: b"
    ):
        prepare(random_image(4, 4), Preprocessing(2, 2, "cubic"))


def test_scaling_is_exact_at_every_level():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=-1)
    unit = to_unit(levels)
    assert (unit.min(), unit.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(unit[1], (np.arange(256).reshape(16, 16) / 255).astype(np.float32))


def test_scaling_takes_batches():
    images = np.stack([random_image(4, 6), random_image(4, 6)[::-1]])
    np.testing.assert_array_equal(to_unit(images), np.stack([to_unit(image) for image in images]))
