"""``inspect_checkpoint``: everything that is known of a file, without loading it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from rich.console import Console
from small_checkpoints import Save, deit_args, facts, hollow, random_states, tiny
from torch import nn

from robustbench_quest.cli.inspection import print_inspection
from robustbench_quest.errors import CheckpointError
from robustbench_quest.models.inspect import Inspection, inspect_checkpoint
from robustbench_quest.models.load import load_model

FIVE = ("standard", "quest", "qnorm", "elliptical", "elliptical-quest")
ONE = torch.ones(1)


def text_of(found: Inspection, name: str) -> str | None:
    setting = found.setting(name)
    return None if setting is None else setting.text


def source_of(found: Inspection, name: str) -> str | None:
    setting = found.setting(name)
    return None if setting is None else setting.source


def printed(found: Inspection) -> str:
    text = io.StringIO()
    print_inspection(found, Console(file=text, width=60, highlight=False))
    return text.getvalue()


def test_a_file_that_loads(save_safetensors: Save) -> None:
    model = tiny("quest")
    path = save_safetensors(model.half().state_dict(), facts(attention="quest"))
    found = inspect_checkpoint(path)
    spec = load_model(path).spec
    assert found.problems == ()
    assert (found.path, found.format, found.sha256) == (str(path), "safetensors", spec.checkpoint)
    assert found.containers == {"the file itself": len(model.state_dict())}
    assert found.kind == "classifier"
    assert found.arch_candidates == ("vision_transformer",)
    assert found.attention_candidates == FIVE
    assert text_of(found, "attention") == "quest"
    assert (found.num_classes, found.image_size) == (5, 16)
    assert found.positions == ("pos_embed: 2x2 patches and 1 extra",)
    assert found.tensors == len(model.state_dict())
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.dtypes == ("float16",)
    assert {row.name: row.text for row in found.settings[-6:]} == {
        "size": "16",
        "resize": "0",
        "crop_mode": "center",
        "interpolation": "bicubic",
        "mean": "0.5, 0.4, 0.3",
        "std": "0.2, 0.25, 0.3",
    }
    assert found.settings == load_model(path).explanation
    assert tuple((row.name, row.source) for row in found.settings) == spec.sources


def test_it_is_plain_data(save_safetensors: Save) -> None:
    found = inspect_checkpoint(save_safetensors(tiny().state_dict(), facts()))
    again = json.loads(json.dumps(found.as_dict()))
    assert again["settings"][0]["name"] == "name"
    assert {row["name"]: row["value"] for row in again["settings"]}["mean"] == [0.5, 0.4, 0.3]
    assert again["attention_candidates"] == list(FIVE)


def test_what_is_ambiguous_is_listed_with_what_is_known(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    found = inspect_checkpoint(save_pt(hollow(model)))
    assert found.arch_candidates == ("vit_tiny_patch16_224", "deit_tiny_patch16_224")
    assert (found.num_classes, found.image_size) == (10, 224)
    assert found.positions == ("pos_embed: 14x14 patches and 1 extra",)
    assert text_of(found, "attention") is None
    assert len(found.problems) == 2
    assert "--arch" in found.problems[0]
    assert "--attention" in found.problems[1]


def test_options_settle_what_is_ambiguous(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    found = inspect_checkpoint(
        save_pt(hollow(model)), arch="deit_tiny_patch16_224", attention="qnorm", img_size=96
    )
    assert found.problems == ()
    assert (text_of(found, "attention"), found.image_size) == ("qnorm", 96)
    assert found.positions == ("pos_embed: 6x6 patches and 1 extra",)


def test_no_model_weights_are_allocated(save_pt: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224")
    content = {"model": hollow(model), "args": deit_args(model="deit_tiny_distilled_patch16_224")}
    devices: set[str] = set()
    register = nn.Module.register_parameter

    def recording(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            devices.add(parameter.device.type)
        register(self, name, parameter)

    monkeypatch.setattr(nn.Module, "register_parameter", recording)
    path = save_pt(content)
    assert inspect_checkpoint(path, attention="qnorm").problems == ()
    assert devices == {"meta"}
    load_model(path, attention="qnorm")
    assert len(devices) == 2  # the recording works


def test_containers_and_the_chosen_one(save_pt: Save) -> None:
    state = tiny().state_dict()
    path = save_pt({"model_ema": state, "model": state, "rbq": facts()})
    found = inspect_checkpoint(path)
    assert found.containers == {"model_ema": len(state), "model": len(state)}
    assert (text_of(found, "weights"), source_of(found, "weights")) == (
        "model",
        "raw weights by default; the file also holds model_ema",
    )
    assert text_of(inspect_checkpoint(path, weights="ema"), "weights") == "model_ema"
    wrong = inspect_checkpoint(path, weights="emma")
    assert wrong.setting("weights") is None
    assert "unknown weights 'emma'" in wrong.problems[0]


def test_a_misfit_says_why(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    del state["norm.bias"]
    path = save_safetensors(state, facts())
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert inspect_checkpoint(path).problems == (str(caught.value),)


def test_damage_and_contradictions_are_said(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    state["norm.bias"][0] = float("nan")
    found = inspect_checkpoint(save_safetensors(state, facts(attention="qknorm-ln")))
    assert "attention qknorm-ln was declared" in found.problems[0]
    assert "norm.bias holds 1 values that are not finite" in found.problems[-1]


def test_a_bad_sidecar_is_said(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    path.with_suffix(".yaml").write_text("atention: quest")
    assert "unknown key 'atention'" in inspect_checkpoint(path).problems[0]


def test_a_self_supervised_backbone_is_described_and_refused(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=0)
    backbone = {f"backbone.{key}": tensor for key, tensor in hollow(model).items()}
    teacher = {**backbone, "backbone.masked_embed": ONE, "head.last_layer.weight_g": ONE}
    found = inspect_checkpoint(save_pt({"teacher": teacher, "student": teacher, "epoch": 1}))
    assert (found.kind, text_of(found, "weights")) == ("iBOT or DINO", "teacher")
    assert found.arch_candidates == ("deit_tiny_distilled_patch16_224",)
    assert found.dropped == ("backbone.masked_embed",)
    assert "no classifier head" in found.problems[0]
    assert len(found.problems) == 1


def test_a_segmentation_model_is_described_and_refused(save_pt: Save) -> None:
    found = inspect_checkpoint(save_pt({"model": {"encoder.norm.weight": ONE, "decoder.head.weight": ONE}}))
    assert found.kind == "Segmenter"
    assert "segmentation decoder" in found.problems[0]
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224")
    encoder = {f"encoder.{key}": tensor for key, tensor in hollow(model).items()}
    found = inspect_checkpoint(save_pt({"model": {**encoder, "decoder.blocks.0.attn.qkv.weight": ONE}}))
    assert found.arch_candidates == ("deit_tiny_distilled_patch16_224",)


@pytest.mark.parametrize("arch", [None, "deit_tiny_patch16_224"])
def test_a_backbone_without_a_head_is_described(save_pt: Save, arch: str | None) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224", num_classes=0)
    found = inspect_checkpoint(save_pt(hollow(model)), arch=arch, attention="standard")
    assert found.tensors == len(model.state_dict())
    assert found.arch_candidates[-1] == "deit_tiny_patch16_224"
    assert any("no classifier head" in problem for problem in found.problems)
    assert text_of(found, "attention") == "standard"
    assert found.problems[-1] in printed(found)


@pytest.mark.parametrize("attention", ["standard", "qknorm-ds"])
def test_a_misfit_is_said_even_where_the_attention_is_not_known(
    save_safetensors: Save, attention: str
) -> None:
    state = tiny(attention).state_dict()
    del state["norm.bias"]
    bare = {key: value for key, value in facts().items() if key != "attention"}
    attention_problem, misfit = inspect_checkpoint(save_safetensors(state, bare)).problems
    assert "attention" in attention_problem
    assert misfit.endswith("does not fit vision_transformer: 1 missing (norm.bias (24,))")


def test_keys_that_collide_are_said_with_what_is_known(save_pt: Save) -> None:
    found = inspect_checkpoint(save_pt({"encoder.weight": ONE, "backbone.weight": ONE}))
    assert (text_of(found, "weights"), found.tensors) == ("the file itself", 2)
    assert "encoder.weight and backbone.weight both become weight" in found.problems[0]


def test_an_attention_that_stays_is_called_own(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=3)
    path, arch = save_pt(hollow(model)), "swin_tiny_patch4_window7_224"
    found = inspect_checkpoint(path, arch=arch)
    assert (text_of(found, "attention"), found.problems) == ("own", ())
    found = inspect_checkpoint(path, arch=arch, attention="quest")
    assert text_of(found, "attention") is None
    assert len(found.problems) == 1
    assert "not timm's plain attention" in found.problems[0]


def test_something_else_entirely_is_described(save_pt: Save) -> None:
    found = inspect_checkpoint(save_pt({"state_dict": {"fc.weight": torch.ones(2, 3)}}))
    assert (found.tensors, found.parameters, found.arch_candidates) == (1, 6, ())
    assert found.attention_candidates == ()
    assert len(found.problems) == 1
    assert "give --arch NAME, or --model" in found.problems[0]


def test_a_file_that_cannot_be_read_raises(tmp_path: Path) -> None:
    path = tmp_path / "vit.pt"
    path.write_text("<!doctype html>")
    with pytest.raises(CheckpointError, match="HTML page"):
        inspect_checkpoint(path)


def test_random_states_are_left_as_they_were(save_pt: Save) -> None:
    path = save_pt({"model": tiny().state_dict(), "rbq": facts()})
    before = random_states()
    inspect_checkpoint(path)
    assert random_states() == before


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("weights", "the file itself  (the only state dict in the file)"),
        ("architecture", "vision_transformer  (metadata in the file)"),
        ("attention by keys", ", ".join(FIVE)),
        ("attention", "elliptical(estimator=mean,layers=1-)  (metadata in the file)"),
        ("heads", "3  (the model as built)"),
        ("classes", "5"),
        ("image size", "16"),
        ("positions", "pos_embed: 2x2 patches and 1 extra"),
        ("dtype", "float32"),
        ("mean", "0.5, 0.4, 0.3  (metadata in the file)"),
        ("loads", "yes"),
    ],
)
def test_printing_gives_one_line_per_fact(save_safetensors: Save, label: str, value: str) -> None:
    text = printed(inspect_checkpoint(save_safetensors(tiny().state_dict(), facts(attention="elliptical"))))
    assert f"{label:<19}{value}\n" in text


def test_printing_problems_and_brackets(save_safetensors: Save) -> None:
    bare: dict[str, Any] = {key: value for key, value in facts().items() if key != "attention"}
    found = inspect_checkpoint(save_safetensors(tiny().state_dict(), bare, name="[red]vit[0].safetensors"))
    lines = printed(found).splitlines()
    assert lines[0].endswith("/[red]vit[0].safetensors")
    assert lines[-1].startswith("does not load      [red]vit[0].safetensors does not say which attention")
    assert "attention          not known" in lines
    assert "interpolation      bicubic  (default)" in lines
