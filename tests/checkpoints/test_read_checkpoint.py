"""What ``read_checkpoint`` reads, what it refuses, and that no code in a file ever runs."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_checkpoints import Save, deit_args, facts, tiny
from torch import nn

from robustbench_quest.checkpoints.file import read_checkpoint
from robustbench_quest.errors import CheckpointError

STATE = {"head.weight": torch.arange(6.0).view(2, 3), "head.bias": torch.tensor([1.0, -1.0])}


class TouchesFile:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def message(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def equal_state(path: Path) -> None:
    found = read_checkpoint(path).containers[""]
    assert list(found) == list(STATE)
    assert all(torch.equal(found[key], STATE[key]) for key in STATE)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("zipped", [True, False])
def test_both_formats_of_torch_save_are_read(save_pt: Save, zipped: bool, protocol: int) -> None:
    path = save_pt(STATE, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    equal_state(path)
    assert read_checkpoint(path).format == ("torch.save (zip)" if zipped else "torch.save (legacy)")


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files_are_read_under_the_name_of_safetensors(save_pt: Save, zipped: bool) -> None:
    path = save_pt(STATE, name="vit.safetensors", _use_new_zipfile_serialization=zipped)
    equal_state(path)
    assert read_checkpoint(path).format == ("torch.save (zip)" if zipped else "torch.save (legacy)")


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_newer_pickle_protocols_are_named(save_pt: Save, zipped: bool, protocol: int) -> None:
    path = save_pt(STATE, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert f"pickle protocol {protocol}" in message(path)


def test_safetensors_are_read_whatever_the_file_is_called(save_safetensors: Save) -> None:
    equal_state_path = save_safetensors(STATE, {"name": "x"}, name="weights.pt")
    found = read_checkpoint(equal_state_path)
    assert found.format == "safetensors"
    assert torch.equal(found.containers[""]["head.weight"], STATE["head.weight"])
    assert found.metadata == {"name": "x"}


def test_the_hash_is_that_of_the_files_bytes(save_pt: Save) -> None:
    path = save_pt(STATE)
    assert read_checkpoint(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_arguments_and_numpy_numbers_are_read(save_pt: Save) -> None:
    numbers = {
        "best": np.float64(0.1),
        "half": np.float16(0.5),
        "epoch": np.int32(-7),
        "done": np.bool_(True),
    }
    content = {"model": STATE, "args": deit_args(lr=np.float32(0.25)), "epoch": 3, **numbers}
    for zipped in (True, False):
        found = read_checkpoint(save_pt(content, _use_new_zipfile_serialization=zipped))
        assert found.args["model"] == "deit_tiny_patch16_224"
        assert found.args["lr"] == 0.25
        assert set(found.containers) == {"model"}
        assert found.entries == tuple(content)


def test_numpy_numbers_keep_their_values(save_pt: Save) -> None:
    values = [
        np.float64(0.1),
        np.float32(1e-3),
        np.int64(-5),
        np.uint8(200),
        np.bool_(False),
        np.float16(2.5),
    ]
    found = read_checkpoint(save_pt({"model": STATE, "args": {"values": values}})).args["values"]
    assert [(type(v), v) for v in found] == [(type(v), v) for v in values]


def test_allowing_numpy_numbers_is_over_after_reading(save_pt: Save) -> None:
    path = save_pt({"model": STATE, "args": deit_args()})
    before = set(torch.serialization.get_safe_globals())
    read_checkpoint(path)
    assert set(torch.serialization.get_safe_globals()) == before
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_pickle_runs_nothing_and_is_named(save_pt: Save, tmp_path: Path, zipped: bool) -> None:
    target = tmp_path / "created"
    path = save_pt({"model": STATE, "extra": TouchesFile(target)}, _use_new_zipfile_serialization=zipped)
    text = message(path)
    assert "mkdir" in text
    assert "nothing was run" in text
    assert not target.exists()
    pickle.loads(pickle.dumps(TouchesFile(target)))  # the trap works
    assert target.is_dir()


def test_a_plain_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    target, path = tmp_path / "created", tmp_path / "vit.pt"
    path.write_bytes(pickle.dumps(TouchesFile(target), protocol=2))
    message(path)
    path.write_bytes(pickle.dumps({"a": TouchesFile(target)}, protocol=5))
    message(path)
    assert not target.exists()


def test_a_numpy_scalar_cannot_smuggle_an_object(save_pt: Save) -> None:
    class Smuggled:
        def __reduce__(self) -> tuple[Any, ...]:
            return np.float64(1.0).__reduce__()[0], (np.dtype("O"), b"abc")

    text = message(save_pt({"model": STATE, "best": Smuggled()}))
    assert "is refused: numpy dtype 'O8' is not a number's; nothing was run" in text
    assert "damaged" not in text


def test_a_whole_model_is_named_and_its_state_dict_asked_for(save_pt: Save) -> None:
    for zipped in (True, False):
        text = message(save_pt(tiny(), _use_new_zipfile_serialization=zipped))
        assert "whole pickled model (class timm.models.vision_transformer.VisionTransformer)" in text
        assert "state_dict" in text
    text = message(save_pt({"epoch": 1, "model": nn.Sequential(nn.Linear(2, 2))}))
    assert "whole pickled model (class torch.nn.modules.container.Sequential)" in text


def test_an_unknown_class_is_named(save_pt: Save) -> None:
    text = message(save_pt({"model": STATE, "where": Path("x")}))
    assert "asks for pathlib" in text
    assert "and declare the variant in a sidecar" in text


@pytest.mark.parametrize("member", ["data/1", "data.pkl"])
def test_a_member_with_a_wrong_checksum_is_damage(save_pt: Save, member: str) -> None:
    state = {"a.weight": torch.full((64,), 1.5), "b.weight": torch.full((64,), 2.5)}
    path = save_pt(state)
    content = bytearray(path.read_bytes())
    pattern = torch.full((64,), 2.5).numpy().tobytes() if member == "data/1" else b"b.weight"
    content[content.index(pattern)] ^= 1
    path.write_bytes(content)
    assert f"the checksum of its member 'vit/{member}' is wrong" in message(path)


def test_a_file_saved_without_checksums_is_read(save_pt: Save) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = save_pt(STATE)
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None  # its checksums are indeed wrong
    equal_state(path)


def test_a_damaged_directory_of_an_archive_is_damage(save_pt: Save) -> None:
    path = save_pt(STATE)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"PK\x01\x02", b"PK\x09\x02"))
    assert "is damaged or truncated" in message(path)


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.95, 0.999])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_truncated_file_is_called_that(
    save_pt: Save, save_safetensors: Save, kind: str, kept: float
) -> None:
    state = {f"blocks.{i}.weight": torch.ones(40, 40) for i in range(8)}
    if kind == "safetensors":
        path = save_safetensors(state)
    else:
        path = save_pt(state, _use_new_zipfile_serialization=kind == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert "truncated" in message(path)


def test_every_truncation_of_a_legacy_file_is_an_error_of_one_line(save_pt: Save) -> None:
    path = save_pt(STATE, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    for length in range(1, len(content), 7):
        path.write_bytes(content[:length])
        assert str(path) in message(path)


FILES = {
    "page": (b"\n <!DOCTYPE html><html><body>Sign in</body></html>", "HTML page"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "git-LFS pointer",
    ),
    "empty": (b"", "empty"),
    "text": (b"Access denied: no such key\n", "text and begins 'Access denied: no such key'"),
    "numbers": (bytes(range(128, 160)) * 3, "begins with the bytes"),
    "zeros": (b"\0" * 600, "begins with the bytes 00"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "HDF5"),
    "gzip": (b"\x1f\x8b\x08\0" + b"\0" * 50, "gzip"),
    "tar": (b"weights".ljust(257, b"\0") + b"ustar" + b"\0" * 300, "tar archive"),
    "page as safetensors": (b"<html>not found</html>", "HTML page"),
    "page with a byte order mark": (b"\xef\xbb\xbf<html>", "HTML page"),
    "old pickle of a dict": (pickle.dumps({"a": 1}, protocol=0), "pickle of protocol 0"),
    "old pickle of a list": (pickle.dumps([1], protocol=0), "pickle of protocol 0"),
    "old pickle of a function": (pickle.dumps(os.system, protocol=0), "pickle of protocol 0"),
}


@pytest.mark.parametrize("name", FILES)
def test_other_files_are_named(tmp_path: Path, name: str) -> None:
    content, cause = FILES[name]
    for suffix in (".pt", ".pth"):
        path = tmp_path / f"weights{suffix}"
        path.write_bytes(content)
        assert cause in message(path)


@pytest.mark.parametrize("name", ["page", "pointer", "empty", "gzip"])
def test_other_files_under_the_name_of_safetensors_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(FILES[name][0])
    assert FILES[name][1] in message(path)


def test_a_safetensors_header_that_lies_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b'{"a": 1}')
    assert "damaged or truncated" in message(path)


def test_a_directory_lists_what_is_in_it(tmp_path: Path) -> None:
    assert "is a directory" in message(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert "model.safetensors" in message(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such checkpoint" in message(tmp_path / "none.pt")


def test_an_empty_path_is_named() -> None:
    with pytest.raises(CheckpointError, match="path of the checkpoint is empty"):
        read_checkpoint("")


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vit.pt")
    assert "is a device, pipe or socket" in message(tmp_path / "vit.pt")


def test_an_unreadable_path_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be read" in message(tmp_path / "file" / "vit.pt")


def test_other_zip_archives_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "vit.npz", a=np.ones(3))
    assert "npz" in message(tmp_path / "vit.npz")
    with zipfile.ZipFile(tmp_path / "vit.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is a zip archive" in message(tmp_path / "vit.zip")


def test_a_torchscript_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vit.pt"
    with zipfile.ZipFile(path, "w") as archive:  # the members that torch.jit.save writes
        for name in ("vit/data.pkl", "vit/code/__torch__.py", "vit/constants.pkl", "vit/version"):
            archive.writestr(name, b"")
    assert "TorchScript" in message(path)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ([1, 2], "holds a list"),
        (torch.ones(3), "holds a Tensor"),
        (
            {"epoch": 3, "args": argparse.Namespace()},
            "no tensors that form a state dict; its keys: epoch, args",
        ),
        ({}, "its keys: nothing"),
        ({"model": {}}, "no tensors"),
    ],
)
def test_a_file_without_a_state_dict_says_what_it_holds(save_pt: Save, content: Any, cause: str) -> None:
    assert cause in message(save_pt(content))


def test_metadata_that_is_not_a_mapping_is_an_error(save_safetensors: Save, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "vit.safetensors"
    save_file(STATE, path, metadata={"rbq": "not json"})
    assert "not usable JSON" in message(path)
    save_file(STATE, path, metadata={"rbq": "[1]"})
    assert "must be a mapping; got list" in message(path)
    save_file(STATE, path, metadata={"rbq": '{"arch": "a", "arch": "b"}'})
    assert "the key 'arch' is there twice" in message(path)


def test_metadata_in_a_file_of_torch_save(save_pt: Save) -> None:
    assert read_checkpoint(save_pt({"model": STATE, "rbq": facts()})).metadata["name"] == "tiny"


def test_timms_own_arch_entry_counts_as_the_architecture(save_pt: Save) -> None:
    content = {"state_dict": STATE, "arch": "vit_tiny_patch16_224"}
    assert read_checkpoint(save_pt(content)).args == {"model": "vit_tiny_patch16_224"}
    content["args"] = deit_args(model="deit_tiny_patch16_224")  # type: ignore[assignment]
    assert read_checkpoint(save_pt(content)).args["model"] == "deit_tiny_patch16_224"
