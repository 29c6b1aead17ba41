"""Which declaration wins, what is said of the others, and what is refused instead of being ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import TINY, Save, deit_args, facts, hollow, image, named, tiny

from robustbench_quest.attention.elliptical import canonical_layers
from robustbench_quest.checkpoints.setting import Setting
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.models.load import load_model

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3}
SWIN = "swin_tiny_patch4_window7_224"


def row(model: Classifier, setting: str) -> Setting:
    return next(row for row in model.explanation if row.name == setting)


def heads(model: Classifier) -> Any:
    return model.module.get_submodule("blocks.0.attn").num_heads


@pytest.mark.parametrize("arch", [None, "vision_transformer"])
def test_declared_options_hold_for_the_same_architecture_by_flag(
    save_safetensors: Save, arch: str | None
) -> None:
    trained = tiny(num_heads=6)
    path = save_safetensors(trained.state_dict(), facts(arch_options={**TINY, "num_heads": 6}))
    model = load_model(path, arch=arch)
    assert heads(model) == 6
    assert row(model, "heads") == Setting("heads", "6", "the model as built")
    assert row(model, "arch options").source == "metadata in the file"
    assert "num_heads=6" in row(model, "arch options").value


def test_options_declared_without_an_architecture_hold_for_any(save_pt: Save) -> None:
    path = save_pt(named("vit_tiny_patch16_224", **{**SMALL, "num_heads": 6}).state_dict())
    path.with_suffix(".yaml").write_text("arch_options: {depth: 1, embed_dim: 24, num_heads: 6}")
    model = load_model(path, arch="vit_tiny_patch16_224.augreg_in21k", attention="standard")
    assert heads(model) == 6
    flag = load_model(path, arch="vit_tiny_patch16_224", arch_options={"num_heads": 3}, attention="standard")
    assert heads(flag) == 3
    assert row(flag, "arch options").others == "sidecar vit.yaml: num_heads=6"
    assert row(flag, "arch options").source == (
        "num_heads: flag; depth, embed_dim: sidecar vit.yaml; num_classes: tensors in the file"
    )


def test_options_hold_for_an_inferred_architecture(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224")
    path = save_pt(hollow(model))
    path.with_suffix(".yaml").write_text("arch_options: {num_heads: 6}")
    loaded = load_model(path, attention="standard")
    assert (heads(loaded), row(loaded, "arch").source) == (6, "inferred from shapes")


def test_options_of_another_architecture_are_left_out(save_pt: Save) -> None:
    path = save_pt(named("vit_tiny_patch16_224", depth=1).state_dict())
    path.with_suffix(".yaml").write_text("arch: vit_small_patch16_224\narch_options: {num_heads: 6}")
    model = load_model(path, arch="vit_tiny_patch16_224", arch_options={"depth": 1}, attention="standard")
    assert heads(model) == 3
    assert row(model, "arch").others == "sidecar vit.yaml: vit_small_patch16_224"
    assert "num_heads" not in row(model, "arch options").text


def test_an_overruled_attention_is_named(save_safetensors: Save) -> None:
    options = {"estimator": "median"}
    path = save_safetensors(tiny().state_dict(), facts(attention="elliptical", attention_options=options))
    path.with_suffix(".yaml").write_text("attention: qnorm")
    model = load_model(path, attention="quest")
    assert row(model, "attention") == Setting(
        "attention", "quest", "flag", "sidecar vit.yaml: qnorm; metadata in the file: elliptical"
    )
    path.with_suffix(".yaml").unlink()
    model = load_model(path, attention_options={"estimator": "mean"})
    found = row(model, "attention")
    assert found.source == "metadata in the file; estimator: flag"
    assert found.others == "metadata in the file: estimator=median"
    assert row(load_model(path), "attention").others == ""


def test_overruled_weights_are_named(save_pt: Save, tmp_path: Path) -> None:
    state = tiny().state_dict()
    path = save_pt({"model": state, "model_ema": state, "rbq": facts()})
    (tmp_path / "vit.yaml").write_text("weights: ema")
    assert row(load_model(path, weights="raw"), "weights").others == "sidecar vit.yaml: ema"


def test_an_attention_that_cannot_be_replaced_stays(save_pt: Save) -> None:
    model = named(SWIN, num_classes=3)
    path = save_pt(model.state_dict())
    loaded = load_model(path, arch=SWIN)
    assert loaded.spec.attention is None
    assert row(loaded, "attention") == Setting("attention", "own", "as the model is built")
    assert row(loaded, "heads").value == "3, 6, 12, 24"
    x = image(224, 1)
    mean, std = (torch.tensor(getattr(loaded.preprocessing, key)).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model((x - mean) / std))
    with pytest.raises(OptionError, match="is not timm's plain attention"):
        load_model(path, arch=SWIN, attention="quest")
    with pytest.raises(OptionError, match="--attention-option needs --attention"):
        load_model(path, arch=SWIN, attention_options={"estimator": "mean"})
    with pytest.raises(OptionError, match="--img-size 256: the model takes 224x224") as caught:
        load_model(path, arch=SWIN, img_size=256)
    assert "--img-size 256 resizes" not in str(caught.value)


def test_a_refused_flag_is_not_advised_again(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(CheckpointError, match=r"declared \(flag\).*; give another --attention$"):
        load_model(path, attention="qknorm-ln")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"img_size": 32, "arch_options": {"img_size": 16}},
            "--img-size 32 and --arch-option img_size=16 differ",
        ),
        ({"img_size": 1_000_000}, "--img-size must be at most 4096 pixels; got 1000000"),
        ({"arch_options": {"img_size": 1_000_000}}, "--arch-option img_size must be at most 4096 pixels"),
    ],
)
def test_image_sizes_that_cannot_be_meant(
    save_safetensors: Save, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        load_model(save_safetensors(tiny().state_dict(), facts()), **options)


def test_the_same_image_size_twice_is_no_contradiction(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    assert load_model(path, img_size=32, arch_options={"img_size": 32}).preprocessing.size == 32


def test_a_prefix_of_an_architecture_lists_what_begins_with_it(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(OptionError) as caught:
        load_model(path, arch="deit_tiny")
    text = str(caught.value)
    assert (
        "did you mean 'deit_tiny_patch16_224'? Available: deit_tiny_distilled_patch16_224, deit_tiny" in text
    )
    assert "deit_small" not in text


def test_any_error_of_a_constructor_is_of_its_options(
    save_safetensors: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no\nheads")

    path = save_safetensors(tiny().state_dict(), facts())
    monkeypatch.setattr(timm.models, "VisionTransformer", failing)
    with pytest.raises(OptionError, match=r"refuses its options \(.*num_heads=3.*\): no heads"):
        load_model(path)


def test_a_distilled_file_with_another_architecture_says_so(save_pt: Save) -> None:
    path = save_pt(named("deit_tiny_distilled_patch16_224", **SMALL).state_dict())
    options: dict[str, Any] = {"arch": "deit_tiny_patch16_224", "arch_options": SMALL}
    for flags in ({}, {"img_size": 224}, {"arch_options": {**SMALL, "img_size": 224}}):
        with pytest.raises(
            CheckpointError, match=r"dist_token is a distilled model's, whose --arch is deit_\*_dist"
        ):
            load_model(path, **{**options, **flags}, attention="standard")


def test_a_deit_file_of_more_entries_is_evaluated_as_deit_does(save_pt: Save) -> None:
    state = named("deit_tiny_patch16_224", **SMALL).state_dict()
    options: dict[str, Any] = {"arch_options": SMALL, "attention": "standard"}
    content = {"model": state, "optimizer": {}, "epoch": 3}
    model = load_model(save_pt(content), arch="deit_tiny_patch16_224", **options)
    assert (model.preprocessing.resize, row(model, "resize").source) == (256, "container: DeiT")
    content["args"] = deit_args(eval_crop_ratio=1.0)
    assert load_model(save_pt(content), **options).preprocessing.resize == 224
    other = load_model(save_pt({"model": state}), arch="vit_tiny_patch16_224", **options)
    assert other.preprocessing.resize == 248


@pytest.mark.parametrize(
    ("text", "count", "kept"),
    [
        ("3,1,2", None, "1-3"),
        ("1-3,2-5", None, "1-5"),
        ("4,4", None, "4"),
        ("1,3", None, "1,3"),
        ("5-,2,9", None, "2,5-"),
        ("1-11", 12, "1-"),
        ("11", 12, "11-"),
        ("1,2-10,11", 12, "1-"),
        ("1-10", 12, "1-10"),
        ("1-12", 12, "1-12"),
    ],
)
def test_a_set_of_layers_has_one_text(text: str, count: int | None, kept: str) -> None:
    assert canonical_layers(text, count) == kept
    assert canonical_layers(kept, count) == kept


def layers_of(text: str) -> set[int]:
    """Return the layers up to 20 that a text names, by splitting it."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        found |= set(range(int(low), (int(high) if high else 20 if dash else int(low)) + 1))
    return found


def test_the_one_text_names_the_same_layers() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        ends = torch.randint(1, 16, (4, 2), generator=generator).sort(dim=1).values.tolist()
        text = ",".join(f"{low}-{high}" for low, high in ends)
        assert layers_of(canonical_layers(text)) == layers_of(text)
