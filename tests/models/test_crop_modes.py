"""Which crop mode a model is evaluated with, who says so, and that it is timm's own where timm says so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from small_checkpoints import PREPROCESSING, Save, deit_args, facts, named, tiny
from timm.data import create_transform, resolve_data_config
from torch import nn

from robustbench_quest.checkpoints.declared import from_sidecar
from robustbench_quest.checkpoints.preprocessing import Source, from_args
from robustbench_quest.checkpoints.training_args import declared_by_args
from robustbench_quest.datasets.transform import resize_and_crop
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.models.load import load_model
from robustbench_quest.models.preprocessing import (
    check_preprocessing,
    from_timm,
    resolve_preprocessing,
)
from robustbench_quest.rng import generator

SQUASHED = "vit_base_patch16_clip_384"
SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 32}
CONFIG = {
    "input_size": (3, 32, 32),
    "crop_pct": 0.9,
    "crop_mode": "squash",
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}
IMAGE = generator("crop-modes").randint(0, 256, (40, 71, 3)).astype(np.uint8)


def squashed(save_pt: Save) -> Path:
    return save_pt(named(SQUASHED, **SMALL).state_dict())


def crop_row(path: Path, **options: Any) -> tuple[str, str, str]:
    (row,) = [row for row in load_model(path, **options).explanation if row.name == "crop_mode"]
    return row.text, row.source, row.others


def test_timms_crop_mode_is_followed_to_the_byte(save_pt: Save) -> None:
    found = load_model(squashed(save_pt), arch=SQUASHED, arch_options=SMALL, attention="standard")
    assert found.preprocessing.crop_mode == "squash"
    config = resolve_data_config({"input_size": (3, 32, 32)}, model=named(SQUASHED, **SMALL))
    theirs = create_transform(**config, normalize=False)(Image.fromarray(IMAGE))
    ours = resize_and_crop(IMAGE, found.preprocessing)
    np.testing.assert_array_equal(ours, np.moveaxis(theirs.numpy(), 0, -1))


def test_it_is_explained(save_pt: Save) -> None:
    path = squashed(save_pt)
    options: dict[str, Any] = {"arch": SQUASHED, "arch_options": SMALL, "attention": "standard"}
    assert crop_row(path, **options) == ("squash", f"timm configuration of {SQUASHED}", "")


def test_a_declared_resize_means_a_centre_crop(save_pt: Save) -> None:
    path = squashed(save_pt)
    options: dict[str, Any] = {"arch": SQUASHED, "arch_options": SMALL, "attention": "standard"}
    expected = ("center", "flag", f"timm configuration of {SQUASHED}: squash")
    assert crop_row(path, resize=36, **options) == expected


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_a_sidecar_decides(save_pt: Save, mode: str) -> None:
    path = squashed(save_pt)
    said = {"arch": SQUASHED, "arch_options": SMALL, "preprocessing": {"resize": 36, "crop_mode": mode}}
    path.with_suffix(".yaml").write_text(yaml.safe_dump(said))
    model = load_model(path, attention="standard")
    assert (model.preprocessing.crop_mode, model.preprocessing.resize) == (mode, 36)
    assert load_model(path, attention="standard", resize=40).preprocessing.crop_mode == mode


def test_nobody_needs_to_declare_a_centre_crop(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts(preprocessing={**PREPROCESSING, "resize": 18}))
    model = load_model(path, interpolation="bicubic")
    assert (model.preprocessing.crop_mode, model.spec.guessed) == ("center", ())
    _, rows = resolve_preprocessing([Source("x", size=8, mean=(0.0,) * 3, std=(1.0,) * 3)], "x")
    assert [row.guessed for row in rows if row.guessed] == [("resize",), ("interpolation",)]


def test_a_sidecar_with_an_unknown_crop_mode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vit.yaml").write_text("preprocessing: {crop_mode: squish}")
    with pytest.raises(CheckpointError) as caught:
        from_sidecar(tmp_path / "vit.yaml")
    assert "'squish'; did you mean 'squash'?" in str(caught.value)


def test_arguments_of_timms_evaluation_are_followed() -> None:
    assert from_args({"crop_mode": "border", "crop_pct": 0.9}).crop_mode == "border"
    assert from_args({"crop_mode": None}).crop_mode is None
    assert from_args({"crop_mode": ["center"]}).crop_mode is None


def test_deits_own_evaluation_crops_the_centre() -> None:
    sources = declared_by_args(vars(deit_args()), ("model", "args")).preprocessing
    assert [source.crop_mode for source in sources] == [None, "center"]


def test_a_module_in_python_takes_a_crop_mode() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    assert Classifier(module, size=8, crop_mode="border").preprocessing.crop_mode == "border"
    with pytest.raises(
        OptionError, match=r"^unknown crop mode 'squish'; did you mean 'squash'\? Available: b"
    ):
        Classifier(module, size=8, crop_mode="squish")
    assert check_preprocessing(8, 8, "bicubic", (0, 0, 0), (1, 1, 1)).crop_mode == "center"


def test_what_else_timm_says_of_evaluation_is_shown() -> None:
    plain = from_timm("vit", CONFIG)
    assert (plain.name, plain.value("resize", 32)) == ("timm configuration of vit", math.floor(32 / 0.9))
    oblong = from_timm("vit", {**CONFIG, "input_size": (3, 64, 48)})
    assert oblong.size is None
    assert oblong.name == "timm configuration of vit (its 48x64 input is not square)"
    tested = from_timm("vit", {**CONFIG, "test_input_size": (3, 40, 40), "test_crop_pct": 1.0})
    assert tested.size == 32
    assert tested.name == "timm configuration of vit (timm tests its weights at 40, crop ratio 1.0)"
