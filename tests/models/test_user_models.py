"""A user's own model: its keys, its precision, its classes, and how its faults are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_checkpoints import Save, facts, image, tiny

from robustbench_quest.errors import CheckpointError, OptionError, QuestError
from robustbench_quest.identity import file_sha256
from robustbench_quest.models.load import load_model
from robustbench_quest.user_code import load_object
from robustbench_quest.user_sources import sources_sha256

MODELS = """
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        setattr(self, first, nn.Linear(3, 4))
        setattr(self, second, nn.Linear(4, 5))
        self.names = (first, second)

    def forward(self, x):
        first, second = (getattr(self, name) for name in self.names)
        return second(first(x.mean((2, 3))))

def two():
    return Mean("encoder", "backbone")

def headed():
    return Mean("backbone", "head")

def half():
    return headed().half()

def double():
    return headed().double()

def on_meta():
    with torch.device("meta"):
        return headed()

def lazy():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))

def wrong_classes():
    model = headed()
    model.num_classes = 1000
    return model

def exits():
    raise SystemExit(7)

def interrupted():
    raise KeyboardInterrupt

class ExitingForward(Mean):
    def forward(self, x):
        raise SystemExit("no")

def exits_later():
    return ExitingForward("backbone", "head")

class Attention(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x

class Exiting(Attention):
    def __init__(self, dim, num_heads, qkv_bias):
        raise SystemExit(4)

class ExitingLater(Attention):
    def forward(self, x):
        raise SystemExit(4)

class Interrupted(Attention):
    def forward(self, x):
        raise KeyboardInterrupt

class Lazy(Attention):
    def __init__(self, dim, num_heads, qkv_bias):
        super().__init__(dim, num_heads, qkv_bias)
        self.gate = nn.LazyLinear(dim)
"""
PIXELS: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "img_size": 16}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def built(models: Path, name: str) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: torch.nn.Module = load_object(f"{models}:{name}", "--model")[0]()
    return module.eval()


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.module.", "model.", "backbone.", "model.encoder."]
)
@pytest.mark.parametrize("name", ["two", "headed"])
def test_real_names_that_look_like_prefixes_are_kept(
    models: Path, save_pt: Save, name: str, prefix: str
) -> None:
    trained = built(models, name)
    path = save_pt({"model": {prefix + key: tensor for key, tensor in trained.state_dict().items()}})
    loaded = load_model(path, model=f"{models}:{name}", **PIXELS)
    with torch.no_grad():
        assert torch.equal(loaded(image()), trained((image() - 0.5) / 0.5))


def test_a_misfit_under_a_prefix_names_what_is_wrong(models: Path, save_pt: Save) -> None:
    state = {f"module.{key}": tensor for key, tensor in built(models, "headed").state_dict().items()}
    del state["module.head.bias"]
    with pytest.raises(
        CheckpointError, match=r"does not fit models\.py:headed: 1 missing \(head\.bias \(5,\)\)$"
    ):
        load_model(save_pt(state), model=f"{models}:headed", **PIXELS)


WRAPPED = """
from torch import nn

class Wrapper(nn.Module):
    def __init__(self, inside, name):
        super().__init__()
        setattr(self, name, inside)
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)

def plain(name=None):
    block = nn.Linear(3, 5)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Wrapper(block, name) if name else block)

def own_module():
    return plain("module")

def own_orig_mod():
    return plain("_orig_mod")
"""


@pytest.mark.parametrize("outer", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("plain", ""),
        ("plain", "_orig_mod."),
        ("plain", "_fsdp_wrapped_module."),
        ("plain", "module."),
        ("own_module", "module."),
        ("own_module", "_checkpoint_wrapped_module.module."),
        ("own_orig_mod", "_orig_mod."),
    ],
)
def test_wrappers_inside_the_keys_of_a_users_model_are_undone_and_real_names_kept(
    tmp_path: Path, save_pt: Save, outer: str, name: str, inner: str
) -> None:
    models = tmp_path / "models.py"
    models.write_text(WRAPPED)
    trained = built(models, name)
    weight, bias = trained.state_dict().values()
    state = {f"{outer}2.{inner}weight": weight, f"{outer}2.{inner}bias": bias}
    path = save_pt({"model": {**state, "n_averaged": torch.tensor(7)}})
    loaded = load_model(path, model=f"{models}:{name}", **PIXELS)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.module.state_dict().values(), (weight, bias), strict=True)
    )


def test_no_key_of_a_users_file_is_left_out_as_another_ones_twin(tmp_path: Path, save_pt: Save) -> None:
    models = tmp_path / "models.py"
    models.write_text(WRAPPED)
    state = built(models, "plain").state_dict()
    path = save_pt({**state, "2._orig_mod.weight": state["2.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"1 unexpected \(2\._orig_mod\.weight"):
        load_model(path, model=f"{models}:plain", **PIXELS)


@pytest.mark.parametrize(("name", "was"), [("half", "float16"), ("double", "float64")])
def test_another_precision_is_converted_and_recorded(
    models: Path, save_pt: Save, name: str, was: str
) -> None:
    path = save_pt(built(models, name).state_dict())
    loaded = load_model(path, model=f"{models}:{name}", **PIXELS)
    assert {tensor.dtype for tensor in loaded.module.state_dict().values()} == {torch.float32}
    assert dict(loaded.spec.sources)["dtype"] == f"converted from {was}"
    assert [row.text for row in loaded.explanation if row.name == "dtype"] == ["float32"]
    expected = built(models, name).float()
    with torch.no_grad():
        torch.testing.assert_close(loaded(image()), expected((image() - 0.5) / 0.5))
    plain = load_model(model=f"{models}:headed", **PIXELS)
    assert "dtype" not in dict(plain.spec.sources)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("on_meta", r"--model .*models\.py:on_meta: backbone\.weight is on the meta device, expected values"),
        ("lazy", r"lazy: 2\.weight is not initialised \(a Lazy module\), expected values; build"),
        ("wrong_classes", "Mean declares num_classes 1000 and returns 5 logits"),
        ("exits", r"exits\(\) failed: SystemExit: 7"),
        ("exits_later", "ExitingForward cannot take one 16x16 float32 image: SystemExit: no"),
    ],
)
def test_faults_of_a_model_are_one_line(models: Path, name: str, message: str) -> None:
    with pytest.raises(QuestError, match=message) as caught:
        load_model(model=f"{models}:{name}", **PIXELS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Exiting", r"qkv_bias=True\) failed: SystemExit: 4"),
        ("ExitingLater", "fails on one 16x16 image: SystemExit: 4"),
        ("Lazy", r"Lazy: gate\.weight is not initialised"),
    ],
)
def test_faults_of_an_attention_are_one_line(
    models: Path, save_safetensors: Save, name: str, message: str
) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(OptionError, match=message):
        load_model(path, attention=f"{models}:{name}")


def test_an_interrupt_stays_one(models: Path, save_safetensors: Save) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_model(model=f"{models}:interrupted", **PIXELS)
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(KeyboardInterrupt):
        load_model(path, attention=f"{models}:Interrupted")


def test_an_installed_module_that_exits_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rbq_test_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match="rbq_test_exits fails to import: SystemExit: 3"):
        load_object("rbq_test_exits:build", "--model")


def test_flags_that_would_do_nothing_are_refused(models: Path) -> None:
    with pytest.raises(OptionError, match="--attention-option needs --attention NAME"):
        load_model(model=f"{models}:headed", attention_options={"estimator": "mean"}, **PIXELS)
    with pytest.raises(
        OptionError, match="--weights chooses among the state dicts of a checkpoint; give --ckpt"
    ):
        load_model(model=f"{models}:headed", weights="ema", **PIXELS)


def test_a_model_keeps_its_own_attention_and_it_is_said(models: Path) -> None:
    rows = {row.name: row for row in load_model(model=f"{models}:headed", **PIXELS).explanation}
    assert (rows["attention"].value, rows["attention"].source) == ("own", "as the model is built")
    assert "heads" not in rows


def test_the_hash_is_of_the_file_that_defines_the_model(models: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer.py"
    outer.write_text("import functools\nfrom models import headed\npartial = functools.partial(headed)\n")
    assert load_object(f"{outer}:headed", "--model")[1] == file_sha256(models)
    # What has no source of its own counts as the file that was named.
    assert load_object(f"{outer}:partial", "--model")[1] == sources_sha256(outer)


def test_layers_of_a_users_model_have_one_text(tmp_path: Path) -> None:
    path = tmp_path / "vit.py"
    path.write_text(
        "import timm\n"
        "def build():\n"
        "    return timm.models.VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=3, "
        "num_heads=3, num_classes=5)\n"
    )
    models = [
        load_model(
            model=f"{path}:build", attention="elliptical", attention_options={"layers": layers}, **PIXELS
        )
        for layers in ("1-", "1-2", "2,1")
    ]
    assert len({str(model.spec.attention) for model in models}) == 1
    assert {row.name: row.text for row in models[0].explanation}["heads"] == "3"


def test_the_form_of_a_variant_in_a_users_model_must_be_declared(tmp_path: Path, save_pt: Save) -> None:
    path = tmp_path / "vit.py"
    path.write_text(
        "import timm\n"
        "def build():\n"
        "    return timm.models.VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=2, "
        "num_heads=3, mlp_ratio=2, num_classes=5)\n"
    )
    options: dict[str, Any] = {"model": f"{path}:build", "attention": "qknorm-hs", **PIXELS}
    for checkpoint, looks in (
        (None, "param=linear$"),
        (save_pt(tiny("qknorm-hs").state_dict()), "look log-space"),
    ):
        with pytest.raises(OptionError, match=looks):
            load_model(checkpoint, **options)
        assert (
            load_model(checkpoint, attention_options={"param": "log"}, **options).spec.attention is not None
        )
