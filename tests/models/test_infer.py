"""Architectures that nothing declares: found by names and shapes, refused where that is not enough."""

from __future__ import annotations

import time
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import Save, State, hollow, tiny

from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.infer import infer
from robustbench_quest.models.load import load_model

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("deit_tiny_distilled_patch16_224", {}),
        ("deit3_small_patch16_224", {"num_classes": 10}),
        ("crossvit_tiny_240", {}),
        ("crossvit_9_dagger_240", {"num_classes": 3}),
    ],
)
def test_a_unique_architecture_is_inferred_and_recorded_as_a_guess(
    save_pt: Save, arch: str, options: dict[str, Any]
) -> None:
    with torch.device("meta"):
        model = timm.create_model(arch, **options)
    spec = load_model(save_pt(hollow(model)), attention="standard").spec
    assert spec.arch == arch
    assert dict(spec.sources)["arch"] == "inferred from shapes"
    assert spec.guessed == (("arch", "resize") if arch.startswith("deit3") else ("arch",))
    assert spec.num_classes == options.get("num_classes", 1000)


def test_twins_of_different_preprocessing_are_refused(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224", num_classes=20)
    path = save_pt(hollow(model))
    with pytest.raises(OptionError) as caught:
        load_model(path, attention="standard")
    text = str(caught.value)
    assert "fit vit_tiny_patch16_224, deit_tiny_patch16_224" in text
    assert "mean: vit_tiny_patch16_224: (0.5, 0.5, 0.5); deit_tiny_patch16_224: (0.485, 0.456, 0.406)" in text
    assert "--arch" in text
    spec = load_model(path, attention="standard", **IMAGENET).spec
    assert spec.arch in ("vit_tiny_patch16_224", "deit_tiny_patch16_224")
    assert spec.guessed == ("arch",)


def test_twins_of_another_image_size_are_refused_too(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224", img_size=384)
    path = save_pt(hollow(model))
    with pytest.raises(
        OptionError, match=r"vit_tiny_patch16_384, deit_tiny_patch16_224.*say which with --arch"
    ):
        load_model(path, attention="standard")


def test_twins_of_different_function_are_refused(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_base_patch32_clip_224", num_classes=2)
    with pytest.raises(
        OptionError, match=r"compute different things .*clip_224, .*clip_quickgelu_224.*give --arch"
    ):
        load_model(save_pt(hollow(model)), attention="standard")


def test_the_image_size_of_the_tensors_chooses_among_architectures() -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_tiny_patch16_384").state_dict()
        odd = timm.create_model("vit_tiny_patch16_384", img_size=160).state_dict()
    assert [candidate.name for candidate in infer(state)] == [
        "vit_tiny_patch16_384",
        "deit_tiny_patch16_224",
    ]
    assert len({candidate.function for candidate in infer(state)}) == 1
    assert len(infer(odd)) == 3


@pytest.mark.parametrize("name", ["crossvit_18_240", "crossvit_15_dagger_408", "deit3_huge_patch14_224"])
def test_uncommon_architectures_are_recognised(name: str) -> None:
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    assert [candidate.name for candidate in infer(state)] == [name]


def test_inference_is_fast() -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_base_patch16_224").state_dict()
    best = min(_seconds(state) for _ in range(2))
    assert best < 2.0


def _seconds(state: State) -> float:
    start = time.process_time()
    assert "deit_base_patch16_224" in [candidate.name for candidate in infer(state)]
    return time.process_time() - start


def test_an_architecture_without_qk_norm_is_inferred_for_a_variant_with_it(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224")
    state = hollow(model)
    for index in range(12):
        state[f"blocks.{index}.attn.logit_scale.weight"] = torch.full((3,), 2.0)
    spec = load_model(save_pt(state), attention_options={"param": "log"}).spec
    assert spec.arch == "deit_tiny_distilled_patch16_224"
    assert spec.attention is not None
    assert spec.attention.name == "qknorm-hs"


def test_shapes_of_no_architecture_are_refused(save_pt: Save) -> None:
    with pytest.raises(CheckpointError, match="tensors are those of no vit, deit, deit3 or crossvit"):
        load_model(save_pt(tiny().state_dict()), attention="standard")
    with pytest.raises(CheckpointError, match="give --arch NAME, or --model"):
        load_model(save_pt({"fc.weight": torch.ones(3, 2)}))
