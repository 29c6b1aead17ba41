"""A user's code is its file and the files beside it that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm

from robustbench_quest.user_code import load_object
from robustbench_quest.user_sources import local_sources, sources_sha256

FILES = {
    "mine.py": "import os\nimport torch\nfrom helper import SCALE\nimport pack.part as part\n",
    "helper.py": "import mine\nSCALE = 1\n",  # imports may go round in circles
    "unused.py": "",
    "pack/__init__.py": "",
    "pack/part.py": "from . import other\nfrom .deep.end import X\n",
    "pack/other.py": "from pack.absolute import Y\n",
    "pack/absolute.py": "Y = 1\n",
    "pack/deep/__init__.py": "",
    "pack/deep/end.py": "from ..above import Z\nX = Z\n",
    "pack/above.py": "def late():\n    import lazy\nZ = 1\n",
    "lazy.py": "",
}
USED = {*FILES} - {"unused.py"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_import_is_followed(folder: Path) -> None:
    found = local_sources(folder / "mine.py")
    assert {str(path.relative_to(folder.resolve())) for path in found} == USED


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_change_in_any_used_file_changes_the_hash(name: str, folder: Path) -> None:
    before = sources_sha256(folder / "mine.py")
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    assert (sources_sha256(folder / "mine.py") != before) is (name in USED)


def test_the_folder_does_not_matter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = tmp_path_factory.mktemp("elsewhere") / "code"
    before = sources_sha256(folder / "mine.py")
    folder.rename(moved)
    assert sources_sha256(moved / "mine.py") == before
    moved.rename(folder)


def test_installed_packages_are_not_followed() -> None:
    file = Path(timm.__file__)
    assert local_sources(file) == [file.resolve()]


def test_it_is_what_identifies_a_users_code(folder: Path) -> None:
    (folder / "own.py").write_text("from lazy import *\ndef make(): pass\n")
    first = load_object(f"{folder}/own.py:make", "--model")[1]
    (folder / "lazy.py").write_text("CHANGED = 1\n")
    assert load_object(f"{folder}/own.py:make", "--model")[1] != first
