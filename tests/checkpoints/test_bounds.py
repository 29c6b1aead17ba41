"""What a file claims beyond its size is refused before it is read, in little time."""

from __future__ import annotations

import io
import pickle
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_checkpoints import Save, State, facts, hollow, named

from robustbench_quest.checkpoints.file import read_checkpoint
from robustbench_quest.errors import CheckpointError

pytestmark = pytest.mark.timeout(30)
STATE: State = {"blocks.0.weight": torch.randn(6, 5, generator=torch.Generator().manual_seed(0))}
SECONDS = 8.0  # on a machine that is busy with other things


def message(path: Path) -> str:
    start = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert time.perf_counter() - start < SECONDS
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def zipped_again(
    path: Path, compression: int = zipfile.ZIP_STORED, name: Callable[[str], str] = lambda name: name
) -> Path:
    """Return the archive with the same members in another archive."""
    again = path.with_name("again.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(again, "w", compression) as new:
        for member in old.namelist():
            new.writestr(name(member), old.read(member))
    return again


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_was_compressed_is_called_that(save_pt: Save, compression: int) -> None:
    # torch would map the compressed bytes as the numbers of the tensors.
    text = message(zipped_again(save_pt(STATE), compression))
    assert "was zipped again with compression (its member 'vit/data.pkl')" in text
    assert "zip -0 -r vit.pt FOLDER" in text


def test_an_archive_that_was_stored_again_is_read(save_pt: Save) -> None:
    path = zipped_again(save_pt(STATE), name=lambda name: "other/" + name.partition("/")[2])
    assert torch.equal(read_checkpoint(path).containers[""]["blocks.0.weight"], STATE["blocks.0.weight"])


@pytest.mark.parametrize(
    ("name", "found"), [("up/{}", "up/vit/data.pkl"), ("{}", "data.pkl")], ids=["deeper", "flat"]
)
def test_an_archive_in_another_layout_is_called_that(save_pt: Save, name: str, found: str) -> None:
    def moved(member: str) -> str:
        return name.format(member if "/" in name else member.partition("/")[2])

    text = message(zipped_again(save_pt(STATE), name=moved))
    assert f"in another layout: it holds {found}, expected one folder with data.pkl" in text


def test_a_file_of_another_system_beside_the_folder_is_named(save_pt: Save) -> None:
    path = zipped_again(save_pt(STATE))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/vit/._data.pkl", b"")
    assert "it holds __MACOSX/vit/._data.pkl, expected one folder" in message(path)


def test_a_compressed_archive_of_something_else_is_called_what_it_is(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.ones(3))
    assert "is a numpy .npz archive" in message(tmp_path / "a.npz")


def test_a_pickle_that_inflates_is_not_inflated(save_pt: Save) -> None:
    path = save_pt({"model": STATE, "note": "x" * 50_000_000})
    small = zipped_again(path, zipfile.ZIP_DEFLATED)
    assert small.stat().st_size < 1_000_000
    assert "with compression" in message(small)


def test_members_that_overlap_are_refused(save_pt: Save) -> None:
    path = save_pt({**STATE, "large": torch.zeros(250_000)})
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start, count = archive.start_dir, 400 * len(archive.namelist())
    end = content.index(b"PK\x06\x06", start)  # the record that follows the list
    directory = content[start:end] * 400  # each of the same bytes
    record = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(directory), start, 0)
    path.write_bytes(content[:start] + directory + record)
    assert "its members claim 400," in message(path)


@pytest.mark.parametrize("large", [False, True], ids=["zip", "zip64"])
def test_a_million_members_are_refused(tmp_path: Path, large: bool) -> None:
    names = b"".join(
        struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, *[0] * 9, 8, *[0] * 6) + b"a/%06x" % index
        for index in range(400_000)
    )
    said = 0 if large else len(names)
    record = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, said, 30, 0)
    if large:
        count, size, place = 400_000, len(names), len(names) + 30
        wide = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, 30)
        record = wide + struct.pack("<IIQI", 0x07064B50, 0, place, 1) + record
    path = tmp_path / "vit.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(26) + names + record)
    assert "lists its members in 21,600,000 bytes, expected at most 16,777,216" in message(path)


def archived(tmp_path: Path, body: bytes, zipped: bool) -> Path:
    """Write a file of torch.save, in either format, of which the object is this pickle."""
    path = tmp_path / "vit.pt"
    torch.save({}, path, _use_new_zipfile_serialization=zipped)
    if zipped:
        again = tmp_path / "made.pt"
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(again, "w") as new:
            for name in old.namelist():
                new.writestr(name, body if name.endswith("data.pkl") else old.read(name))
        return again
    begin, file = 0, io.BytesIO(path.read_bytes())
    for _ in range(3):  # magic number, protocol, machine
        pickle.load(file)
        begin = file.tell()
    content = path.read_bytes()
    pickle.load(file)
    path.write_bytes(content[:begin] + body + content[file.tell() :])
    return path


def doubling(levels: int) -> bytes:
    """Return the beginning of a pickle that makes a tuple of 2 ** levels values from few bytes."""
    steps = [b"\x80\x02}K\x01\x85q\x00"]  # protocol 2, {}, (1,), remembered as 0
    steps += [b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(levels)]
    return b"".join(steps)


BOMBS = {
    "a key that is a tuple of very many": doubling(40) + b"K\x01s.",
    "a key of very deep tuples": b"\x80\x02}K\x01" + b"\x85" * 3_000_000 + b"K\x01s.",
    "very many steps": b"\x80\x02}" + b"K\x01K\x01s" * 400_000 + b".",
    "a bytearray of a length": b"\x80\x02}K\x01cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x10\x85Rs.",
    "the same of Python 2": b"\x80\x02}K\x01c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x10\x85Rs.",
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_grows_is_refused(tmp_path: Path, name: str, zipped: bool) -> None:
    text = message(archived(tmp_path, BOMBS[name], zipped))
    wanted = (
        "asks for a bytearray" if "bytearray" in BOMBS[name].decode("latin-1") else "too many or too deeply"
    )
    assert wanted in text


@pytest.mark.parametrize("zipped", [True, False])
def test_lists_that_grow_and_nest_are_nobodys_concern(tmp_path: Path, zipped: bool) -> None:
    body = (
        b"\x80\x02}X\x01\x00\x00\x00aK\x01s" + b"X\x01\x00\x00\x00b" + b"]" * 100_000 + b"a" * 99_999 + b"s."
    )
    assert "no tensors that form a state dict; its keys: a, b" in message(archived(tmp_path, body, zipped))


@pytest.mark.parametrize("zipped", [True, False])
def test_ordinary_training_checkpoints_are_far_from_the_bounds(save_pt: Save, zipped: bool) -> None:
    model = named("vit_tiny_patch16_224", depth=2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3, 224, 224)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": {(1, (2, 3)): 4}}
    path = save_pt(content, _use_new_zipfile_serialization=zipped)
    assert len(read_checkpoint(path).containers["model"]) == len(model.state_dict())


@pytest.mark.parametrize("zipped", [True, False])
def test_an_expanded_tensor_of_absurd_size_is_refused(save_pt: Save, zipped: bool) -> None:
    state = {**STATE, "head.weight": torch.zeros(()).expand(10**6, 10**6)}
    path = save_pt({"model": state, "rbq": facts()}, _use_new_zipfile_serialization=zipped)
    assert "head.weight of model claims 1,000,000,000,000 elements" in message(path)


def test_many_expanded_tensors_of_absurd_size_together_are_refused(save_pt: Save) -> None:
    state = {f"{i}.weight": torch.zeros(()).expand(1000, 1000, 10) for i in range(200)}
    assert "0.weight of the file itself claims 10,000,000 elements" in message(save_pt(state))


def test_memory_that_a_file_asks_for_and_does_not_fill_is_refused(tmp_path: Path) -> None:
    asks = b"ctorch\nFloatTensor\n\x8a\x05\x00\x00\x00\x80\x00\x85R"  # of 2 ** 31
    body = b"\x80\x02}X\x08\x00\x00\x00a.weight" + asks + b"s."
    # What cannot be allocated at all fails while it is read.
    assert any(said in message(archived(tmp_path, body, True)) for said in ("a.weight of", "is damaged"))


def test_expanded_tensors_of_a_real_size_are_read(save_pt: Save) -> None:
    with torch.device("meta"):
        model = named("vit_large_patch16_224")
    found = read_checkpoint(save_pt(hollow(model))).containers[""]
    assert sum(tensor.numel() for tensor in found.values()) > 300_000_000


def safetensors(path: Path, header: bytes, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_a_long_header_of_safetensors_is_refused(tmp_path: Path) -> None:
    note = b'{"__metadata__": {"note": "' + b"x" * (1 << 24) + b'"}}'
    text = message(safetensors(tmp_path / "vit.safetensors", note))
    assert f"has a header of {len(note):,} bytes, expected at most 16,777,216" in text


def metadata(text: str) -> bytes:
    import json

    return json.dumps({"__metadata__": {"rbq": text}}).encode()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[" * 100_000, "is not usable JSON: maximum recursion depth"),
        ('{"a": ' * 30_000, "is not usable JSON: maximum recursion depth"),
        ('{"depth": ' + "9" * 5000 + "}", "is not usable JSON: Exceeds the limit"),
        (
            "{" + ",".join(f'"{i}": 1' for i in [*range(20_000), 19_999]) + "}",
            "the key '19999' is there twice",
        ),
        ('{"note": "' + "x" * 300_000 + '"}', "has 300,012 characters, expected at most 262,144"),
    ],
    ids=["lists", "mappings", "digits", "repeated key", "length"],
)
def test_metadata_that_grows_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    assert cause in message(safetensors(tmp_path / "vit.safetensors", metadata(text)))


def holding_itself() -> dict[str, Any]:
    content: dict[str, Any] = {"model": STATE, "epoch": 3}
    content["self"] = content
    return content


def test_a_dict_that_holds_itself_is_read(save_pt: Save) -> None:
    found = read_checkpoint(save_pt(holding_itself()))
    assert list(found.containers) == ["model"]


def test_a_model_that_holds_itself_is_an_error_of_one_line(save_pt: Save) -> None:
    content: dict[str, Any] = dict(STATE)
    content["model"] = content
    assert "model['model'] is a dict, expected a state dict of tensors only" in message(save_pt(content))
    bare: dict[str, Any] = {"epoch": 3}
    bare["model"] = bare
    assert "its keys: epoch, model" in message(save_pt(bare))


def test_mappings_that_share_their_parts_are_looked_through_once(save_pt: Save) -> None:
    shared: dict[str, Any] = {"x": 1}
    for _ in range(60):
        shared = {"a": shared, "b": shared}
    assert list(read_checkpoint(save_pt({"model": shared, "ema": STATE})).containers) == ["ema"]


def test_names_of_several_lines_stay_in_one(save_pt: Save) -> None:
    assert "its keys: a b, c" in message(save_pt({"a\nb": 1, "c": 2}))


PATHS = {
    "very long": "x" * 5000,
    "very deep": "x/" * 3000 + "vit.pt",
    "with a NUL byte": "vit\0.pt",
    "of several lines": "a\nb.pt",
    "through a file": "file/vit.pt",
    "a link to itself": "loop.pt",
    "through a link to itself": "loop.pt/vit.pt",
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_cannot_be_is_bad_input(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    text = message(tmp_path / PATHS[name])
    assert "cannot be read" in text or "no such checkpoint" in text
    assert "\0" not in text


def test_a_file_that_may_not_be_read_is_bad_input(save_pt: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = save_pt(STATE), Path.open

    def refused(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    assert message(path) == f"{path} cannot be read: Permission denied"


def test_a_folder_that_may_not_be_listed_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    assert message(tmp_path) == f"{tmp_path} cannot be read: Permission denied"


def test_the_longest_file_name_has_no_sidecar_and_is_read(save_pt: Save, tmp_path: Path) -> None:
    from robustbench_quest.checkpoints.declared import sidecar_path

    path = tmp_path / ("x" * 252 + ".pt")
    shutil.move(save_pt(STATE), path)
    assert read_checkpoint(path).containers
    assert sidecar_path(path) is None


def test_a_sidecar_that_is_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    from robustbench_quest.checkpoints.declared import sidecar_path

    (tmp_path / "vit.yaml").symlink_to("moved.yaml")
    with pytest.raises(CheckpointError, match=r"vit\.yaml is no file, expected the sidecar of vit\.pt"):
        sidecar_path(tmp_path / "vit.pt")
