"""What sidecars, metadata and training arguments declare, in which order, and how they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_checkpoints import PREPROCESSING, Save, deit_args, facts, hollow, named, tiny

from robustbench_quest.attention.variants import resolve
from robustbench_quest.checkpoints.declared import from_sidecar, sidecar_path
from robustbench_quest.checkpoints.preprocessing import Source
from robustbench_quest.checkpoints.training_args import declared_by_args
from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.models.load import load_model
from robustbench_quest.models.preprocessing import resolve_preprocessing

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 3}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_sidecar_is_found_under_both_names(tmp_path: Path) -> None:
    checkpoint = tmp_path / "vit.pt"
    assert sidecar_path(checkpoint) is None
    short = write(tmp_path / "vit.yaml", {"attention": "quest"})
    assert sidecar_path(checkpoint) == short
    long = write(tmp_path / "vit.pt.yaml", {"attention": "quest"})
    assert sidecar_path(checkpoint) == long
    write(short, {"attention": "qnorm"})
    with pytest.raises(
        CheckpointError, match=r"vit\.pt\.yaml and .*vit\.yaml both describe vit\.pt and differ"
    ):
        sidecar_path(checkpoint)


def test_an_attention_with_options_in_both_forms(tmp_path: Path) -> None:
    nested = write(tmp_path / "a.yaml", "attention: {name: elliptical, estimator: median}")
    flat = write(tmp_path / "b.yaml", "attention: elliptical\nattention_options: {estimator: median}")
    for path in (nested, flat):
        found = from_sidecar(path)
        assert (found.attention, found.attention_options) == ("elliptical", {"estimator": "median"})
    assert from_sidecar(write(tmp_path / "c.yaml", "attention: quest")).attention_options is None


BAD = [
    ("attention: [", "is not YAML"),
    ("just text", "must hold `key: value` lines; it holds str"),
    ("atention: quest", "unknown key 'atention'; did you mean 'attention'?"),
    ("arch: 3", "arch must be text; got 3"),
    ("attention: 3", "attention must be a name or a mapping with one; got 3"),
    ("attention: {estimator: mean}", "attention needs a name"),
    ("attention: {name: elliptical}\nattention_options: {a: 1}", "leave attention_options out"),
    ("attention: quest\nattention_options: [1]", "attention_options must be a mapping; got [1]"),
    ("arch_options: {depth: [1, 2]}", "arch_options: depth must be text, a number or true/false; got [1, 2]"),
    ("preprocessing: 224", "preprocessing must be a mapping; got 224"),
    ("preprocessing: {sise: 224}", "preprocessing: unknown key 'sise'; did you mean 'size'?"),
    ("preprocessing: {size: 0}", "preprocessing: size must be a whole number of pixels; got 0"),
    ("preprocessing: {size: 2.5}", "preprocessing: size must be a whole number of pixels; got 2.5"),
    ("preprocessing: {resize: -1}", "preprocessing: resize must be a whole number of pixels; got -1"),
    ("preprocessing: {interpolation: bicubik}", "unknown interpolation 'bicubik'; did you mean 'bicubic'?"),
    ("preprocessing: {mean: [0.5, 0.5]}", "preprocessing: mean must be three numbers; got [0.5, 0.5]"),
    ("preprocessing: {mean: [.nan, 0, 0]}", "preprocessing: mean must be three numbers"),
    ("preprocessing: {std: [0, 1, 1]}", "preprocessing: std must be three positive numbers; got [0, 1, 1]"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_errors_of_a_sidecar_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "vit.yaml", text)
    with pytest.raises(CheckpointError) as caught:
        from_sidecar(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_of_metadata_name_the_file(save_safetensors: Save) -> None:
    path = save_safetensors(tiny().state_dict(), facts(attentoin="quest"))
    with pytest.raises(CheckpointError, match=r"vit\.safetensors, metadata 'rbq': unknown key 'attentoin'"):
        load_model(path)


def test_flag_beats_sidecar_beats_metadata_beats_args(save_pt: Save, tmp_path: Path) -> None:
    content = {"model": tiny("quest").state_dict(), "args": {"attention": "elliptical"}, "rbq": facts()}
    del content["rbq"]["attention"]
    args = load_model(save_pt(content)).spec
    assert (str(args.attention), dict(args.sources)["attention"]) == (
        "elliptical(estimator=mean,layers=1-)",
        "args in the file",
    )
    content["rbq"]["attention"] = "qnorm"
    path = save_pt(content)
    metadata = load_model(path).spec
    assert (str(metadata.attention), dict(metadata.sources)["attention"]) == ("qnorm", "metadata in the file")
    write(tmp_path / "vit.pt.yaml", {"attention": "quest"})
    sidecar = load_model(path).spec
    assert (str(sidecar.attention), dict(sidecar.sources)["attention"]) == ("quest", "sidecar vit.pt.yaml")
    flag = load_model(path, attention="standard").spec
    assert (str(flag.attention), dict(flag.sources)["attention"]) == ("standard", "flag")


def test_preprocessing_is_merged_setting_by_setting(save_pt: Save, tmp_path: Path) -> None:
    path = save_pt({"model": tiny().state_dict(), "rbq": facts()})
    write(tmp_path / "vit.yaml", {"preprocessing": {"mean": [0.1, 0.2, 0.3], "interpolation": "bilinear"}})
    model = load_model(path, std=(0.9, 0.8, 0.7))
    found, sources = model.preprocessing, dict(model.spec.sources)
    assert found.mean == (0.1, 0.2, 0.3)
    assert found.std == (0.9, 0.8, 0.7)
    assert (found.size, found.resize, found.interpolation) == (16, 0, "bilinear")
    assert {key: sources[key] for key in ("mean", "std", "size", "resize", "interpolation")} == {
        "mean": "sidecar vit.yaml",
        "std": "flag",
        "size": "metadata in the file",
        "resize": "metadata in the file",
        "interpolation": "sidecar vit.yaml",
    }
    rows = {row.name: row for row in model.explanation}
    assert rows["std"].others == "metadata in the file: 0.2, 0.25, 0.3"
    assert rows["mean"].others == "metadata in the file: 0.5, 0.4, 0.3"
    assert rows["size"].others == ""
    assert (rows["arch"].value, rows["attention"].text) == ("vision_transformer", "standard")


def test_a_model_is_named_after_its_file_and_data_sets_are_taken_over(save_safetensors: Save) -> None:
    model = load_model(save_safetensors(tiny().state_dict(), facts(), name="renamed.safetensors"))
    assert model.spec.name == "renamed"
    row = next(row for row in model.explanation if row.name == "name")
    assert (row.source, row.others) == ("the file's name", "metadata in the file: tiny")
    assert model.trained_on == "digits"
    unnamed = {key: value for key, value in facts().items() if key not in ("name", "dataset")}
    model = load_model(save_safetensors(tiny().state_dict(), unnamed))
    assert model.spec.name == "vit"
    assert model.trained_on is None


def test_a_sidecar_can_choose_the_weights(save_pt: Save, tmp_path: Path) -> None:
    state = tiny().state_dict()
    path = save_pt({"model": state, "model_ema": state, "rbq": facts()})
    write(tmp_path / "vit.yaml", {"weights": "ema"})
    spec = load_model(path).spec
    assert spec.weights == "model_ema"
    assert dict(spec.sources)["weights"] == "sidecar vit.yaml; the file also holds model"
    assert load_model(path, weights="raw").spec.weights == "model"


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("deit_tiny_patch16_224", "deit_tiny_patch16_224"),
        ("deit_mahala_overlayers_tiny_patch16_224", "deit_tiny_patch16_224"),
        ("deit_base_patch16_LS", "deit3_base_patch16_224"),
        ("deit_huge_patch14_LS", "deit3_huge_patch14_224"),
        ("crossvit_tiny_224", "crossvit_tiny_240"),
        ("crossvit_15_dagger_384", "crossvit_15_dagger_408"),
        ("vit_base_patch16_224", "vit_base_patch16_224"),
    ],
)
def test_architectures_of_published_arguments(published: str, name: str) -> None:
    assert declared_by_args({"model": published}, ("model",)).arch == name


def test_ellipticals_arguments_declare_variant_and_layers() -> None:
    args = {"model": "deit_mahala_overlayers_tiny_patch16_224", "M_positions": [1, 2, 3, 5]}
    found = declared_by_args(args, ("model", "args"))
    assert (found.attention, found.attention_options) == ("elliptical", {"layers": "1,2,3,5"})
    assert found.preprocessing[-1].name == "container: Elliptical"


def load_deit(save_pt: Save, args: Any, **options: Any) -> Any:
    arch_options = {**SMALL, "img_size": args.input_size}
    model = named("deit_tiny_patch16_224", **arch_options)
    content = {
        "model": model.state_dict(),
        "optimizer": {},
        "epoch": 1,
        "model_ema": model.state_dict(),
        "args": args,
    }
    return load_model(save_pt(content), arch_options=SMALL, **options)


def test_deits_container_is_evaluated_as_deit_does(save_pt: Save) -> None:
    model = load_deit(save_pt, deit_args(), attention="standard")
    found, sources = model.preprocessing, dict(model.spec.sources)
    assert (found.size, found.resize, found.interpolation) == (224, 256, "bicubic")
    assert found.mean == (0.485, 0.456, 0.406)
    assert found.std == (0.229, 0.224, 0.225)
    assert (sources["resize"], sources["size"]) == ("args in the file", "args in the file")
    assert (sources["mean"], sources["arch"]) == ("container: DeiT", "args in the file")
    rows = {row.name: row for row in model.explanation}
    assert rows["resize"].others == "timm configuration of deit_tiny_patch16_224: 248"


@pytest.mark.parametrize(
    ("size", "ratio", "resize"), [(224, 1.0, 224), (224, None, 256), (384, 0.875, 438), (384, 1.0, 384)]
)
def test_deits_crop_ratio_is_followed(save_pt: Save, size: int, ratio: float | None, resize: int) -> None:
    args = deit_args(input_size=size, eval_crop_ratio=ratio)
    found = load_deit(save_pt, args, attention="standard").preprocessing
    assert (found.size, found.resize) == (size, resize)


def test_deits_container_does_not_say_which_attention(save_pt: Save) -> None:
    with pytest.raises(OptionError, match="does not say which attention"):
        load_deit(save_pt, deit_args())


def test_ellipticals_container_loads_without_flags(save_pt: Save) -> None:
    args = deit_args(model="deit_mahala_overlayers_tiny_patch16_224", M_positions=list(range(1, 12)))
    content = {"model": hollow(named("deit_tiny_patch16_224")), "epoch": 1, "args": args}
    spec = load_model(save_pt(content)).spec
    assert spec.arch == "deit_tiny_patch16_224"
    assert spec.attention == resolve("elliptical", {"layers": "1-"})
    assert dict(spec.sources)["attention"] == "args in the file"
    assert dict(spec.sources)["mean"] == "container: Elliptical"
    assert (spec.preprocessing.size, spec.preprocessing.resize) == (224, 256)
    assert spec.guessed == ()


def test_a_released_deit_file_is_evaluated_as_deit_does(save_pt: Save) -> None:
    state = named("deit_tiny_patch16_224", **SMALL).state_dict()
    options: dict[str, Any] = {
        "arch": "deit_tiny_patch16_224",
        "arch_options": SMALL,
        "attention": "standard",
    }
    released = load_model(save_pt({"model": state}), **options)
    assert released.preprocessing.resize == 256
    assert dict(released.spec.sources)["resize"] == "container: DeiT"
    bare = load_model(save_pt(state), **options)
    assert bare.preprocessing.resize == 248
    assert dict(bare.spec.sources)["resize"] == "timm configuration of deit_tiny_patch16_224"


def test_arguments_of_another_code_base_are_not_deits(save_pt: Save) -> None:
    state = named("vit_tiny_patch16_224", **SMALL).state_dict()
    path = save_pt({"model": state, "args": {"model": "vit_tiny_patch16_224", "input_size": 224}})
    model = load_model(path, arch_options=SMALL, attention="standard")
    assert (model.preprocessing.resize, model.preprocessing.mean) == (248, (0.5, 0.5, 0.5))


def test_timms_own_arguments_are_followed(save_pt: Save) -> None:
    args = {
        "model": "vit_tiny_patch16_224",
        "crop_pct": 0.95,
        "mean": [0.1, 0.2, 0.3],
        "std": None,
        "interpolation": "",
        "input_size": None,
    }
    state = named("vit_tiny_patch16_224", **SMALL).state_dict()
    path = save_pt({"state_dict": state, "args": args, "arch": "vit_tiny_patch16_224"})
    found = load_model(path, arch_options=SMALL, attention="standard").preprocessing
    assert (found.resize, found.mean, found.std) == (235, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit3_small_patch16_384"])
def test_timms_configuration_agrees_with_timms_own_transform(save_pt: Save, arch: str) -> None:
    from timm.data import create_transform, resolve_data_config

    model = named(arch, **SMALL)
    config = resolve_data_config({}, model=model)
    resize, crop = create_transform(**config).transforms[:2]
    found = load_model(save_pt(model.state_dict()), arch=arch, arch_options=SMALL, attention="standard")
    assert found.preprocessing.resize == resize.size
    assert (found.preprocessing.size, found.preprocessing.size) == tuple(crop.size)
    assert found.preprocessing.interpolation == resize.interpolation.value
    assert (found.preprocessing.mean, found.preprocessing.std) == (config["mean"], config["std"])


def test_what_nothing_declares_must_be_given(save_safetensors: Save) -> None:
    bare = {key: value for key, value in facts().items() if key != "preprocessing"}
    path = save_safetensors(tiny().state_dict(), bare)
    with pytest.raises(OptionError, match=r"nothing declares the mean that vit\.safetensors .* give --mean"):
        load_model(path)
    with pytest.raises(OptionError, match="nothing declares the std"):
        load_model(path, mean=(0, 0, 0))
    model = load_model(path, mean=(0, 0, 0), std=(1, 1, 1))
    assert (model.preprocessing.size, model.preprocessing.resize) == (16, 16)
    assert model.spec.guessed == ("resize", "interpolation")
    assert dict(model.spec.sources)["resize"] == "default"


def test_an_interpolation_that_is_never_used_is_no_guess(save_safetensors: Save) -> None:
    assert load_model(save_safetensors(tiny().state_dict(), facts())).spec.guessed == ()


def test_a_declared_resize_keeps_its_ratio_at_another_size() -> None:
    sidecar = Source("sidecar", size=224, resize=256, mean=(0.0,) * 3, std=(1.0,) * 3)
    found, _ = resolve_preprocessing([Source("flag", size=448), sidecar], "x")
    assert (found.size, found.resize) == (448, 512)
    found, _ = resolve_preprocessing([Source("flag", size=448, resize=500), sidecar], "x")
    assert found.resize == 500


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mean": (0.5, 0.5)}, "mean must be three numbers"),
        ({"mean": (0.5, 0.5, float("inf"))}, "mean must be three numbers"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be positive"),
        ({"resize": 8}, "resize must be 0 \\(as it is\\) or at least the size 16; got 8"),
        ({"resize": -1}, "resize must be a whole number of pixels, at least 0; got -1"),
        ({"interpolation": "cubic"}, "unknown interpolation 'cubic'; did you mean 'bicubic'"),
    ],
)
def test_flags_with_bad_values(save_safetensors: Save, flags: dict[str, Any], message: str) -> None:
    path = save_safetensors(tiny().state_dict(), facts(preprocessing=PREPROCESSING))
    with pytest.raises(OptionError, match=message):
        load_model(path, **flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention: quest\nattention: qnorm", "the key 'attention' is there twice"),
        ("preprocessing: {size: 224, 'size': 225}", "the key 'size' is there twice"),
        ('name: "a\\nb"', "name must be one line of printable text; got 'a\\nb'"),
        ('name: "a\\x1b[31m"', "name must be one line of printable text"),
        ('dataset: "a\\tb"', "dataset must be one line of printable text"),
    ],
)
def test_a_sidecar_that_could_mislead_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "vit.yaml", text)
    with pytest.raises(CheckpointError) as caught:
        from_sidecar(path)
    assert message in str(caught.value).replace("\\n", "\n").replace("\n", "\\n")
    assert "\n" not in str(caught.value)


def test_merge_keys_of_yaml_are_no_repetition(tmp_path: Path) -> None:
    text = "arch_options: &base {depth: 1}\npreprocessing: {size: 16}\n"
    assert from_sidecar(write(tmp_path / "a.yaml", text)).arch_options == {"depth": 1}
    text = "arch_options: {<<: {depth: 1, embed_dim: 24}, depth: 2}"
    assert from_sidecar(write(tmp_path / "b.yaml", text)).arch_options == {"depth": 2, "embed_dim": 24}


def test_a_sidecar_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "vit.pt.yaml").mkdir()
    with pytest.raises(CheckpointError, match=r"vit\.pt\.yaml is no file, expected the sidecar of vit\.pt"):
        sidecar_path(tmp_path / "vit.pt")
