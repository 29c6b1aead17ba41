"""Which state dict of a file is used, and how its keys become timm's."""

from __future__ import annotations

import re

import pytest
import torch
from small_checkpoints import Save, State, facts, tiny
from torch.optim.swa_utils import AveragedModel

from robustbench_quest.checkpoints.file import read_checkpoint
from robustbench_quest.checkpoints.state_dict import (
    CLASSIFIER,
    MMSEG,
    SEGMENTER,
    SELF_SUPERVISED,
    normalise,
    timm_name,
)
from robustbench_quest.checkpoints.weights import choose_container
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model

ONE = torch.ones(1)
OPTIMIZER = {"state": {0: {"exp_avg": ONE}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


def test_optimizers_losses_and_scalers_are_no_containers(save_pt: Save) -> None:
    content = {
        "model": {"head.weight": ONE},
        "model_ema": {"head.weight": ONE},
        "optimizer": OPTIMIZER,
        "lr_scheduler": {"last_epoch": 3},
        "scaler": {},
        "ibot_loss": {"center": ONE, "center2": ONE},
        "epoch": 3,
    }
    assert list(read_checkpoint(save_pt(content)).containers) == ["model", "model_ema"]


def test_a_state_dict_under_another_name_is_found(save_pt: Save) -> None:
    content = {"generator": {"head.weight": ONE}, "loss": ONE}
    assert list(read_checkpoint(save_pt(content)).containers) == ["generator"]


@pytest.mark.parametrize("name", ["model", "state_dict", "model_ema", "teacher"])
@pytest.mark.parametrize("extra", [{"extra_state": 3}, {"extra_state": {"scale": ONE}}])
def test_a_model_of_more_than_tensors_is_refused_not_skipped(save_pt: Save, name: str, extra: object) -> None:
    assert isinstance(extra, dict)
    content = {name: {"head.weight": ONE, **extra}, "ema": {"head.weight": ONE}}
    with pytest.raises(
        CheckpointError, match=rf"{name}\['extra_state'\] is a (int|dict), expected a state dict"
    ):
        read_checkpoint(save_pt(content))


def test_a_model_of_nested_state_dicts_is_refused_not_skipped(save_pt: Save) -> None:
    content = {"model": {"encoder": {"head.weight": ONE}}, "model_ema": {"head.weight": ONE}}
    with pytest.raises(CheckpointError, match=r"model\['encoder'\] is a dict"):
        read_checkpoint(save_pt(content))


def test_settings_under_a_models_name_are_no_state_dict(save_pt: Save) -> None:
    content = {"model": {"depth": 12}, "network": None, "state_dict": {"head.weight": ONE}}
    assert list(read_checkpoint(save_pt(content)).containers) == ["state_dict"]


def test_tensors_at_the_top_beside_another_state_dict_are_the_raw_weights(save_pt: Save) -> None:
    raw, ema = tiny(), tiny()
    with torch.no_grad():
        ema.get_parameter("head.bias").add_(1)
    path = save_pt({**raw.state_dict(), "ema": ema.state_dict(), "rbq": facts()})
    assert list(read_checkpoint(path).containers) == ["", "ema"]
    loaded = load_model(path)
    assert torch.equal(loaded.module.state_dict()["head.bias"], raw.state_dict()["head.bias"])
    assert dict(loaded.spec.sources)["weights"] == "raw weights by default; the file also holds ema"


@pytest.mark.parametrize(
    ("names", "said"), [(("teacher", "student"), "the teacher by"), (("ema", "odd"), "the moving average by")]
)
def test_weights_are_called_what_they_are(save_pt: Save, names: tuple[str, ...], said: str) -> None:
    path = save_pt({name: tiny().state_dict() for name in names} | {"rbq": facts()})
    assert str(dict(load_model(path).spec.sources)["weights"]).startswith(said)


@pytest.mark.parametrize(
    ("names", "weights", "chosen"),
    [
        (("",), "auto", ""),
        (("model_ema", "model"), "auto", "model"),
        (("state_dict_ema", "state_dict"), "auto", "state_dict"),
        (("model_ema",), "auto", "model_ema"),
        (("student", "teacher"), "auto", "teacher"),
        (("odd",), "auto", "odd"),
        (("model", "model_ema"), "ema", "model_ema"),
        (("model", "model_ema"), "raw", "model"),
        (("student", "teacher"), "ema", "teacher"),
        (("student", "teacher"), "raw", "student"),
        (("model", "odd"), "odd", "odd"),
    ],
)
def test_the_choice_of_weights(names: tuple[str, ...], weights: str, chosen: str) -> None:
    assert choose_container({name: {"head.weight": ONE} for name in names}, weights) == chosen


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        (("model",), "ema", "no ema weights; give --weights with one of: model"),
        (("model_ema",), "raw", "no raw weights; give --weights with one of: model_ema"),
        (("", "x"), "ema", "one of: the file itself, x"),
        (("one", "two"), "auto", "no known weights; give --weights with one of: one, two"),
        (("model", "model_ema"), "emma", "did you mean 'ema'\\? Available: auto, ema, model, model_ema, raw"),
    ],
)
def test_weights_that_are_not_there(names: tuple[str, ...], weights: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_container({name: {"head.weight": ONE} for name in names}, weights)


def test_raw_and_average_are_told_apart_and_recorded(save_pt: Save) -> None:
    raw, ema = tiny(), tiny()
    with torch.no_grad():
        ema.get_parameter("head.bias").add_(1)
    path = save_pt({"state_dict": raw.state_dict(), "state_dict_ema": ema.state_dict(), "rbq": facts()})
    x = torch.zeros(1, 3, 16, 16)
    chosen = {
        weights: load_model(path, weights=weights) for weights in ("auto", "raw", "ema", "state_dict_ema")
    }
    assert [model.spec.weights for model in chosen.values()] == [
        "state_dict",
        "state_dict",
        "state_dict_ema",
        "state_dict_ema",
    ]
    torch.testing.assert_close(chosen["ema"](x), chosen["raw"](x) + 1)
    assert torch.equal(chosen["auto"](x), chosen["raw"](x))
    sources = dict(chosen["auto"].spec.sources)
    assert sources["weights"] == "raw weights by default; the file also holds state_dict_ema"
    assert dict(chosen["ema"].spec.sources)["weights"] == "flag; the file also holds state_dict"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("blocks.0.norm1.weight", "blocks.0.norm1.weight"),
        ("module.blocks.0.norm1.weight", "blocks.0.norm1.weight"),
        ("_orig_mod.module.norm.weight", "norm.weight"),
        ("module.backbone.norm.weight", "norm.weight"),
        ("encoder.cls_token", "cls_token"),
        ("blocks.11.gamma_1", "blocks.11.ls1.gamma"),
        ("blocks.3.gamma_2", "blocks.3.ls2.gamma"),
        ("pos_embed.1", "pos_embed_1"),
        ("cls_token.0", "cls_token_0"),
        ("blocks.2.attn.logit_scale.weight", "blocks.2.attn.logit_scale"),
        ("blocks.2.attn.logit_scale", "blocks.2.attn.logit_scale"),
        ("pos_embed", "pos_embed"),
        ("modules.weight", "modules.weight"),
    ],
)
def test_names_become_timms(key: str, name: str) -> None:
    assert timm_name(key) == name


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1), (3, 1), (1, 3, 1, 1)])
def test_a_logit_scale_gets_swins_shape(shape: tuple[int, ...]) -> None:
    values = torch.arange(3.0)
    found = normalise({"blocks.0.attn.logit_scale.weight": values.view(shape)}).tensors
    assert torch.equal(found["blocks.0.attn.logit_scale"], values.view(3, 1, 1))


def test_two_keys_that_become_one_are_an_error() -> None:
    with pytest.raises(
        CheckpointError, match=r"module\.norm\.weight and norm\.weight both become norm\.weight"
    ):
        normalise({"module.norm.weight": ONE, "norm.weight": ONE})


@pytest.mark.parametrize(
    ("keys", "containers", "kind"),
    [
        (("head.weight", "blocks.0.norm1.weight"), ("model",), CLASSIFIER),
        (("encoder.norm.weight", "encoder.head.weight", "decoder.cls_emb"), ("model",), SEGMENTER),
        (("module.encoder.norm.weight", "module.decoder.head.weight"), ("model",), SEGMENTER),
        (("_orig_mod.module.encoder.norm.weight", "_orig_mod.module.decoder.cls_emb"), ("model",), SEGMENTER),
        (("module._orig_mod.model.decoder.cls_emb",), ("model",), SEGMENTER),
        (("_orig_mod.module.decode_head.conv_seg.weight",), ("state_dict",), MMSEG),
        (("backbone.ln1.weight", "decode_head.conv_seg.weight"), ("state_dict",), MMSEG),
        (("backbone.layers.0.attn.attn.in_proj_weight",), ("state_dict",), MMSEG),
        (
            ("backbone.norm.weight", "head.mlp.0.weight", "head.last_layer.weight"),
            ("teacher",),
            SELF_SUPERVISED,
        ),
        (("norm.weight", "masked_embed"), ("",), SELF_SUPERVISED),
        (("module.backbone.norm.weight",), ("student", "teacher"), SELF_SUPERVISED),
        (("backbone.norm.weight", "head.weight"), ("teacher",), CLASSIFIER),
    ],
)
def test_what_kind_of_model_a_file_holds(
    keys: tuple[str, ...], containers: tuple[str, ...], kind: str
) -> None:
    assert normalise(dict.fromkeys(keys, ONE), containers).kind == kind


def test_mask_tokens_are_dropped_for_self_supervised_files_only() -> None:
    state = {"backbone.masked_embed": ONE, "backbone.norm.weight": ONE, "head.weight": ONE}
    found = normalise(state, ("teacher",))
    assert found.dropped == ("backbone.masked_embed",)
    assert set(found.tensors) == {"norm.weight", "head.weight"}
    kept = normalise({"mask_token": ONE, "head.weight": ONE}, ("model",))
    assert kept.dropped == ()
    assert "mask_token" in kept.tensors


def prefixed(state: State, prefix: str) -> State:
    return {prefix + key: tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "backbone.", "encoder.", "model.", "module.backbone.", "_orig_mod.module."],
)
def test_prefixes_of_wrappers_load(save_pt: Save, prefix: str) -> None:
    model = tiny()
    path = save_pt({"model": prefixed(model.state_dict(), prefix), "rbq": facts()})
    loaded = load_model(path).module.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in model.state_dict().items())


SEGMENTATION = {
    "Segmenter": {"encoder.head.weight": ONE, "encoder.norm.weight": ONE, "decoder.cls_emb": ONE},
    "mmseg": {"backbone.layers.0.attn.attn.in_proj_weight": ONE, "decode_head.conv_seg.weight": ONE},
}


@pytest.mark.parametrize("name", SEGMENTATION)
def test_segmentation_models_are_refused_by_name(save_pt: Save, name: str) -> None:
    path = save_pt({"model": SEGMENTATION[name]})
    with pytest.raises(
        CheckpointError, match=rf"{name} segmentation model .* segmentation decoder, not a classifier"
    ):
        load_model(path, arch="deit_tiny_patch16_224", attention="standard")


@pytest.mark.parametrize("container", ["teacher", "student"])
def test_self_supervised_backbones_are_refused_with_the_reason(save_pt: Save, container: str) -> None:
    backbone = {key: tensor for key, tensor in tiny().state_dict().items() if not key.startswith("head.")}
    prefix = "module.backbone." if container == "student" else "backbone."
    state = {**prefixed(backbone, prefix), prefix + "masked_embed": ONE, "head.last_layer.weight": ONE}
    path = save_pt({"teacher": state, "student": state})
    with pytest.raises(CheckpointError, match=r"no classifier head\. Train a linear head"):
        load_model(path, arch="vit_tiny_patch16_224", attention="standard", weights=container)
    with pytest.raises(CheckpointError, match=r"no classifier head: vit_tiny_patch16_224 needs head\.weight"):
        load_model(save_pt(backbone), arch="vit_tiny_patch16_224", attention="standard")


WRAPPED = [
    "module.blocks.0._orig_mod.attn.qkv.weight",
    "_orig_mod.blocks.0.attn._orig_mod.qkv.weight",
    "blocks.0._fsdp_wrapped_module.attn.qkv.weight",
    "_fsdp_wrapped_module._fpw_module.blocks.0._fsdp_wrapped_module._checkpoint_wrapped_module.attn.qkv.weight",
    "model.blocks.0._checkpoint_wrapped_module.attn.qkv.weight",
    "_forward_module.model.blocks.0.attn.qkv.weight",
    "blocks.0.module.attn.module.qkv.weight",
]


@pytest.mark.parametrize("key", WRAPPED)
def test_wrappers_inside_a_key_are_undone(key: str) -> None:
    assert timm_name(key) == "blocks.0.attn.qkv.weight"


@pytest.mark.parametrize(
    "key", ["stages.0.blocks.0.mixer.module.0.weight", "a.my_orig_mod.b", "_orig_module.b"]
)
def test_real_names_like_those_of_wrappers_are_kept(key: str) -> None:
    assert timm_name(key) == key


def between(state: State, wrapper: str) -> State:
    """Return the state dict of a model of which each block is wrapped."""
    return {re.sub(r"^(blocks\.\d+\.)", rf"\1{wrapper}.", key): tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "wrapper", ["_orig_mod", "_fsdp_wrapped_module._checkpoint_wrapped_module", "module"]
)
def test_a_model_of_wrapped_blocks_loads(save_pt: Save, wrapper: str) -> None:
    model = tiny()
    path = save_pt({"model": prefixed(between(model.state_dict(), wrapper), "module."), "rbq": facts()})
    loaded = load_model(path).module.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in model.state_dict().items())


def test_keys_that_become_one_without_a_wrapper_inside_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="two keys of the file mean one tensor"):
        normalise({"blocks.0._orig_mod.norm1.weight": ONE, "blocks.0.norm1.weight": ONE})


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_the_count_of_a_moving_average_is_left_out_and_said(save_pt: Save, wrapper: str) -> None:
    averaged = AveragedModel(tiny()).state_dict()
    assert averaged["n_averaged"].shape == ()
    path = save_pt({"model_ema": prefixed(averaged, wrapper), "rbq": facts()})
    loaded = load_model(path).module.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tiny().state_dict().items())
    found = inspect_checkpoint(path)
    assert (found.dropped, found.problems) == ((f"{wrapper}n_averaged",), ())


def test_weights_that_are_called_like_a_count_are_kept() -> None:
    state = {"n_averaged": torch.ones(3), "other.n_averaged": ONE, "head.weight": ONE}
    assert set(normalise(state).tensors) == set(state)


@pytest.mark.parametrize("arch", [None, "vit_tiny_patch16_224"])
@pytest.mark.parametrize("stored", ["net.vit.", "module.net.vit.", "model.net._orig_mod.vit."])
def test_an_unknown_prefix_is_named(save_pt: Save, stored: str, arch: str | None) -> None:
    path = save_pt(prefixed(tiny().state_dict(), stored))
    with pytest.raises(CheckpointError, match=r"all \d+ keys of the file begin with 'net\.vit\.', which"):
        load_model(path, arch=arch, attention="standard")
    assert "begin with 'net.vit.'" in inspect_checkpoint(path).problems[0]


def test_a_file_of_one_part_has_no_prefix() -> None:
    assert len(normalise({"head.fc.weight": ONE, "head.fc.bias": ONE}).tensors) == 2
    assert len(normalise({"head.weight": ONE}).tensors) == 1
