"""Names and options of the variants: what is accepted, in which form it is kept, and what refusals say."""

from __future__ import annotations

from typing import Any

import pytest
import reference
from torch import nn

from robustbench_quest.attention.elliptical import parse_layers
from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import VARIANTS, resolve
from robustbench_quest.errors import OptionError
from robustbench_quest.types import AttentionSpec

NAMES = (
    "standard",
    "quest",
    "qnorm",
    "qknorm-hs",
    "qknorm-ds",
    "qknorm-ln",
    "elliptical",
    "elliptical-quest",
)


def test_the_eight_variants() -> None:
    assert tuple(VARIANTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_declared_parameters_are_those_of_the_built_module(name: str) -> None:
    model = swap_attention(reference.small_vit(), resolve(name))
    plain = {f"{part}.{kind}" for part in ("qkv", "proj") for kind in ("weight", "bias")}
    for block in model.blocks:
        attention = block.attn
        assert {key for key, _ in attention.named_parameters()} - plain == set(VARIANTS[name].parameters)
        assert set(attention.state_dict()) == plain | set(VARIANTS[name].parameters)


@pytest.mark.parametrize("mode", ["l2", "rms", "ln-nobias"])
def test_all_modes_of_dimension_scale_have_the_declared_parameters(mode: str) -> None:
    attention = swap_attention(reference.small_vit(), resolve("qknorm-ds", {"mode": mode})).blocks[0].attn
    extra = {key for key, _ in attention.named_parameters() if not key.startswith(("qkv", "proj"))}
    assert extra == set(VARIANTS["qknorm-ds"].parameters)


def test_shapes_of_the_parameters() -> None:
    shapes = {"logit_scale": (reference.HEADS, 1, 1)}
    for name in NAMES:
        attention = swap_attention(reference.small_vit(), resolve(name)).blocks[0].attn
        for key in VARIANTS[name].parameters:
            assert attention.get_parameter(key).shape == shapes.get(key, (16,))


def test_defaults_are_filled_in_and_sorted() -> None:
    assert resolve("quest") == AttentionSpec("quest", (), 1)
    assert resolve("qknorm-hs") == AttentionSpec("qknorm-hs", (("max_scale", 100.0), ("param", "log")), 1)
    assert resolve("elliptical-quest", {"keys": "ellipse"}).options == (
        ("estimator", "mean"),
        ("keys", "ellipse"),
        ("layers", "1-"),
    )


@pytest.mark.parametrize("value", [50, 50.0, "50", "5e1"])
def test_one_number_has_one_form(value: int | float | str) -> None:
    assert dict(resolve("qknorm-hs", {"max_scale": value}).options)["max_scale"] == 50.0


@pytest.mark.parametrize(
    ("text", "kept"), [("1-", "1-"), (" 1 , 3", "1,3"), ("1 - 11", "1-11"), ("02-3", "2-3"), ("2-2", "2")]
)
def test_one_list_of_layers_has_one_form(text: str, kept: str) -> None:
    assert dict(resolve("elliptical", {"layers": text}).options)["layers"] == kept


def test_layers_are_inclusive_ranges() -> None:
    assert parse_layers("1,3-5,8-") == [(1, 1), (3, 5), (8, None)]


def test_a_single_layer_may_be_given_as_a_number() -> None:
    assert dict(resolve("elliptical", {"layers": 2}).options)["layers"] == "2"


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    (
        "qest",
        {},
        r"unknown attention 'qest'; did you mean 'quest'\? Available: elliptical, .*, or FILE\.py:CLASS",
    ),
    ("", {}, r"unknown attention ''; Available: "),
    ("quest", {"mode": "l2"}, r"unknown option of attention quest 'mode'; Available: none"),
    (
        "qknorm-hs",
        {"maxscale": 3},
        r"unknown option of attention qknorm-hs 'maxscale'; did you mean 'max_scale'\? "
        r"Available: max_scale, param",
    ),
    ("qknorm-hs", {"param": "exp"}, r"attention qknorm-hs: param=exp is not one of log, linear"),
    (
        "qknorm-hs",
        {"max_scale": 0},
        r"max_scale=0 is not a positive number \(largest scale of the log form\)",
    ),
    ("qknorm-hs", {"max_scale": -1.0}, r"max_scale=-1.0 is not a positive number"),
    ("qknorm-hs", {"max_scale": "inf"}, r"max_scale=inf is not a positive number"),
    ("qknorm-hs", {"max_scale": "nan"}, r"max_scale=nan is not a positive number"),
    ("qknorm-hs", {"max_scale": "many"}, r"max_scale=many is not a positive number"),
    ("qknorm-hs", {"max_scale": None}, r"max_scale=None is not a positive number"),
    ("qknorm-ds", {"mode": "l1"}, r"attention qknorm-ds: mode=l1 is not one of l2, rms, ln-nobias"),
    ("qknorm-ds", {"mode": ["l2"]}, r"attention qknorm-ds: mode=\['l2'\] is not one of l2, rms, ln-nobias"),
    ("elliptical", {"estimator": "max"}, r"attention elliptical: estimator=max is not one of mean, median"),
    ("elliptical", {"gradient": "detached"}, r"unknown option of attention elliptical 'gradient'"),
    (
        "elliptical",
        {"keys": "sphere"},
        r"unknown option of attention elliptical 'keys'; Available: estimator, ",
    ),
    ("elliptical-quest", {"keys": "cube"}, r"keys=cube is not one of sphere, ellipse"),
    ("elliptical", {"layers": "0-3"}, r"layers='0-3' names layer 0, which has no previous layer; start at 1"),
    ("elliptical", {"layers": "5-3"}, r"layers='5-3': the range 5-3 runs backwards; write 3-5"),
]
REFUSALS += [
    ("elliptical", {"layers": text}, r"layers='.*' is not a list of layers such as 1-11, 1,3,5 or 1-")
    for text in ("", "all", "-3", "1,,3", "1 3", "1-2-3", "1.5", "²")
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSALS)
def test_refusals_say_what_is_right(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        resolve(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "named"), [("1-4", 4), ("4", 4), ("9-", 9), ("1-99999999999", 99999999999)]
)
def test_layers_that_the_model_does_not_have_are_refused(layers: str, named: int) -> None:
    message = rf"layers='{layers}' names layer {named}; the model has layers 0-3"
    with pytest.raises(OptionError, match=message):
        swap_attention(reference.small_vit(), resolve("elliptical", {"layers": layers}))


def test_a_specification_made_by_hand_is_checked_and_filled_in() -> None:
    model = swap_attention(reference.small_vit(), AttentionSpec("elliptical"))
    assert isinstance(model, nn.Module)
    with pytest.raises(OptionError, match=r"unknown attention 'linear'"):
        swap_attention(reference.small_vit(), AttentionSpec("linear"))
