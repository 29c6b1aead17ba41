"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support import ROOT

from robustbench_quest.checkpoints.declared import from_sidecar
from robustbench_quest.cli.entry import rbq
from robustbench_quest.cli.evaluate import evaluate
from robustbench_quest.demo import demo_checkpoint

README = (ROOT / "README.md").read_text(encoding="utf-8")


def fenced(language: str, first: str) -> str:
    """Return the code block of a language that begins with a line."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    return next(block for block in blocks if block.startswith(first))


def test_every_flag_and_command_exists() -> None:
    known = {option for parameter in evaluate.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named
    assert named <= known | {"--help"}
    assert isinstance(rbq, click.Group)
    assert set(re.findall(r"\brbq ([a-z]+)", README)) <= set(rbq.commands)
    for script in re.findall(r"scripts/[a-z]+", README):
        assert (ROOT / script).is_file()


def test_the_sidecar_is_valid(tmp_path: Path) -> None:
    sidecar = tmp_path / "vit_ti_quest.pt.yaml"
    sidecar.write_text(fenced("yaml", "# vit_ti_quest.pt.yaml"))
    declared = from_sidecar(sidecar)
    assert (declared.arch, declared.attention) == ("deit_tiny_patch16_224", "quest")


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
def test_the_users_own_attention_runs(attack: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(fenced("python", "# mine.py"))
    command = [sys.executable, str(ROOT / "run_eval.py"), "--ckpt", str(demo_checkpoint()), "--limit", "10"]
    command += ["--attention", "mine.py:MyAttention", "--attack", attack]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "attention mine.py:MyAttention" in done.stdout
