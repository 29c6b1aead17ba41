"""What training arguments declare of the model, and which of them are refused."""

from __future__ import annotations

from typing import Any

import pytest
from small_checkpoints import Save, deit_args, hollow, named

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
