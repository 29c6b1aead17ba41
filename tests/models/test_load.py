"""``load_model``: every variant, strictness, sources, and what it leaves untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_checkpoints import TINY, Save, deit_args, facts, image, random_states, tiny
from torch import Tensor

from robustbench_quest.attention.variants import VARIANTS, for_layers, resolve
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model

FIVE = ("standard", "quest", "qnorm", "elliptical", "elliptical-quest")
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in VARIANTS),
    ("qknorm-hs", {"param": "linear"}),
    ("qknorm-ds", {"mode": "rms"}),
    ("qknorm-ds", {"mode": "ln-nobias"}),
    ("elliptical", {"estimator": "median", "layers": "1"}),
]


def expected(model: torch.nn.Module) -> Tensor:
    """Return the logits by hand, in the metadata's normalisation."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
    with torch.no_grad():
        return model((image() - mean.view(3, 1, 1)) / std.view(3, 1, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("attention", "options"), CASES)
def test_every_variant_comes_back_from_its_metadata(
    save_safetensors: Save, attention: str, options: dict[str, Any]
) -> None:
    trained = tiny(attention, options)
    path = save_safetensors(trained.state_dict(), facts(attention=attention, attention_options=options))
    model = load_model(path)
    torch.testing.assert_close(model(image()), expected(trained), rtol=0, atol=1e-6)
    assert model.spec.attention == for_layers(resolve(attention, options), 2)
    assert dict(model.spec.sources)["attention"] == "metadata in the file"


def test_the_five_twins_differ_though_their_keys_do_not(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    logits = [load_model(path, attention=name)(image()) for name in FIVE]
    for index, first in enumerate(logits):
        for second in logits[:index]:
            assert (first - second).abs().max() > 1e-3


def test_an_undeclared_twin_is_refused(save_safetensors: Save) -> None:
    bare = {key: value for key, value in facts().items() if key != "attention"}
    path = save_safetensors(tiny().state_dict(), bare)
    with pytest.raises(OptionError) as caught:
        load_model(path)
    assert all(name in str(caught.value) for name in FIVE)
    assert "--attention NAME" in str(caught.value)
    assert "vit.safetensors.yaml" in str(caught.value)


def test_keys_that_identify_a_variant_are_enough(save_safetensors: Save) -> None:
    bare = {key: value for key, value in facts().items() if key != "attention"}
    trained = tiny("qknorm-ln")
    model = load_model(save_safetensors(trained.state_dict(), bare))
    torch.testing.assert_close(model(image()), expected(trained))
    assert dict(model.spec.sources)["attention"] == "keys in the file"


@pytest.mark.parametrize("options", [None, {}])
@pytest.mark.parametrize("declared", [None, "qknorm-ds"])
def test_the_form_of_qknorm_ds_must_be_declared(
    save_safetensors: Save, declared: str | None, options: dict[str, Any] | None
) -> None:
    bare = {key: value for key, value in facts().items() if key != "attention"}
    path = save_safetensors(tiny("qknorm-ds", {"mode": "rms"}).state_dict(), bare)
    with pytest.raises(OptionError, match="one of mode=l2, mode=rms, mode=ln-nobias"):
        load_model(path, attention=declared, attention_options=options)
    model = load_model(path, attention=declared, attention_options={"mode": "rms"})
    assert model.spec.attention == resolve("qknorm-ds", {"mode": "rms"})


def test_metadata_that_lists_no_options_declares_the_defaults(save_safetensors: Save) -> None:
    state = tiny("qknorm-ds").state_dict()
    path = save_safetensors(state, facts(attention="qknorm-ds", attention_options={}))
    assert load_model(path).spec.attention == resolve("qknorm-ds", {"mode": "l2"})
    with pytest.raises(OptionError, match="mode=l2"):
        load_model(save_safetensors(state, facts(attention="qknorm-ds")))


@pytest.mark.parametrize(
    ("scale", "param", "text"),
    [
        (2.3, "log", "stored scales up to 2.3 look log-space"),
        (10.0, "linear", "stored scales up to 10 look linear"),
        (10.0, "log", "stored scales up to 10 look linear, against the declared param=log"),
        (2.3, "linear", "stored scales up to 2.3 look log-space, against the declared param=linear"),
    ],
)
def test_the_form_of_a_head_scale_must_be_declared_and_its_looks_are_said(
    save_safetensors: Save, scale: float, param: str, text: str
) -> None:
    model = tiny("qknorm-hs")
    for key, parameter in model.named_parameters():
        if key.endswith("logit_scale"):
            torch.nn.init.constant_(parameter, scale)
    path = save_safetensors(model.state_dict(), facts(attention="qknorm-hs"))
    with pytest.raises(
        OptionError, match=r"--attention-option with one of param=log, param=linear"
    ) as caught:
        load_model(path)
    assert text.partition(",")[0] in str(caught.value)
    loaded = load_model(path, attention_options={"param": param})
    row = next(row for row in loaded.explanation if row.name == "attention")
    assert (row.source, row.others) == ("metadata in the file; param: flag", text)
    assert loaded.spec.guessed == ()
    found = inspect_checkpoint(path, attention_options={"param": param})
    assert (found.problems, found.setting("attention")) == ((), row)


@pytest.mark.parametrize(
    ("trained", "declared", "keys"),
    [
        ("standard", "qknorm-ln", "no attention keys beyond qkv and proj: they are those of standard, quest"),
        ("qknorm-hs", "quest", "the keys attn.logit_scale: they are those of qknorm-hs"),
        ("qknorm-ln", "qknorm-ds", "attn.q_norm.weight: they are those of qknorm-ln"),
    ],
)
def test_a_declaration_that_contradicts_the_keys_is_refused(
    save_safetensors: Save, trained: str, declared: str, keys: str
) -> None:
    path = save_safetensors(tiny(trained).state_dict(), facts(attention=declared))
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert f"attention {declared} was declared (metadata in the file)" in str(caught.value)
    assert keys in str(caught.value)


def test_keys_of_no_variant_ask_for_an_attention_class(save_safetensors: Save) -> None:
    bare = {key: value for key, value in facts().items() if key != "attention"}
    state = {**tiny().state_dict(), "blocks.0.attn.gate": torch.ones(3)}
    with pytest.raises(OptionError, match=r"the keys attn\.gate, .* give --attention FILE\.py:CLASS"):
        load_model(save_safetensors(state, bare))


def test_options_of_a_flag_override_those_of_the_file(save_safetensors: Save) -> None:
    options = {"estimator": "median", "layers": "1-"}
    path = save_safetensors(tiny().state_dict(), facts(attention="elliptical", attention_options=options))
    spec = load_model(path, attention_options={"estimator": "mean"}).spec
    assert spec.attention == resolve("elliptical", {"estimator": "mean", "layers": "1-"})
    renamed = load_model(path, attention="elliptical").spec
    assert renamed.attention == resolve("elliptical", options)
    assert load_model(path, attention="quest").spec.attention == resolve("quest")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"attention": "kwest"}, "unknown attention 'kwest'; did you mean 'quest'"),
        (
            {"attention": "quest", "attention_options": {"estimator": "mean"}},
            "unknown option of attention quest",
        ),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"weights": "averaged"}, "unknown weights 'averaged'"),
        ({"model_options": {"a": 1}}, "--model-option needs --model"),
        ({"arch": "vit_tinny_patch16_224"}, "did you mean 'vit_tiny_patch16_224'"),
        ({"arch": "vit_tiny_patch16_224.augreg"}, "unknown tag of vit_tiny_patch16_224 'augreg'"),
        ({"arch": "hf-hub:timm/vit_tiny"}, "would be fetched"),
        ({"arch_options": {"depht": 3}}, "vision_transformer refuses its options .*depht"),
        ({"img_size": 0}, "--img-size must be a whole number of pixels, at least 1; got 0"),
        ({"img_size": "16"}, "at least 1; got '16'"),
        ({"mean": 0.5}, "mean must be three numbers, one per channel; got 0.5"),
        ({"img_size": 20}, "--img-size 20 is not a whole number of patches of 8 pixels"),
    ],
)
def test_bad_flags(save_safetensors: Save, flags: dict[str, Any], message: str) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(OptionError, match=message) as caught:
        load_model(path, **flags)
    assert "\n" not in str(caught.value)


def test_nothing_to_load_is_an_error() -> None:
    with pytest.raises(OptionError, match="nothing to load"):
        load_model()


def test_missing_unexpected_and_misshapen_tensors_are_named_and_counted(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    del state["norm.weight"], state["norm.bias"], state["blocks.1.norm1.bias"], state["blocks.1.norm2.bias"]
    state["extra.weight"] = torch.ones(2, 3)
    state["cls_token"] = torch.ones(1, 1, 7)
    with pytest.raises(CheckpointError) as caught:
        load_model(save_safetensors(state, facts()))
    text = str(caught.value)
    assert "vit.safetensors does not fit vision_transformer: 4 missing (blocks.1.norm1.bias (24,), " in text
    assert ", and 1 more)" in text
    assert "1 unexpected (extra.weight (2, 3))" in text
    assert "1 of another shape (cls_token: (1, 1, 7) in the file, (1, 1, 24) in the model)" in text


def test_tensors_of_another_kind_are_refused(save_safetensors: Save) -> None:
    state = tiny().state_dict()
    state["norm.weight"] = state["norm.weight"].to(torch.int8)
    with pytest.raises(CheckpointError, match=r"1 of another kind \(norm\.weight: int8 in the file, float32"):
        load_model(save_safetensors(state, facts()))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["has no values", "is sparse", "is quantised"])
def test_tensors_that_are_not_plain_are_refused(save_pt: Save, kind: str) -> None:
    ones = torch.ones(24)
    odd = {
        "has no values": torch.ones(24, device="meta"),
        "is sparse": ones.to_sparse(),
        "is quantised": torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
    }[kind]
    path = save_pt({"model": {**tiny().state_dict(), "norm.weight": odd}, "rbq": facts()})
    with pytest.raises(CheckpointError, match=rf"norm\.weight {kind}, expected a plain tensor") as caught:
        load_model(path)
    assert inspect_checkpoint(path).problems == (str(caught.value),)


@pytest.mark.parametrize("key", ["head.weight", "pos_embed", "patch_embed.proj.weight", "cls_token"])
def test_tensors_of_absurd_shapes_are_refused(save_pt: Save, key: str) -> None:
    bare = {name: value for name, value in facts().items() if name not in ("arch", "arch_options")}
    for metadata in (facts(), bare):
        path = save_pt({"model": {**tiny().state_dict(), key: torch.ones(())}, "rbq": metadata})
        with pytest.raises(CheckpointError):
            load_model(path)
        assert inspect_checkpoint(path).problems


def test_eight_bit_floats_are_loaded_and_checked(save_safetensors: Save) -> None:
    state = {key: tensor.to(torch.float8_e4m3fn) for key, tensor in tiny().state_dict().items()}
    path = save_safetensors(state, facts())
    assert inspect_checkpoint(path).problems == ()
    assert torch.equal(load_model(path).module.state_dict()["norm.bias"], state["norm.bias"].float())
    state["norm.bias"] = torch.full((24,), float("nan")).to(torch.float8_e4m3fn)
    assert "norm.bias holds 24" in inspect_checkpoint(save_safetensors(state, facts())).problems[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_name_the_tensor(save_safetensors: Save, value: float) -> None:
    state = tiny().state_dict()
    state["blocks.1.mlp.fc1.bias"][3] = value
    with pytest.raises(
        CheckpointError, match=r"blocks\.1\.mlp\.fc1\.bias holds 1 values that are not finite"
    ):
        load_model(save_safetensors(state, facts()))


def test_half_precision_is_loaded_as_float32(save_safetensors: Save) -> None:
    model = tiny()
    half = {key: tensor.half() for key, tensor in model.state_dict().items()}
    loaded = load_model(save_safetensors(half, facts()))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    model.load_state_dict({key: tensor.float() for key, tensor in half.items()})
    torch.testing.assert_close(loaded(image()), expected(model))


def test_random_states_are_left_as_they_were(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    before = random_states()
    load_model(path)
    assert random_states() == before


def test_the_spec_of_a_checkpoint(save_safetensors: Save) -> None:
    path = save_safetensors(tiny("quest").state_dict(), facts(attention="quest"))
    model = load_model(path)
    assert isinstance(model, Classifier)
    spec = model.spec
    assert (spec.arch, spec.weights, spec.num_classes, model.num_classes) == ("vision_transformer", "", 5, 5)
    assert dict(spec.arch_options) == TINY
    assert dict(spec.sources)["arch"] == "metadata in the file"
    assert dict(spec.sources)["weights"] == "the only state dict in the file"
    assert [row.name for row in model.explanation] == [
        "name",
        "arch",
        "arch options",
        "heads",
        "attention",
        "weights",
        "size",
        "resize",
        "crop_mode",
        "interpolation",
        "mean",
        "std",
    ]


def test_the_identity_does_not_depend_on_who_declared_it(save_safetensors: Save, save_pt: Save) -> None:
    path = save_safetensors(tiny("quest").state_dict(), facts(attention="standard"))
    by_flag = load_model(path, attention="quest").spec
    (path.parent / "vit.yaml").write_text("attention: quest")
    by_sidecar = load_model(path).spec
    assert by_flag.identity() == by_sidecar.identity()
    assert by_flag.sources != by_sidecar.sources


def test_loading_the_same_file_twice_gives_the_same_logits(save_pt: Save) -> None:
    path = save_pt({"model": tiny().state_dict(), "args": deit_args(model=None), "rbq": facts()})
    assert torch.equal(load_model(path)(image()), load_model(path)(image()))


def test_a_file_cannot_name_code_to_run(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts(attention="evil.py:Attention"))
    with pytest.raises(CheckpointError, match=r"metadata in the file of vit.safetensors names code to run"):
        load_model(path)
    (path.parent / "vit.yaml").write_text("attention: evil.py:Attention")
    with pytest.raises(CheckpointError, match=r"sidecar vit.yaml of vit.safetensors names code to run"):
        load_model(path)
