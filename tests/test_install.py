"""The package works in the states in which people have it: editable, from a wheel, and as a bare checkout."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from support import ROOT

SOURCES = ("robustbench_quest", "attacks", "configs", "run_eval.py", "setup.cfg", "pyproject.toml", "LICENSE")
HOSTILE = "raise SystemExit('a file of the user was imported in place of the package')\n"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, as a clone has them."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (*SOURCES, "README.md"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
    ]
    source = tmp_path_factory.mktemp("source") / "copy"  # the build leaves files in its folder
    shutil.copytree(checkout, source)
    subprocess.run([*command, str(source)], check=True)
    return next(out.glob("*.whl"))


def fresh_python(folder: Path) -> tuple[Path, Path]:
    """Make an environment; return its Python and the folder of its packages.

    The dependencies are those of this environment, by path: the new one's own packages come first, and an
    editable install in this environment does not reach it.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", query, cwd=folder).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python, site


@pytest.fixture(scope="session")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel in it."""
    python, site = fresh_python(tmp_path_factory.mktemp("clean"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return python


def run(python: Path | str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_the_mapped_packages_the_zoo_and_the_protocols(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"robustbench_quest/{path.relative_to(root)}"
        for root, pattern in (
            (ROOT / "robustbench_quest", "**/*.py"),
            (ROOT / "robustbench_quest", "demo/*.safetensors"),
            (ROOT, "attacks/*.py"),
            (ROOT, "configs/**/*.yaml"),
            (ROOT / "robustbench_quest", "py.typed"),
        )
        for path in root.glob(pattern)
    }
    assert expected <= names
    assert not any(name.startswith(("attacks/", "configs/", "tests/")) for name in names)


def test_a_wheel_works_beside_a_hostile_attacks_py(clean_python: Path, tmp_path: Path) -> None:
    for name in ("attacks.py", "configs.py"):
        (tmp_path / name).write_text(HOSTILE)
    origin = run(clean_python, "-c", "import robustbench_quest as r; print(r.__file__)", cwd=tmp_path)
    assert str(clean_python.parent.parent) in origin.stdout
    flags = ["eval", "--attack", "fgsm", "--limit", "5", "--format", "csv", "--device", "auto"]
    done = run(clean_python, "-m", "robustbench_quest", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fgsm" in done.stdout


def test_run_eval_works_in_a_checkout_after_pip_install(clean_python: Path, checkout: Path) -> None:
    done = run(clean_python, "run_eval.py", "--help", cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert "--ckpt" in done.stdout
    assert run(clean_python, "run_eval.py", "--explain", "--attack", "pgd", cwd=checkout).returncode == 0


def test_run_eval_works_in_a_bare_checkout(checkout: Path, tmp_path: Path) -> None:
    python, _ = fresh_python(tmp_path / "bare")
    assert "No module" in run(python, "-c", "import robustbench_quest", cwd=tmp_path).stderr
    for arguments in (["--help"], ["--explain", "--attack", "pgd"]):
        done = run(python, "run_eval.py", *arguments, cwd=checkout)
        assert done.returncode == 0, done.stderr


def test_an_editable_install_has_both_programs() -> None:
    folder = Path(sys.executable).parent
    for program in ("rbq", "robustbench-quest"):
        done = run(folder / program, "--version", cwd=Path("/"))
        assert (done.returncode, done.stdout.split()[0]) == (0, "rbq,")


def test_the_public_names() -> None:
    import robustbench_quest as rbq

    assert set(rbq.__all__) == {
        "Classifier",
        "Store",
        "__version__",
        "evaluate",
        "load_model",
        "metrics",
        "open_dataset",
        "threat",
    }
    for name in rbq.__all__:
        assert getattr(rbq, name) is not None
    importlib.import_module("robustbench_quest.evaluation")  # must not replace the function
    assert rbq.evaluate.__name__ == "evaluate"
    with pytest.raises(AttributeError, match="has no attribute 'evalute'"):
        rbq.evalute  # noqa: B018
