"""What counts as data in a folder, and paths that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robustbench_quest.datasets import open_dataset
from robustbench_quest.datasets.folder import Folder
from robustbench_quest.datasets.listing import SYSTEM, list_images
from robustbench_quest.errors import DataError, OptionError, QuestError
from robustbench_quest.files import shown


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def refusal(root: Path | str) -> str:
    with pytest.raises(QuestError) as caught:
        open_dataset("folder", root)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 600
    return message


# Litter


def test_thumbnails_of_storage_systems_are_no_images(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("cat/a.jpg", "dog/deep/b.jpg", "c.jpg"),
        "@eaDir/cat/SYNOFILE_THUMB_M.jpg",
        "cat/@eaDir/a.jpg/SYNOFILE_THUMB_M.jpg",
        "dog/deep/@EADIR/b.jpg/SYNOFILE_THUMB_M.jpg",
        "#recycle/old.jpg",
    )
    dataset = Folder(tmp_path)
    assert dataset.image_ids == ("cat/a.jpg", "dog/deep/b.jpg")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.notes[1:] == (
        "images outside the class folders, left out: 1",
        "system folders and files, left out: 4 (#recycle, @eaDir, cat/@eaDir, ...)",
    )


@pytest.mark.parametrize("name", sorted(SYSTEM))
def test_no_system_folder_is_a_class_or_holds_an_image(tmp_path: Path, name: str) -> None:
    for written in (name, name.upper()):
        listing = list_images(
            touch(tmp_path / written, "cat/a.jpg", f"{written}/b.jpg", f"cat/{written}/c.jpg")
        )
        assert listing.folders == {"cat": ("cat/a.jpg",)}
        assert listing.system == tuple(sorted((written, f"cat/{written}")))
        assert (listing.loose, listing.others, listing.hidden) == ((), (), 0)


def test_litter_is_neither_a_rival_of_a_labels_csv_nor_unlisted(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("filename,label\na.jpg,1\n")
    touch(tmp_path, "a.jpg", "@eaDir/a.jpg/thumb.jpg", "$RECYCLE.BIN/x.jpg", "Thumbs.db")
    dataset = Folder(tmp_path)
    assert dataset.notes[1:] == ("system folders and files, left out: 3 ($RECYCLE.BIN, @eaDir, Thumbs.db)",)


def test_a_folder_of_litter_holds_no_images(tmp_path: Path) -> None:
    message = refusal(touch(tmp_path, "@eaDir/a.jpg", "__MACOSX/cat/b.jpg"))
    assert message.endswith("or a labels.csv; found system folders and files: 2 (@eaDir, __MACOSX)")


def test_a_root_that_is_itself_in_a_system_folder_is_read(tmp_path: Path) -> None:
    root = touch(tmp_path / "#snapshot" / "monday", "cat/a.jpg")
    assert len(Folder(root)) == 1


# Links


def test_links_that_lead_back_by_a_detour_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "c/2.png")
    (tmp_path / "a" / "b").symlink_to(tmp_path / "c")
    (tmp_path / "c" / "d").symlink_to(tmp_path / "a")
    assert Folder(tmp_path).image_ids == ("a/1.png", "a/b/2.png", "c/2.png", "c/d/1.png")


def test_a_link_to_itself_is_a_broken_link(tmp_path: Path) -> None:
    loop = touch(tmp_path, "cat/a.png") / "cat" / "loop.png"
    loop.symlink_to(loop)
    assert refusal(tmp_path) == (
        f"{loop}: cannot be read: Too many levels of symbolic links; is it a broken link?"
    )


def test_the_current_folder_is_a_root_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for root in (".", "./", "../" + tmp_path.name):
        assert Folder(root).image_ids == ("cat/a.png",)


# Paths


def test_a_path_of_5000_characters_is_bad_input() -> None:
    long = "x" * 5000
    message = refusal(long)
    assert message.endswith("cannot be read: File name too long; expected a folder of images, check --data")
    assert refusal("/".join(["x" * 100] * 50)).startswith("x" * 100)
    with pytest.raises(OptionError) as caught:
        open_dataset("digits", long)
    assert len(str(caught.value)) < 600


def test_a_path_with_a_nul_is_bad_input() -> None:
    assert refusal("da\0ta").startswith(r"da\x00ta cannot be read: embedded null byte; expected a folder of")


def test_a_path_with_a_line_break_is_shown_in_one_line(tmp_path: Path) -> None:
    assert refusal(f"{tmp_path}/a\nb").startswith(rf"no data at {tmp_path}/a\nb: expected a folder of images")
    image = touch(tmp_path, "cat/a\nb.png") / "cat" / "a\nb.png"
    dataset = Folder(tmp_path)
    with pytest.raises(DataError, match=r"^[^\n]*a\\nb\.png: expected an image, found an empty file"):
        dataset.read(0)
    image.unlink()
    with pytest.raises(DataError, match=r"^[^\n]*a\\nb\.png: cannot be read: No such file or directory$"):
        dataset.read(0)


def test_a_loop_of_links_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refusal(tmp_path / "loop").startswith(
        f"{tmp_path}/loop cannot be read: Too many levels of symbolic links; expected a folder of images"
    )


def test_a_folder_below_a_file_is_missing(tmp_path: Path) -> None:
    assert refusal(touch(tmp_path, "a.tar") / "a.tar" / "val").startswith("no data at ")


def test_a_folder_that_is_forbidden_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("robustbench_quest.datasets.listing.os.stat", forbidden)
    message = refusal(tmp_path)
    monkeypatch.undo()
    assert message.startswith(f"{tmp_path} cannot be read: Permission denied; expected a folder of images")


# labels.csv


@pytest.mark.parametrize("name", ["x" * 5000, "y/" * 2500 + "z.png"])
def test_a_listed_name_that_no_file_system_takes_is_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.csv").write_text(f"filename,label\n{name},1\n")
    assert "labels.csv: 1 of 1 listed images are missing: " in refusal(tmp_path)


def test_a_label_of_thousands_of_digits_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"filename,label\na.png,{'9' * 5000}\n")
    assert "line 2: expected a label of at most 2147483647, found 9999" in refusal(touch(tmp_path, "a.png"))


def test_a_labels_csv_that_is_a_pipe_or_leads_nowhere_is_bad_input(tmp_path: Path) -> None:
    os.mkfifo(touch(tmp_path, "a.png") / "labels.csv")
    assert refusal(tmp_path) == f"{tmp_path}/labels.csv: expected a file, found something else; rename it"
    (tmp_path / "labels.csv").unlink()
    (tmp_path / "labels.csv").symlink_to(tmp_path / "gone")
    assert refusal(tmp_path) == f"{tmp_path}/labels.csv: cannot be read: No such file or directory"


# What is shown of a path


def test_short_printable_paths_are_shown_as_they_are() -> None:
    for path in ("data/a b/ü.png", "/x/y", "C:\\data", ""):
        assert shown(path) == path
    assert shown(Path("a")) == "a"


def test_other_paths_become_one_short_line() -> None:
    assert shown("a\nb\x1b[31m\udcff") == r"a\nb\x1b[31m\udcff"
    assert shown("a" * 200 + "b" * 200) == "a" * 120 + "..." + "b" * 120
