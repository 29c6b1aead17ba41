"""timm's named architectures: loaded as published, positions resized when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from small_checkpoints import TINY, Save, State, facts, image, named, tiny
from torch import Tensor

from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.load import load_model

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3}
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def normalised(x: Tensor) -> Tensor:
    mean, std = (torch.tensor(IMAGENET[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (x - mean) / std


def published(state: State, kind: str) -> State:
    """Return timm's state dict under the names of a published code base."""
    if kind == "DeiT-3":
        return {
            key.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): t
            for key, t in state.items()
        }
    if kind == "CrossViT":
        return {
            key.replace("pos_embed_", "pos_embed.").replace("cls_token_", "cls_token."): t
            for key, t in state.items()
        }
    return state


@pytest.mark.parametrize(
    ("arch", "options", "kind", "side"),
    [
        ("deit_tiny_patch16_224", SMALL, "DeiT", 224),
        ("deit_tiny_distilled_patch16_224", SMALL, "DeiT", 224),
        ("deit3_small_patch16_224", SMALL, "DeiT-3", 224),
        ("crossvit_tiny_240", {}, "CrossViT", 240),
    ],
)
def test_published_files_give_timms_logits(
    save_pt: Save, arch: str, options: dict[str, Any], kind: str, side: int
) -> None:
    model = named(arch, num_classes=7, **options)
    path = save_pt({"model": published(model.state_dict(), kind)})
    loaded = load_model(path, arch=arch, arch_options=options, attention="standard")
    x = image(side, 1)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(normalised(x)), rtol=0, atol=1e-4)
    assert loaded.num_classes == 7
    # timm has two sets of weights of DeiT-3's name, with different crops.
    assert loaded.spec.guessed == (("resize",) if kind == "DeiT-3" else ())
    quest = load_model(path, arch=arch, arch_options=options, attention="quest")
    assert (quest(x) - loaded(x)).abs().max() > 1e-3


def test_an_architecture_without_attention_needs_no_declaration(save_pt: Save) -> None:
    model = named("resnet10t", num_classes=4)
    loaded = load_model(save_pt(model.state_dict()), arch="resnet10t", img_size=64)
    assert loaded.spec.attention is None
    assert loaded.preprocessing.size == 64
    x = image(64)
    mean, std = (torch.tensor(getattr(loaded.preprocessing, key)).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model((x - mean) / std))


def test_positions_of_no_square_grid_are_refused(save_pt: Save) -> None:
    state = named("deit_tiny_patch16_224", **SMALL).state_dict()
    state["pos_embed"] = torch.zeros(1, 100, 24)
    with pytest.raises(
        CheckpointError, match="pos_embed has 100 entries, which are no square grid and 1 extra"
    ):
        load_model(save_pt(state), arch="deit_tiny_patch16_224", arch_options=SMALL, attention="standard")


def test_the_image_size_comes_from_the_positions(save_pt: Save) -> None:
    model = named("deit_tiny_patch16_224", img_size=96, **SMALL)
    path = save_pt(model.state_dict())
    loaded = load_model(path, arch="deit_tiny_patch16_224", arch_options=SMALL, attention="standard")
    assert loaded.preprocessing.size == 96
    assert dict(loaded.spec.sources)["size"] == "the model's own input size"
    x = image(96)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(normalised(x)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "extra"),
    [("deit_tiny_patch16_224", 1), ("deit_tiny_distilled_patch16_224", 2), ("deit3_small_patch16_224", 0)],
)
def test_positions_are_resized_when_asked_and_it_is_said(save_pt: Save, arch: str, extra: int) -> None:
    state = named(arch, **SMALL).state_dict()
    options: dict[str, Any] = {"arch": arch, "arch_options": SMALL, "attention": "standard"}
    loaded = load_model(save_pt(state), img_size=64, **options)
    found = loaded.module.state_dict()["pos_embed"]
    grid = state["pos_embed"][:, extra:].transpose(1, 2).reshape(1, 24, 14, 14)
    by_hand = F.interpolate(grid, size=(4, 4), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, torch.cat([state["pos_embed"][:, :extra], by_hand], 1))
    sources = dict(loaded.spec.sources)
    assert sources["position embeddings"] == ("because of --img-size: pos_embed from 196 to 4x4 patches")
    assert loaded.preprocessing.size == 64
    assert loaded(image(64)).shape == (2, 1000)
    same = load_model(save_pt(state), img_size=224, **options)
    assert "position embeddings" not in dict(same.spec.sources)
    assert torch.equal(same.module.state_dict()["pos_embed"], state["pos_embed"])


def test_crossvits_positions_are_resized_in_both_branches(save_pt: Save) -> None:
    path = save_pt(named("crossvit_tiny_240", num_classes=3).state_dict())
    options: dict[str, Any] = {"arch": "crossvit_tiny_240", "attention": "standard"}
    loaded = load_model(path, img_size=480, **options)
    assert loaded(image(480, 1)).shape == (1, 3)
    text = str(dict(loaded.spec.sources)["position embeddings"])
    assert "pos_embed_0 from 400 to 40x40" in text
    assert "pos_embed_1 from 196 to 28x28" in text
    with pytest.raises(OptionError, match="--img-size 250 is not a whole number of patches of 12 pixels"):
        load_model(path, img_size=250, **options)
    with pytest.raises(OptionError) as caught:
        load_model(path, img_size=252, **options)
    assert str(caught.value) == (
        "--img-size 252 (scaled to 235) is not a whole number of patches of 16 pixels; give a multiple of "
        "the patch"
    )
    assert load_model(path, img_size=360, **options)(image(360, 1)).shape == (1, 3)


def test_preprocessing_of_another_size_is_refused_without_img_size(save_safetensors: Save) -> None:
    other = {"mean": [0.5] * 3, "std": [0.5] * 3, "size": 32, "resize": 0}
    path = save_safetensors(tiny().state_dict(), facts(preprocessing=other))
    with pytest.raises(
        OptionError, match="gives 32x32 images and the model takes 16x16; --img-size 16 keeps"
    ):
        load_model(path)
    assert load_model(path, img_size=32).preprocessing.size == 32
    assert load_model(path, img_size=16).preprocessing.size == 16


def test_an_embedded_size_can_be_resized(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    spec = load_model(path, img_size=32).spec
    assert dict(spec.arch_options) == {**TINY, "img_size": 32}
    assert spec.preprocessing.resize == 0


def test_the_real_vit_equals_timm(real_vit: Path) -> None:
    model = load_model(real_vit, arch="vit_tiny_patch16_224", attention="standard")
    reference = timm.create_model("vit_tiny_patch16_224").eval()
    reference.load_state_dict(load_file(real_vit))
    x = image(224)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference((x - 0.5) / 0.5), rtol=0, atol=1e-4)
    found = model.preprocessing
    assert (found.size, found.resize, found.mean, found.std) == (224, 248, (0.5,) * 3, (0.5,) * 3)


def test_the_real_vit_must_be_declared(real_vit: Path) -> None:
    with pytest.raises(OptionError, match="vit_tiny_patch16_224, deit_tiny_patch16_224"):
        load_model(real_vit)
    with pytest.raises(OptionError, match="standard, quest, qnorm, elliptical, elliptical-quest"):
        load_model(real_vit, arch="vit_tiny_patch16_224")
