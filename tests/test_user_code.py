"""A user's own model and attention class, from files outside the package."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from small_checkpoints import Save, facts, image, random_states, tiny

from robustbench_quest.errors import CheckpointError, OptionError
from robustbench_quest.identity import file_sha256
from robustbench_quest.models.load import load_model
from robustbench_quest.user_code import load_object

RESNET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()

class ResNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem, self.block, self.fc = nn.Conv2d(3, width, 3, 2), Block(width), nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.block(self.stem(x)).mean((2, 3)))

def build(width=4, classes=3):
    return ResNet(width, classes)

def returns_a_list():
    return [1]

def fails():
    raise RuntimeError("no\\nluck")

number = 3
"""

# QUEST, written again, with a forward that takes tokens only.
ATTENTION = """
import torch
from torch import nn

class Quest(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias, power=1.0):
        super().__init__()
        self.heads, self.power = num_heads, power
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        k = k / k.norm(dim=-1, keepdim=True) ** self.power
        return self.proj(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))

class Masked(Quest):
    def forward(self, x, attn_mask=None, is_causal=False):
        assert attn_mask is None and not is_causal
        return super().forward(x)

class Gated(Quest):
    def __init__(self, dim, num_heads, qkv_bias, head_dim, proj_bias, layer, num_layers):
        super().__init__(dim, num_heads, qkv_bias)
        self.facts = (head_dim, proj_bias, layer, num_layers)
        self.gate = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x):
        return super().forward(x) * self.gate

class Wrong(Quest):
    def forward(self, x):
        return super().forward(x)[:, :1]

class Broken(Quest):
    def forward(self, x):
        raise ValueError("not yet")

class Refusing(nn.Module):
    def __init__(self, dim):
        super().__init__()

def number(dim, num_heads, qkv_bias):
    return 3

def made_by_a_function(**options):
    return Quest(options["dim"], options["num_heads"], options["qkv_bias"])
"""
PIXELS: dict[str, Any] = {"mean": (0, 0, 0), "std": (1, 1, 1), "img_size": 16}


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.py"
    path.write_text(RESNET)
    return path


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    path = tmp_path / "quest.py"
    path.write_text(ATTENTION)
    return path


def test_a_users_model_with_a_checkpoint(resnet: Path, save_pt: Save) -> None:
    build, source_hash = load_object(f"{resnet}:build", "--model")
    trained = build(width=6).eval()
    trained.block.norm.running_mean.fill_(0.3)
    for prefix in ("", "module.", "model."):
        state = {prefix + key: tensor for key, tensor in trained.state_dict().items()}
        path = save_pt({"state_dict": state})
        model = load_model(path, model=f"{resnet}:build", model_options={"width": 6}, **PIXELS)
        with torch.no_grad():
            assert torch.equal(model(image()), trained(image()))
    spec = model.spec
    assert (spec.arch, spec.weights, spec.num_classes) == ("resnet.py:build", "state_dict", 3)
    assert dict(spec.arch_options) == {"width": 6}
    assert spec.source_hash == source_hash == file_sha256(resnet)
    assert spec.checkpoint == file_sha256(path)
    assert spec.attention is None
    assert dict(spec.sources)["arch"] == "flag"


def test_a_users_model_is_loaded_strictly(resnet: Path, save_pt: Save) -> None:
    build, _ = load_object(f"{resnet}:build", "--model")
    state = build().state_dict()
    del state["fc.bias"]
    with pytest.raises(
        CheckpointError, match=r"does not fit resnet\.py:build: 1 missing \(fc\.bias \(3,\)\)"
    ):
        load_model(save_pt(state), model=f"{resnet}:build", **PIXELS)


def test_a_users_model_keeps_its_own_weights_without_a_checkpoint(resnet: Path) -> None:
    torch.manual_seed(3)
    first = load_model(model=f"{resnet}:build", **PIXELS)
    torch.manual_seed(4)
    second = load_model(model=f"{resnet}:build", **PIXELS)
    assert torch.equal(first(image()), second(image()))
    assert first.spec == second.spec
    assert first.spec.name == "resnet.py:build"
    wider = load_model(model=f"{resnet}:build", model_options={"width": 5}, **PIXELS)
    assert wider.spec.checkpoint != first.spec.checkpoint


def test_loading_a_users_model_leaves_random_states(tmp_path: Path) -> None:
    path = tmp_path / "drawing.py"
    path.write_text(
        "import random, numpy, torch\n"
        "random.random(), numpy.random.rand(), torch.rand(1)\n"
        "from torch import nn\n"
        "def build():\n"
        "    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 2))\n"
        "    model[1].bias.data[0] = numpy.random.rand()\n"
        "    model[1].bias.data[1] = random.random()\n"
        "    return model\n"
    )
    before = random_states()
    first = load_model(model=f"{path}:build", **PIXELS)
    assert random_states() == before
    np.random.rand(), random.random(), torch.rand(1)
    assert load_model(model=f"{path}:build", **PIXELS).spec == first.spec


def test_an_edited_file_is_imported_again(resnet: Path) -> None:
    before = load_model(model=f"{resnet}:build", **PIXELS)
    resnet.write_text(RESNET.replace("x + self.norm", "x - self.norm"))
    after = load_model(model=f"{resnet}:build", **PIXELS)
    assert before.spec.source_hash != after.spec.source_hash
    assert before.spec.identity() != after.spec.identity()
    assert not torch.equal(before(image()), after(image()))


def test_files_beside_a_users_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "rbq_test_width.py").write_text("WIDTH = 7")
    path = tmp_path / "model.py"
    path.write_text("from rbq_test_width import WIDTH\ndef build():\n    return WIDTH\n")
    before = list(sys.path)
    try:
        assert load_object(f"{path}:build", "--model")[0]() == 7
    finally:
        sys.modules.pop("rbq_test_width", None)
    assert sys.path == before


def test_a_model_of_an_installed_package(save_pt: Save) -> None:
    trained = timm.create_model("resnet10t", num_classes=4).eval()
    path = save_pt(trained.state_dict())
    model = load_model(path, model="timm.models:resnet10t", model_options={"num_classes": 4})
    assert model.spec.arch == "timm.models:resnet10t"
    assert dict(model.spec.sources)["mean"] == (
        "timm configuration of timm.models:resnet10t (timm tests its weights at 224, crop ratio 0.95)"
    )
    assert model.preprocessing.size == 176


def test_attention_is_swapped_into_a_users_model(tmp_path: Path, save_pt: Save) -> None:
    path = tmp_path / "vit.py"
    path.write_text(
        "import timm\n"
        "def build():\n"
        "    return timm.models.VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=2, "
        "num_heads=3, mlp_ratio=2, num_classes=5)\n"
    )
    trained = tiny("quest")
    checkpoint = save_pt(trained.state_dict())
    own = load_model(checkpoint, model=f"{path}:build", **PIXELS)
    quest = load_model(checkpoint, model=f"{path}:build", attention="quest", **PIXELS)
    torch.testing.assert_close(quest(image()), trained(image()).detach())
    assert (own(image()) - quest(image())).abs().max() > 1e-2
    assert own.spec.attention is None
    assert str(quest.spec.attention) == "quest"
    with pytest.raises(CheckpointError, match=r"2 missing \(blocks\.0\.attn\.logit_scale"):
        load_model(
            checkpoint,
            model=f"{path}:build",
            attention="qknorm-hs",
            attention_options={"param": "log"},
            **PIXELS,
        )


MODEL_ERRORS = [
    ("none.py:build", {}, "no such file: .*none.py"),
    ("resnet.py:buidl", {}, "has no 'buidl'; it has Block, ResNet, build"),
    ("resnet.py:number", {}, "is a int, expected a class or function"),
    ("resnet.py", {}, "must be FILE.py:NAME or package.module:NAME"),
    ("resnet.py:build", {"wdth": 3}, r"build\(width=4, classes=3\) cannot be called with \(wdth=3\)"),
    ("resnet.py:build", {"width": "a"}, r"build\(width='a'\) failed: TypeError"),
    ("resnet.py:returns_a_list", {}, "must return a torch.nn.Module; it returned list"),
    ("resnet.py:fails", {}, r"fails\(\) failed: RuntimeError: no luck"),
    ("rbq_no_such_package:build", {}, "no module 'rbq_no_such_package'"),
    ("broken.py:build", {}, "broken.py fails to import: SyntaxError"),
    ("exits.py:build", {}, "exits.py fails to import: SystemExit: 3"),
]


@pytest.mark.parametrize(("target", "options", "message"), MODEL_ERRORS)
def test_errors_of_a_users_model(
    resnet: Path, tmp_path: Path, target: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "broken.py").write_text("def build(:\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    text = target if target.startswith("rbq_no") else f"{tmp_path}/{target}"
    with pytest.raises(OptionError, match=message) as caught:
        load_model(model=text, model_options=options, **PIXELS)
    assert "\n" not in str(caught.value)


def test_a_users_model_must_say_how_pixels_are_normalised(resnet: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing declares the size that --model resnet\.py:build"):
        load_model(model=f"{resnet}:build")
    with pytest.raises(OptionError, match=r"nothing declares the mean .* give --mean"):
        load_model(model=f"{resnet}:build", img_size=16)


def test_a_users_model_excludes_an_architecture(resnet: Path) -> None:
    with pytest.raises(OptionError, match="leave --arch and --arch-option out"):
        load_model(model=f"{resnet}:build", arch="resnet10t", **PIXELS)


@pytest.mark.parametrize("name", ["Quest", "Masked", "made_by_a_function"])
def test_a_users_attention_gives_the_built_in_ones_logits(
    attention: Path, save_safetensors: Save, name: str
) -> None:
    path = save_safetensors(tiny("quest").state_dict(), facts(attention="quest"))
    built_in, own = load_model(path), load_model(path, attention=f"{attention}:{name}")
    torch.testing.assert_close(own(image()), built_in(image()), rtol=1e-5, atol=1e-5)
    assert list(own.state_dict()) == list(built_in.state_dict())
    assert own.spec.attention is not None
    assert own.spec.attention.name == f"quest.py:{name}"
    assert own.spec.attention.source_hash == file_sha256(attention)
    assert dict(own.spec.sources)["attention"] == "flag"


def test_options_reach_a_users_attention(attention: Path, save_safetensors: Save) -> None:
    path = save_safetensors(tiny("quest").state_dict(), facts(attention="quest"))
    flat = load_model(path, attention=f"{attention}:Quest", attention_options={"power": 0.0})
    plain = load_model(path, attention=f"{attention}:Quest")
    assert (flat(image()) - plain(image())).abs().max() > 1e-2
    assert flat.spec.attention is not None
    assert dict(flat.spec.attention.options) == {"power": 0.0}
    assert flat.spec.identity() != plain.spec.identity()


def test_a_users_attention_gets_what_it_takes_and_keeps_its_own_keys(
    attention: Path, save_safetensors: Save
) -> None:
    state = tiny("quest").state_dict()
    for index in range(2):
        state[f"blocks.{index}.attn.gate"] = torch.full((24,), 2.0)
    model = load_model(save_safetensors(state, facts()), attention=f"{attention}:Gated")
    gates = [model.module.get_submodule(f"blocks.{index}.attn") for index in range(2)]
    assert [gate.facts for gate in gates] == [(8, True, 0, 2), (8, True, 1, 2)]
    assert all(torch.equal(gate.gate, torch.full((24,), 2.0)) for gate in gates)  # type: ignore[arg-type]
    state.pop("blocks.1.attn.gate")
    with pytest.raises(CheckpointError, match=r"1 missing \(blocks\.1\.attn\.gate"):
        load_model(save_safetensors(state, facts()), attention=f"{attention}:Gated")


def test_a_forward_of_tokens_only_refuses_a_mask(attention: Path, save_safetensors: Save) -> None:
    model = load_model(save_safetensors(tiny().state_dict(), facts()), attention=f"{attention}:Quest")
    block = model.module.get_submodule("blocks.0.attn")
    assert type(block) is load_object(f"{attention}:Quest", "--attention")[0]  # the class itself, unpatched
    tokens = torch.zeros(1, 5, 24)
    assert block(tokens, attn_mask=None, is_causal=False).shape == tokens.shape
    with pytest.raises(OptionError, match="does not take is_causal"):
        block(tokens, is_causal=True)


ATTENTION_ERRORS = [
    ("none.py:Quest", {}, "no such file"),
    ("quest.py:Qest", {}, "has no 'Qest'"),
    ("quest.py:torch", {}, "is a module, expected a class or function"),
    ("quest.py:Quest", {"pwr": 2}, r"Quest\(dim, num_heads, qkv_bias, power=1.0\) cannot be called with"),
    (
        "quest.py:Refusing",
        {},
        r"Refusing\(dim\) cannot be called with \(dim=24, num_heads=3, qkv_bias=True\)",
    ),
    ("quest.py:Wrong", {}, r"attn returned \(1, 1, 24\) for tokens \(1, 5, 24\); expected the same shape"),
    ("quest.py:Broken", {}, "fails on one 16x16 image: ValueError: not yet"),
    ("quest.py:number", {}, "must be a torch.nn.Module; it gave int"),
]


@pytest.mark.parametrize(("target", "options", "message"), ATTENTION_ERRORS)
def test_errors_of_a_users_attention(
    attention: Path, save_safetensors: Save, target: str, options: dict[str, Any], message: str
) -> None:
    path = save_safetensors(tiny().state_dict(), facts())
    with pytest.raises(OptionError, match=message) as caught:
        load_model(path, attention=f"{attention.parent}/{target}", attention_options=options)
    assert "--attention" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_attention_replaces_no_cross_attention(attention: Path, save_pt: Save) -> None:
    path = save_pt(timm.create_model("crossvit_tiny_240", num_classes=2).state_dict())
    with pytest.raises(OptionError, match="is a cross-attention, which maps N tokens to one"):
        load_model(path, arch="crossvit_tiny_240", attention=f"{attention}:Quest")


PATHS = {
    "very long": "x" * 5000 + ".py",
    "very deep": "x/" * 3000 + "a.py",
    "with a NUL byte": "a\0.py",
    "of several lines": "a\nb.py",
    "through a file": "file/a.py",
    "a link to itself": "loop.py",
}


@pytest.mark.parametrize("flag", ["--model", "--attention"])
@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_cannot_be_is_bad_input(tmp_path: Path, name: str, flag: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(OptionError) as caught:
        load_object(f"{tmp_path / PATHS[name]}:build", flag)
    text = str(caught.value)
    assert text.startswith(f"{flag}: ")
    assert "no such file" in text or "cannot be read" in text
    assert len(text) < 700
    assert not {"\n", "\0"} & set(text)


def test_a_file_that_may_not_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "a.py", Path.open
    path.write_text("build = dict")

    def refused(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(OptionError, match=r"--model: .*a\.py cannot be read: Permission denied"):
        load_object(f"{path}:build", "--model")


def test_a_neighbour_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'Python 2'")
    path = tmp_path / "a.py"
    path.write_text("def build():\n    import old\n")
    with pytest.raises(OptionError, match=r"the sources of .*a\.py:build cannot be read: SyntaxError"):
        load_object(f"{path}:build", "--model")
