"""YAML files are read within bounds, and every fault in one is our message of one line."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from robustbench_quest.checkpoints.declared import from_metadata, from_sidecar
from robustbench_quest.errors import CheckpointError, OptionError, brief, brief_path
from robustbench_quest.yaml_edge import checked, read_yaml

pytestmark = pytest.mark.timeout(30)


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_mapping_is_read(tmp_path: Path) -> None:
    assert read_yaml(file(tmp_path, "a: 1\nb: {c: [2, x]}"), OptionError) == {"a": 1, "b": {"c": [2, "x"]}}
    assert read_yaml(file(tmp_path, "\ufeffa: 1"), OptionError) == {"a": 1}
    assert read_yaml(file(tmp_path, "a: &a 1\nb: *a\nc: {<<: {d: 2}}"), OptionError)["c"] == {"d": 2}


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 30)
)
BAD = {
    "laughs": (LAUGHS, "is not YAML: it has more than 16 aliases (*name); write the values out"),
    "merges": (MERGES, "is not YAML: it has more than 16 aliases"),
    "depth": ("[" * 100_000, "is not YAML: maximum recursion depth"),
    "length": ("# " + "x" * 300_000, "has more than 262,144 bytes, expected a short file"),
    "digits": ("a: " + "9" * 5000, "is not YAML: Exceeds the limit"),
    "a date": ("a: 2024-13-45", "is not YAML: month must be in 1..12"),
    "bytes": (b"a: \xff\xfe", "is not YAML: 'utf-8' codec can't decode byte 0xff"),
    "a class": ("a: !!python/object:os.system x", "is not YAML: could not determine a constructor"),
    "a key twice": ("a: 1\nb: 2\na: 3", "is not YAML: the key 'a' is there twice; leave one"),
    "a list": ("[1, 2]", "must hold `key: value` lines; it holds list"),
    "nothing": ("", "must hold `key: value` lines; it holds NoneType"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path: Path, name: str) -> None:
    text, cause = BAD[name]
    path, start = file(tmp_path, text), time.perf_counter()
    with pytest.raises(OptionError) as caught:
        read_yaml(path, OptionError)
    assert time.perf_counter() - start < 8
    assert str(caught.value).startswith(f"{path} ")
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["none.yaml", "folder", "file/a.yaml", "x" * 5000])
def test_a_path_that_cannot_be_read_is_bad_input(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be read: "):
        read_yaml(tmp_path / place, CheckpointError)


def test_a_mapping_of_many_keys_is_read_in_seconds(tmp_path: Path) -> None:
    start = time.perf_counter()
    assert len(read_yaml(file(tmp_path, "\n".join(f"k{i}: 1" for i in range(20_000))), OptionError)) == 20_000
    assert time.perf_counter() - start < 8


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    side: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    share: float = 0.5
    sure: bool = True
    many: list[int] = []
    inner: Inner | None = None
    options: dict[str, float] = {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"name": 3}, "name must be text; got 3"),
        ({}, "name is missing; add it"),
        ({"name": "x", "share": "y"}, "share must be a number; got 'y'"),
        ({"name": "x", "sure": 1}, "sure must be true or false; got 1"),
        ({"name": "x", "many": 1}, "many must be a list; got 1"),
        ({"name": "x", "many": [1, "y"]}, "many: 1 must be a whole number; got 'y'"),
        ({"name": "x", "inner": 1}, "inner must be a mapping; got 1"),
        (
            {"name": "x", "inner": {"sde": 1}},
            "inner: unknown key 'sde'; did you mean 'side'? Available: side",
        ),
        (
            {"nme": "x"},
            "unknown key 'nme'; did you mean 'name'? Available: inner, many, name, options, share, sure",
        ),
        ({"name": "x", 1: 2}, "unknown key '1'; Available: inner"),
        ({"name": "x", "options": {1: 2.0}}, "options: 1 must be text; got 1"),
    ],
)
def test_faults_of_a_content_are_said_in_our_words(content: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        checked(Outer, content, "a.yaml", OptionError)
    assert str(caught.value).startswith(f"a.yaml: {message}")


def test_what_is_right_becomes_an_instance() -> None:
    found = checked(Outer, {"name": "x", "inner": {"side": 2}}, "a.yaml", OptionError)
    assert (found.name, found.inner) == ("x", Inner(side=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "arch_options: {depth: &a [" + "x, " * 99 + "x], b: *a}",
            "depth must be text, a number or true/false",
        ),
        (
            "arch_options: &a {b: *a}",
            "arch_options: b must be text, a number or true/false; got {'b': {'b': ",
        ),
        (
            "arch_options: {depth: 0x" + "f" * 5000 + "}",
            "depth must be at most 1000000000; got a very large int",
        ),
        ("arch_options: {mlp_ratio: .inf}", "mlp_ratio must be at most 1000000000; got inf"),
        ("preprocessing: {mean: [0x" + "f" * 5000 + ", 0, 0]}", "mean must be three numbers; got "),
        ("preprocessing: {size: 1000000}", "size must be a whole number of pixels; got 1000000"),
        ("preprocessing: {resize: 1000000}", "resize must be a whole number of pixels; got 1000000"),
        ("preprocessing: {interpolation: [a]}", "preprocessing: unknown interpolation"),
        ("arch_options:", "arch_options must be a mapping; got None"),
        ("arch:", "arch must be text; got None"),
        ("1: 2", "unknown key '1'; Available: accuracy, arch"),
        ("attention: {name: quest, 3: 4}", "attention_options: 3 must be text; got 3"),
    ],
)
def test_a_sidecar_cannot_make_its_message_long(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_sidecar(file(tmp_path, text))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_metadata_whose_parts_are_shared_is_refused_at_once() -> None:
    shared: Any = ["x"]
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(CheckpointError, match=r"vit\.pt, metadata 'rbq': arch_options: depth must be text"):
        from_metadata({"arch_options": {"depth": shared}}, "vit.pt")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, {"a": None}], "[1, {'a': None}]"),
        ("a\nb", "'a\\nb'"),
        pytest.param(1 << 40_000, "a very large int", id="digits"),
        ([[[[[[[1]]]]]]], "[[[[[...]]]]]"),
    ],
)
def test_values_in_messages_are_short_and_of_one_line(value: object, text: str) -> None:
    assert brief(value) == text


def test_paths_in_messages_are_short_and_of_one_line(tmp_path: Path) -> None:
    assert brief_path(tmp_path / "a b.pt") == str(tmp_path / "a b.pt")
    assert brief_path("a\nb") == "'a\\nb'"
    assert len(brief_path("x" * 5000)) < 200


def test_importing_the_edge_does_not_import_pydantic() -> None:
    code = "import sys, robustbench_quest.yaml_edge; assert 'pydantic' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
