"""What training arguments declare of the model, and which of them are refused."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import Save, deit_args, hollow, image, named

from robustbench_quest.attention.variants import resolve
from robustbench_quest.checkpoints.training_args import declared_by_args
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3}
OVERLAYERS = "deit_mahala_overlayers_tiny_patch16_224"


def elliptical(**changes: Any) -> Any:
    return declared_by_args({"model": OVERLAYERS, **changes}, ("model", "args"))


def test_timms_model_options_reach_the_architecture(save_pt: Save) -> None:
    model = named("vit_tiny_patch16_224", **{**SMALL, "num_heads": 6})
    args = {"model": "vit_tiny_patch16_224", "model_kwargs": {**SMALL, "num_heads": 6, "qk_norm": None}}
    loaded = load_model(save_pt({"state_dict": model.state_dict(), "args": args}), attention="standard")
    assert loaded.module.get_submodule("blocks.0.attn").num_heads == 6
    rows = {row.name: row for row in loaded.explanation}
    assert rows["heads"].value == "6"
    assert "num_heads=6" in rows["arch options"].value
    assert rows["arch options"].source == (
        "depth, embed_dim, num_heads: args in the file; num_classes: tensors in the file"
    )


def test_timms_pooling_reaches_the_architecture(save_pt: Save) -> None:
    model = named("vit_tiny_patch16_224", global_pool="avg", **SMALL)
    args = {"model": "vit_tiny_patch16_224", "gp": "avg", "model_kwargs": SMALL}
    loaded = load_model(save_pt({"state_dict": model.state_dict(), "args": args}), attention="standard")
    assert dict(loaded.spec.arch_options)["global_pool"] == "avg"
    assert declared_by_args({"model": "vit_tiny_patch16_224", "gp": None}, ()).arch_options == {}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"model_kwargs": {"img_size": [224, 224]}}, "model_kwargs: img_size must be text, a number"),
        ({"model_kwargs": 3}, "model_kwargs must be a mapping; found 3"),
        ({"eval_crop_ratio": 1e-9}, "eval_crop_ratio must be above 0.1 and at most 1; found 1e-09"),
        ({"eval_crop_ratio": 1.5}, "eval_crop_ratio must be above 0.1 and at most 1; found 1.5"),
        ({"crop_pct": 0}, "crop_pct must be above 0.1 and at most 1; found 0"),
        ({"crop_pct": float("nan")}, "crop_pct must be above 0.1 and at most 1; found nan"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        declared_by_args({"model": "vit_tiny_patch16_224", **args}, ("model",))
    assert f"args in the file: {message}" in str(caught.value)


def test_timms_input_size_is_the_last_of_three() -> None:
    found = declared_by_args({"model": "a", "input_size": [3, 192, 192]}, ())
    assert found.preprocessing[0].size == 192
    assert declared_by_args({"model": "a", "input_size": [3, 192, 224]}, ()).preprocessing[0].size is None


@pytest.mark.parametrize(
    "positions", ["1 2 3", "1", 7, [1, "x"], [True, 2], [1.0], [-1, 2], [0, 1], {"a": 1}]
)
def test_positions_that_cannot_be_used_are_named(positions: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        elliptical(M_positions=positions)
    assert f"M_positions must be a list of layers, from 1; found {positions!r}" in str(caught.value)


def test_positions_that_are_absent_are_a_guess(save_pt: Save) -> None:
    state = hollow(named("deit_tiny_patch16_224"))
    args = deit_args(model=OVERLAYERS, M_positions=None)
    model = load_model(save_pt({"model": state, "args": args}))
    assert model.spec.attention == resolve("elliptical", {"layers": "1-"})
    assert model.spec.guessed == ("attention layers",)
    declared = load_model(save_pt({"model": state, "args": args}), attention_options={"layers": "1-5"})
    assert declared.spec.guessed == ()


def test_no_positions_are_standard_attention(save_pt: Save) -> None:
    args = deit_args(model=OVERLAYERS, M_positions=[])
    model = load_model(save_pt({"model": hollow(named("deit_tiny_patch16_224")), "args": args}))
    assert model.spec.attention == resolve("standard")
    assert model.spec.guessed == ()
    row = next(row for row in model.explanation if row.name == "attention")
    assert row.others.startswith("M_positions is empty: M is used in no layer")


def test_one_set_of_layers_has_one_identity(save_pt: Save) -> None:
    state = hollow(named("deit_tiny_patch16_224"))
    args = deit_args(model=OVERLAYERS, M_positions=[11, 10, *range(1, 11)])
    path = save_pt({"model": state, "args": args})
    one = load_model(path).spec
    for layers in ("1-", "1-11", "1,2,3,4,5,6,7,8,9,10,11", "2-,1"):
        assert load_model(path, attention_options={"layers": layers}).spec.identity() == one.identity()
    assert load_model(path, attention_options={"layers": "1-10"}).spec.identity() != one.identity()
    with pytest.raises(OptionError, match="names layer 12"):
        load_model(path, attention_options={"layers": "1-12"})


def test_the_attack_scripts_name_is_the_models() -> None:
    found = declared_by_args({"model": f"{OVERLAYERS}_wrapper", "M_positions": [1]}, ("model", "args"))
    assert (found.arch, found.attention) == ("deit_tiny_patch16_224", "elliptical")


def test_m_from_finite_differences_is_not_elliptical(save_pt: Save) -> None:
    args = deit_args(model="deit_mahala_tiny_patch16_224")
    found = declared_by_args(vars(args), ("model", "args"))
    assert (found.arch, found.attention) == ("deit_tiny_patch16_224", None)
    path = save_pt({"model": hollow(named("deit_tiny_patch16_224")), "args": args})
    assert "does not say which attention" in inspect_checkpoint(path).problems[0]


def mae_args(**changes: Any) -> argparse.Namespace:
    """Return arguments as MAE's main_finetune.py stores them, as far as they matter."""
    values = {
        "model": "vit_base_patch16",
        "input_size": 224,
        "drop_path": 0.1,
        "blr": 5e-4,
        "layer_decay": 0.65,
        "global_pool": True,
        "nb_classes": 7,
        "data_path": "imagenet",
    }
    return argparse.Namespace(**{**values, **changes})


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize(("averaged", "pool"), [(True, "avg"), (False, "token")])
def test_a_file_of_mae_is_built_and_evaluated_as_mae_does(save_pt: Save, averaged: bool, pool: str) -> None:
    model = named("vit_base_patch16_224", num_classes=7, global_pool=pool, **SMALL)
    state = model.state_dict()
    assert ("fc_norm.weight" in state) == averaged
    content = {"model": state, "optimizer": {}, "epoch": 1, "args": mae_args(global_pool=averaged)}
    loaded = load_model(save_pt(content), attention="standard", arch_options=SMALL)
    found, sources, options = loaded.preprocessing, dict(loaded.spec.sources), dict(loaded.spec.arch_options)
    assert (loaded.spec.arch, options["global_pool"]) == ("vit_base_patch16_224", pool)
    assert (options["num_classes"], loaded.spec.num_classes) == (7, 7)
    assert (found.size, found.resize, found.interpolation) == (224, 256, "bicubic")
    assert (found.mean, found.std) == IMAGENET
    assert (sources["arch"], sources["mean"]) == ("args in the file", "container: MAE")
    assert loaded.spec.guessed == ()
    x = image(224, 1)
    with torch.no_grad():
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
        torch.testing.assert_close(loaded(x), model((x - mean) / std), rtol=1e-4, atol=1e-4)


def test_mae_pools_the_patches_and_not_the_class_token() -> None:
    model = named("vit_base_patch16_224", num_classes=7, global_pool="avg", **SMALL)
    assert model.norm(torch.ones(1)).item() == 1  # MAE has no norm before its pooling
    tokens = torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.head(model.fc_norm(tokens[:, 1:].mean(1)))
        torch.testing.assert_close(model.forward_head(tokens), expected)


def test_classes_that_are_not_those_of_the_tensors_are_named(save_pt: Save) -> None:
    state = named("vit_base_patch16_224", num_classes=7, global_pool="avg", **SMALL).state_dict()
    path = save_pt({"model": state, "args": mae_args(nb_classes=1000)})
    with pytest.raises(OptionError, match=r"num_classes=1000 .* head\.weight in the file has 7 rows"):
        load_model(path, attention="standard", arch_options=SMALL)
    given = {**SMALL, "num_classes": 7}
    assert load_model(path, attention="standard", arch_options=given).spec.num_classes == 7


def evaluation(args: dict[str, Any], *entries: str) -> tuple[Any, ...]:
    """Return (architecture, resize, interpolation, statistics, container) that arguments declare."""
    found = declared_by_args(args, ("model", *entries))
    own, *others = found.preprocessing
    size = own.size or 224

    def first(setting: str) -> Any:
        said = (source.value(setting, size) for source in found.preprocessing)
        return next((value for value in said if value is not None), None)

    names = [source.name for source in others]
    return found.arch, first("resize"), first("interpolation"), (first("mean"), first("std")), *names


BEIT = {"model": "beit_base_patch16_224", "data_set": "IMNET", "imagenet_default_mean_and_std": False}
CONVNEXT = {"model": "convnext_tiny", "data_set": "IMNET", "imagenet_default_mean_and_std": True}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (vars(mae_args()), ("vit_base_patch16_224", 256, "bicubic", IMAGENET, "container: MAE")),
        (vars(mae_args(model="vit_large_patch16", input_size=192)), ("vit_large_patch16_224", 219)),
        (vars(mae_args(model="vit_huge_patch14", input_size=448)), ("vit_huge_patch14_224", 448)),
        (BEIT, ("beit_base_patch16_224", 256, "bicubic", HALF, "container: BEiT")),
        ({**BEIT, "input_size": 384}, ("beit_base_patch16_224", 384)),
        ({**BEIT, "crop_pct": 0.95, "input_size": 224}, ("beit_base_patch16_224", 235)),
        (
            {**BEIT, "imagenet_default_mean_and_std": True},
            ("beit_base_patch16_224", 256, "bicubic", IMAGENET),
        ),
        (CONVNEXT, ("convnext_tiny", 256, "bicubic", IMAGENET, "container: ConvNeXt")),
        ({**CONVNEXT, "input_size": 384}, ("convnext_tiny", None, "bicubic")),
        ({"arch": "vit_small", "patch_size": 16}, ("vit_small_patch16_224", 256, "bicubic", IMAGENET)),
        ({"arch": "vit_base", "patch_size": 8}, ("vit_base_patch8_224", 256)),
        (vars(deit_args()), ("deit_tiny_patch16_224", 256, None, IMAGENET, "container: DeiT")),
        ({"model": "vit_base_patch16_224", "global_pool": True}, ("vit_base_patch16_224", None)),
    ],
)
def test_training_codes_are_known_by_their_arguments(args: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = evaluation(args)[: len(expected)]
    assert [x for x, y in zip(found, expected, strict=True) if y] == [y for y in expected if y]


def test_linear_classifiers_of_moco_v3_are_known_by_their_entries(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_224", num_heads=12)
    prefixed = {f"module.{key}": tensor for key, tensor in hollow(model).items()}
    content = {"epoch": 90, "arch": "vit_small", "state_dict": prefixed, "best_acc1": torch.tensor(73.2)}
    spec = load_model(save_pt(content), attention="standard").spec
    assert (spec.arch, dict(spec.arch_options)["num_heads"]) == ("vit_small_patch16_224", 12)
    found = spec.preprocessing
    assert (found.size, found.resize, found.interpolation) == (224, 256, "bilinear")
    assert (found.mean, found.std) == IMAGENET


def test_other_files_with_an_architecture_are_not_moco_v3s() -> None:
    found = declared_by_args({"model": "resnet50"}, ("arch", "best_acc1", "state_dict"))
    assert (found.arch, found.arch_options, len(found.preprocessing)) == ("resnet50", {}, 1)


def test_a_size_that_no_image_has_is_named() -> None:
    with pytest.raises(CheckpointError, match="args in the file: input_size must be at most 65536 pixels"):
        declared_by_args({"model": "a", "input_size": 10**9}, ())


def test_arguments_that_are_huge_are_shown_in_short() -> None:
    with pytest.raises(CheckpointError) as caught:
        elliptical(M_positions=[["x" * 1000] * 1000] * 1000)
    assert len(str(caught.value)) < 500
