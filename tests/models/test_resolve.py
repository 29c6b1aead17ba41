"""Which declaration wins and what is said of the others; and that resolving is loading without weights."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import TINY, Save, deit_args, facts, hollow, image, named, random_states, tiny
from torch import Tensor, nn

from robustbench_quest.attention.elliptical import canonical_layers
from robustbench_quest.checkpoints.setting import Setting
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.models.load import load_model, load_request
from robustbench_quest.models.request import ModelRequest
from robustbench_quest.models.resolve import resolve_model

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


USERS = """
import timm
from torch import nn

def build(depth=2):
    return timm.models.VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=depth, num_heads=3,
                                         mlp_ratio=2, num_classes=5)

class Mean(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(x.mean(1, keepdim=True).expand_as(x))
"""
PIXELS: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
REQUESTS: list[dict[str, Any]] = [
    {},
    {"attention": "quest"},
    {"attention": "elliptical", "attention_options": {"layers": 1, "estimator": "median"}},
    {"img_size": 32, "weights": "ema"},
    {"attention": "USERS:Mean", "interpolation": "bilinear", "resize": 20},
    {"model": "USERS:build"},
    {"model": "USERS:build", "attention": "qnorm"},
    {"model": "USERS:build", "model_options": {"depth": 1}, "checkpoint": None, **PIXELS},
]


@pytest.mark.parametrize("options", REQUESTS)
def test_resolving_gives_what_loading_gives(save_pt: Save, tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "users.py").write_text(USERS)
    path = save_pt({"model": tiny().state_dict(), "model_ema": tiny().state_dict(), "rbq": facts()})
    texts = {
        key: value.replace("USERS", str(tmp_path / "users.py"))
        for key, value in options.items()
        if isinstance(value, str)
    }
    request = ModelRequest(**{"checkpoint": str(path), **options, **texts})
    before = random_states()
    found, model = resolve_model(request), load_request(request, "cpu")
    assert random_states() == before
    assert found.spec == model.spec
    assert found.settings == model.explanation
    assert found.trained_on == model.trained_on
    with torch.inference_mode():
        assert resolve_model(request) == found


def test_resolving_allocates_no_weights(save_pt: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ModelRequest(checkpoint=str(save_pt({"model": tiny().state_dict(), "rbq": facts()})))
    devices: set[str] = set()
    register = nn.Module.register_parameter

    def recording(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        devices.update([] if parameter is None else [parameter.device.type])
        register(self, name, parameter)

    monkeypatch.setattr(nn.Module, "register_parameter", recording)
    resolve_model(request)
    assert devices == {"meta"}
    load_request(request, "cpu")
    assert len(devices) == 2  # the recording works


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


def test_eight_resolved_models_hold_no_tensors(save_pt: Save, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(USERS)
    path = str(save_pt({"model": tiny().state_dict(), "rbq": facts()}))
    requests = [ModelRequest(checkpoint=path)] * 6
    requests += [ModelRequest(checkpoint=path, model=f"{tmp_path}/users.py:build")] * 2
    resolve_model(requests[-1])
    before = tensors_alive()
    found = [resolve_model(request) for request in requests]
    assert tensors_alive() == before
    loaded = load_request(requests[0], "cpu")
    assert tensors_alive() > before  # the count works
    assert len(found) == 8
    assert found[0].spec == loaded.spec


PEAK = """
import re, sys
from pathlib import Path
import timm
from robustbench_quest.models.request import ModelRequest
from robustbench_quest.models.resolve import resolve_model

def megabytes(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

before = megabytes("VmRSS")
spec = resolve_model(ModelRequest(sys.argv[1], arch="vit_tiny_patch16_224", attention="standard")).spec
print(megabytes("VmHWM") - before, spec.num_classes)
"""


@pytest.mark.shared
def test_resolving_the_real_vit_takes_under_40_megabytes(real_vit: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell a process's peak memory")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(real_vit)], capture_output=True, text=True, check=True
    )
    added, classes = done.stdout.split()
    assert (float(added) < 40, classes) == (True, "1000"), f"{added} MB"


def test_damage_that_needs_values_shows_when_the_model_is_built(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    state["norm.bias"][0] = float("nan")
    request = ModelRequest(checkpoint=str(save_safetensors(state, facts())))
    assert resolve_model(request).spec.num_classes == 5
    with pytest.raises(CheckpointError, match=r"norm\.bias holds 1 values that are not finite"):
        load_request(request)


def test_a_renamed_file_shows_its_new_name(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    old, new = (save_safetensors(state, facts(), name=f"{name}.safetensors") for name in ("old", "new"))
    specs = [resolve_model(ModelRequest(checkpoint=str(path))).spec for path in (old, new)]
    assert [spec.name for spec in specs] == ["old", "new"]
    assert specs[0].identity() == specs[1].identity()


def test_an_asked_image_size_is_said_to_be_asked_for(save_safetensors: Save) -> None:
    model = load_model(save_safetensors(tiny().state_dict(), facts()), img_size=32)
    source = row(model, "arch options").source
    assert "img_size: flag" in source
    assert "depth" in source.partition("metadata in the file")[0]
