"""Preprocessing that only timm's weights of a bare name give: refused or marked where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import Save, hollow

from robustbench_quest.errors import OptionError
from robustbench_quest.models.architectures import timm_sources
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model

BASE = "vit_base_patch16_224"  # timm has AugReg's, DINO's and MAE's weights under this name
SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3}
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def saved(save_pt: Save, arch: str, classes: int = 1000, **content: Any) -> Path:
    with torch.device("meta"):
        model = timm.create_model(arch, num_classes=classes, **SMALL)
    state = hollow(model)
    return save_pt({"state_dict": state, **content} if content else state)


@pytest.mark.parametrize("classes", [10, 1000])
def test_weights_of_one_name_with_different_means_must_be_told_apart(save_pt: Save, classes: int) -> None:
    path = saved(save_pt, BASE, classes)
    options: dict[str, Any] = {"arch": BASE, "arch_options": SMALL, "attention": "standard"}
    with pytest.raises(OptionError) as caught:
        load_model(path, **options)
    text = str(caught.value)
    assert text.startswith("vit.pt: nothing declares its mean, and timm's weights of that name were trained")
    assert "vit_base_patch16_224.mae" in text.partition("0.485, 0.456, 0.406")[2]
    assert "(0.5, 0.5, 0.5): vit_base_patch16_224.augreg2_in21k_ft_in1k" in text
    assert text.endswith("say which in arch, or give mean and std")
    assert "\n" not in text
    assert inspect_checkpoint(path, **options).problems == (text,)
    with pytest.raises(OptionError, match=r"nothing declares its std, .* say which in arch"):
        load_model(path, **options, mean=IMAGENET["mean"])


def test_a_tag_or_a_declaration_settles_it(save_pt: Save) -> None:
    path = saved(save_pt, BASE)
    options: dict[str, Any] = {"arch_options": SMALL, "attention": "standard"}
    by_tag = load_model(path, arch=f"{BASE}.mae", **options)
    assert (by_tag.preprocessing.mean, by_tag.spec.guessed) == (IMAGENET["mean"], ())
    augreg = load_model(path, arch=f"{BASE}.augreg_in21k_ft_in1k", **options)
    assert augreg.preprocessing.mean == (0.5, 0.5, 0.5)
    by_flag = load_model(path, arch=BASE, **options, **IMAGENET)
    assert by_flag.preprocessing.mean == IMAGENET["mean"]
    path.with_suffix(".yaml").write_text("preprocessing: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}")
    assert load_model(path, arch=BASE, **options).preprocessing.mean == (0.5, 0.5, 0.5)


def test_arguments_that_name_the_architecture_settle_nothing(save_pt: Save) -> None:
    args: dict[str, Any] = {"model": BASE, "mean": None, "std": None}
    options: dict[str, Any] = {"arch_options": SMALL, "attention": "standard"}
    with pytest.raises(OptionError, match="nothing declares its mean"):
        load_model(saved(save_pt, BASE, args=args), **options)
    args |= {key: list(value) for key, value in IMAGENET.items()}
    found = load_model(saved(save_pt, BASE, args=args), **options)
    assert found.preprocessing.mean == IMAGENET["mean"]


def test_weights_that_differ_in_the_crop_only_leave_a_guess(save_pt: Save) -> None:
    arch, options = "deit3_small_patch16_224", {"arch_options": SMALL, "attention": "standard"}
    path = saved(save_pt, arch)
    bare = load_model(path, arch=arch, **options)  # type: ignore[arg-type]
    assert (bare.preprocessing.resize, bare.spec.guessed) == (248, ("resize",))
    tagged = load_model(path, arch=f"{arch}.fb_in22k_ft_in1k", **options)  # type: ignore[arg-type]
    assert (tagged.preprocessing.resize, tagged.spec.guessed) == (224, ())
    declared = load_model(path, arch=arch, resize=256, **options)  # type: ignore[arg-type]
    assert declared.spec.guessed == ()


def test_weights_that_agree_leave_none(save_pt: Save) -> None:
    path = saved(save_pt, "vit_tiny_patch16_224")
    model = load_model(path, arch="vit_tiny_patch16_224", arch_options=SMALL, attention="standard")
    assert (model.preprocessing.mean, model.preprocessing.resize) == ((0.5, 0.5, 0.5), 248)
    assert model.spec.guessed == ()


def test_weights_of_another_number_of_classes_count_where_none_has_this_one() -> None:
    def tags(classes: int) -> set[str]:
        return {source.name.partition(".")[2] for source in timm_sources(BASE, classes)[1:]}

    assert {"mae", "dino", "augreg_in1k"} <= tags(1000)
    assert "augreg_in21k" not in tags(1000)
    assert {"mae", "dino", "augreg_in1k", "augreg_in21k"} <= tags(10)
    assert {source.name for source in timm_sources(f"{BASE}.mae", 10)} == {
        f"timm configuration of {BASE}.mae"
    }
    assert timm_sources("vision_transformer", 10) == []


def test_a_users_model_of_timms_bare_name_is_refused_alike(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import timm\n"
        "def build(name):\n"
        "    return timm.create_model(name, depth=1, embed_dim=24, num_heads=3, num_classes=5)\n"
    )
    options: dict[str, Any] = {"model": f"{tmp_path}/mine.py:build"}
    with pytest.raises(OptionError, match=r"--model mine\.py:build: nothing declares its mean, and timm's"):
        load_model(**options, model_options={"name": BASE})
    tagged = load_model(**options, model_options={"name": f"{BASE}.mae"})
    assert tagged.preprocessing.mean == IMAGENET["mean"]
    declared = load_model(**options, model_options={"name": BASE}, **IMAGENET)
    assert declared.preprocessing.std == IMAGENET["std"]
