"""A choice between state dicts that differ is declared, or made by a convention and said; never silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_checkpoints import Save, State, facts, tiny

from robustbench_quest.errors import OptionError
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model


def other() -> State:
    return {key: tensor + 1 for key, tensor in tiny().state_dict().items()}


@pytest.mark.parametrize("empty", [None, {}, "vit_tiny", {"depth": 12}])
@pytest.mark.parametrize(
    ("named", "left", "kind"),
    [
        ("model", "model_ema", " (the moving average)"),
        ("state_dict", "ema", " (the moving average)"),
        ("model_ema", "ema", " (the moving average)"),
        ("model", "teacher", " (the teacher)"),
        ("teacher", "student", " (the student)"),
        ("model", "generator", ""),
    ],
)
def test_what_stands_in_for_empty_weights_must_be_declared(
    save_pt: Save, named: str, left: str, kind: str, empty: Any
) -> None:
    path = save_pt({named: empty, left: tiny().state_dict(), "rbq": facts()})
    with pytest.raises(OptionError) as caught:
        load_model(path)
    expected = f"the file's {named} holds no weights; to evaluate its {left}{kind}, say weights: {left}"
    assert str(caught.value) == expected
    assert inspect_checkpoint(path).problems == (expected,)
    assert load_model(path, weights=left).spec.weights == left


def test_an_empty_entry_beside_other_raw_weights_decides_nothing(save_pt: Save) -> None:
    path = save_pt({"network": None, "model": {}, "state_dict": tiny().state_dict(), "rbq": facts()})
    assert load_model(path).spec.weights == "state_dict"


def test_an_average_alone_needs_no_declaration(save_pt: Save) -> None:
    path = save_pt({"model_ema": tiny().state_dict(), "rbq": facts()})
    assert load_model(path).spec.weights == "model_ema"


@pytest.mark.parametrize("weights", ["auto", "raw"])
def test_two_raw_state_dicts_that_differ_must_be_told_apart(save_pt: Save, weights: str) -> None:
    path = save_pt({"state_dict": other(), "model": tiny().state_dict(), "rbq": facts()})
    with pytest.raises(OptionError, match=r"differ; say which with weights, one of: model, state_dict$"):
        load_model(path, weights=weights)
    assert load_model(path, weights="state_dict").spec.weights == "state_dict"
    path.with_suffix(".yaml").write_text("weights: model")
    assert load_model(path).spec.weights == "model"


def test_two_averages_that_differ_must_be_told_apart(save_pt: Save) -> None:
    content = {"model": tiny().state_dict(), "model_ema": tiny().state_dict(), "rbq": facts()}
    path = save_pt({**content, "ema": other()})
    assert load_model(path).spec.weights == "model"
    assert load_model(path, weights="ema").spec.weights == "ema"  # a container's own name
    with pytest.raises(OptionError, match=r"one of: model_ema, ema_state_dict$"):
        load_model(save_pt({**content, "ema_state_dict": other()}), weights="ema")


def test_tensors_at_the_top_that_differ_from_a_model_must_be_told_apart(save_pt: Save) -> None:
    path = save_pt({**tiny().state_dict(), "model": other(), "rbq": facts()})
    with pytest.raises(OptionError, match=r"one of: '' \(the file itself\), model$"):
        load_model(path)
    assert load_model(path, weights="").spec.weights == ""


@pytest.mark.parametrize("change", ["type", "name", "nothing"])
def test_the_same_weights_twice_are_no_choice(save_pt: Save, change: str) -> None:
    state = dict(tiny().state_dict())
    copy = {key: tensor.clone() for key, tensor in state.items()}
    if change == "type":
        copy["norm.bias"] = copy["norm.bias"].double()
    if change == "name":
        copy["norm.gain"] = copy.pop("norm.weight")
    path = save_pt({"model": state, "state_dict": copy, "rbq": facts()})
    if change == "nothing":
        model = load_model(path)
        assert dict(model.spec.sources)["weights"] == "raw weights by default; the file also holds state_dict"
        assert torch.equal(model.module.state_dict()["norm.bias"], state["norm.bias"])
    else:
        with pytest.raises(OptionError, match="weights that differ"):
            load_model(path)


def test_raw_weights_stand_before_their_average_and_it_is_said(save_pt: Save) -> None:
    path = save_pt({"model_ema": other(), "model": tiny().state_dict(), "rbq": facts()})
    spec = load_model(path).spec
    assert (spec.weights, spec.guessed) == ("model", ())
    assert dict(spec.sources)["weights"] == "raw weights by default; the file also holds model_ema"
