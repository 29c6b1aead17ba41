"""The command line as a user meets it: tables, exit codes, and one line for every mistake."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import read_npz

from robustbench_quest.cli.entry import rbq, run
from robustbench_quest.cli.evaluate import evaluate
from robustbench_quest.datasets.digits import load_arrays
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.store import Store

CONV = """
import torch
from torch import nn

class Tiny(nn.Module):
    num_classes = 10
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=4)
        self.head = nn.Linear(width * 8 * 8, 10)
    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))

def make(width=4):
    return Tiny(width)
"""


class Outcome:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run ``run_eval.py`` (or, with group=True, ``rbq``) in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, group: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["x", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            run(rbq if group else evaluate, "rbq" if group else "run_eval.py")
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Outcome(stop.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def digit_folder(tmp_path: Path) -> Path:
    """Class folders 0-9 with two 32x32 images each."""
    pixels, labels, test = load_arrays()
    for digit in range(10):
        folder = tmp_path / "digits" / str(digit)
        folder.mkdir(parents=True)
        for place in np.flatnonzero(test & (labels == digit))[:2]:
            Image.fromarray(pixels[place]).save(folder / f"{place}.png")
    return tmp_path / "digits"


def test_the_headline(cli: Cli) -> None:
    first = cli("--attack", "pgd", "--limit", 40, "--format", "csv")
    assert first.code == 0
    clean, pgd = first.rows()
    assert (clean["model"], clean["attention"], clean["dataset"]) == (
        "vit_digits_quest_s0",
        "quest",
        "digits",
    )
    assert (pgd["threat"], pgd["eps"], pgd["n"], pgd["protocol"]) == ("pgd", "4/255", "40", "pixel")
    assert float(clean["top1"]) > 90
    assert float(pgd["top1"]) < float(pgd["clean_top1"]) == float(clean["top1"])
    assert "steps=20, alpha='0.15eps', random_start=True" in pgd["settings"]


def test_the_same_command_answers_from_the_store(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cli("--attack", "pgd", "--limit", 20)

    def refuse(*_: object) -> None:
        raise AssertionError("a model was run")

    monkeypatch.setattr("robustbench_quest.models.classifier.Classifier.forward", refuse)
    assert cli("--attack", "pgd", "--limit", 20).out == first.out


def test_every_eps_is_a_cell_and_equal_ones_are_one(cli: Cli) -> None:
    done = cli("--attack", "fgsm", "--eps", "1/255, 2/510,8/255", "--limit", 20, "--format", "csv")
    assert [row["eps"] for row in done.rows()] == ["", "1/255", "8/255"]


def test_several_checkpoints_are_rows_of_one_table(cli: Cli) -> None:
    paths = [value for name in ("quest", "standard") for value in ("--ckpt", demo_checkpoint(name))]
    done = cli(*paths, "--attack", "fgsm", "--limit", 20)
    assert re.search(r"vit_digits_quest_s0 +quest +20", done.out)
    assert re.search(r"vit_digits_standard_s0 +standard +20", done.out)


def test_checkpoints_of_the_same_name_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    copies = [tmp_path / "a" / "m.safetensors", tmp_path / "b" / "m.safetensors"]
    for copy in copies:
        copy.parent.mkdir()
        copy.write_bytes(demo_checkpoint().read_bytes())
    rows = cli("--ckpt", copies[0], "--ckpt", copies[1], "--limit", 10, "--format", "csv").rows()
    assert [row["model"] for row in rows] == [str(copy) for copy in copies]


def test_formats_and_save(cli: Cli, tmp_path: Path) -> None:
    assert cli("--limit", 10, "--format", "latex", "--save", "t.tex").out == (tmp_path / "t.tex").read_text()
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    rows = json.loads(cli("--limit", 10, "--format", "json").out)
    assert rows[0]["n"] == 10
    assert len(rows[0]["cell_id"]) == 64
    assert len(list(Store(tmp_path / "results").facts())) == 1


def test_explain_computes_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("--attack", "pgd", "--steps", 7, "--explain")
    assert done.code == 0
    assert re.search(r"attention +quest +metadata in the file", done.out)
    assert re.search(r"eps +4/255 +default of data set digits", done.out)
    assert re.search(r"steps +7 +flag", done.out)
    assert re.search(r"alpha +0.15eps +protocol pixel", done.out)
    assert "0 of 2 blocks of 256 in the store" in done.out
    assert not (tmp_path / "results").exists()


def test_the_protocol_gives_eps_where_the_data_does_not(cli: Cli, digit_folder: Path) -> None:
    rows = cli("--data", digit_folder, "--attack", "fgsm", "--format", "csv").rows()
    assert [(row["dataset"], row["n"], row["eps"]) for row in rows] == [
        ("folder", "20", ""),
        ("folder", "20", "1/255"),
    ]
    assert float(rows[0]["top1"]) > 90


def test_a_users_own_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CONV)
    flags = ["--model", "mine.py:make", "--mean", "0,0,0", "--std", "1,1,1", "--img-size", 32, "--resize", 32]
    done = cli(*flags, "--model-option", "width=6", "--dataset", "digits", "--attack", "pgd", "--limit", 10)
    assert done.code == 0, done.err
    assert "near chance" in done.out  # it is untrained, and the table says so


def test_kept_images(cli: Cli, tmp_path: Path) -> None:
    assert cli("--attack", "fgsm", "--limit", 10, "--keep-images", 3).code == 0
    arrays = [read_npz(path) for path in (tmp_path / "results").rglob("*.npz")]
    assert sorted(len(array["clean"]) for array in arrays) == [3, 3]
    assert sorted("perturbed" in array for array in arrays) == [False, True]


BAD = {
    "unknown attack": (["--attack", "pdg"], "unknown attack 'pdg'; did you mean 'pgd'? Available: fgsm, pgd"),
    "unknown dataset": (["--dataset", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
    "unknown protocol": (["--protocol", "pixels"], "unknown protocol 'pixels'; did you mean 'pixel'?"),
    "unknown format": (["--format", "text"], "unknown format 'text'; "),
    "unknown device": (["--device", "gpu"], "unknown device 'gpu'; use auto, cpu, cuda, cuda:1 or mps"),
    "absent device": (["--device", "cuda:99"], "device 'cuda:99': this machine shows"),
    "unknown attention": (["--attention", "qest"], "unknown attention 'qest'; did you mean 'quest'?"),
    "another attention": (["--attention", "qknorm-ln"], "qknorm-ln"),
    "unknown weights": (["--weights", "best"], "best"),
    "unknown interpolation": (
        ["--interpolation", "cubic"],
        "unknown interpolation 'cubic'; did you mean 'bicubic'?",
    ),
    "eps 2": (["--attack", "pgd", "--eps", "2"], "did you mean 2/255?"),
    "eps 1/0": (["--attack", "pgd", "--eps", "1/0"], "eps '1/0' divides by zero; write it as 4/255"),
    "eps text": (["--attack", "pgd", "--eps", "big"], "eps 'big' is not a number"),
    "eps negative": (["--attack", "pgd", "--eps=-1/255"], "eps '-1/255' is negative"),
    "eps nan": (["--attack", "pgd", "--eps", "nan"], "eps 'nan' is not finite"),
    "eps large": (["--attack", "pgd", "--eps", "0.5"], "--allow-large-eps"),
    "eps empty": (["--attack", "pgd", "--eps", "1/255,"], "--eps '1/255,' has an empty entry"),
    "eps without attack": (
        ["--eps", "1/255"],
        "--eps is a setting of fgsm, pgd, but --attack names no attack",
    ),
    "l2 without eps": (["--attack", "pgd", "--norm", "l2"], "--norm l2 has no default budget; give one"),
    "norm": (["--attack", "pgd", "--norm", "l3"], "unknown norm 'l3'"),
    "steps 0": (["--attack", "pgd", "--steps", "0"], "steps 0: expected a whole number of at least 1"),
    "steps text": (
        ["--attack", "pgd", "--steps", "ten"],
        "Invalid value for '--steps': 'ten' is not a valid integer",
    ),
    "steps of fgsm": (
        ["--attack", "fgsm", "--steps", "3"],
        "--steps is a setting of pgd, but --attack names fgsm",
    ),
    "alpha": (["--attack", "pgd", "--alpha", "2"], "a step relative to eps is written 0.15eps"),
    "restarts": (["--attack", "pgd", "--restarts", "0"], "restarts 0: expected a whole number of at least 1"),
    "same restarts": (["--attack", "pgd", "--restarts", "2", "--no-random-start"], "would all be the same"),
    "labels": (["--attack", "pgd", "--labels", "ture"], "unknown labels 'ture'; did you mean 'true'?"),
    "keep": (["--attack", "pgd", "--keep", "first"], "unknown keep 'first'"),
    "severity": (["--severity", "6"], "No such option"),
    "unknown flag": (["--atack", "pgd"], "No such option '--atack'"),
    "extra argument": (["vit.pt"], "unexpected extra argument (vit.pt)"),
    "limit": (["--limit", "0"], "--limit must be at least 1, but is 0"),
    "batch size": (["--batch-size", "0"], "--batch-size must be at least 1"),
    "block size": (["--block-size", "0"], "--block-size must be at least 1, but is 0"),
    "workers": (["--workers", "-1"], "--workers must be at least 0, but is -1"),
    "keep images": (["--keep-images", "-1"], "--keep-images must be at least 0, but is -1"),
    "mean": (["--mean", "0.5"], "--mean '0.5': expected three numbers"),
    "std": (["--std", "a,b,c"], "--std 'a,b,c': expected three numbers"),
    "zero std": (["--std", "0,1,1"], "std must be positive"),
    "image size": (["--img-size", "33"], "--img-size 33 is not a whole number of patches of 8 pixels"),
    "option form": (
        ["--attention-option", "estimator"],
        "--attention-option 'estimator' is not of the form KEY=VALUE",
    ),
    "option twice": (["--arch-option", "a=1", "--arch-option", "a=2"], "--arch-option gives a twice"),
    "save": (["--save", "nowhere/t.csv"], "--save nowhere/t.csv: its folder does not exist"),
    "missing checkpoint": (["--ckpt", "vit.pt"], "vit.pt"),
    "missing model file": (["--model", "mine.py:make"], "mine.py"),
    "embedded with data": (["--dataset", "digits", "--data", "."], "is embedded and reads no --data"),
    "folder without data": (["--dataset", "folder"], "needs --data DIR"),
    "missing data": (["--data", "nowhere"], "nowhere"),
    "no images": (["--data", "."], "image"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_and_runs_nothing(name: str, cli: Cli, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    done = cli(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert not (tmp_path / "results").exists()


def test_labels_out_of_range_are_refused(cli: Cli, digit_folder: Path) -> None:
    (digit_folder / "9").rename(digit_folder / "12")
    done = cli("--data", digit_folder)
    assert done.code == 2
    assert re.search(r"error: label 12 of 12/\d+.png is out of range: the model has classes 0-9", done.err)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16", "CMYK"])
def test_every_kind_of_image_is_read_right(mode: str, cli: Cli, digit_folder: Path) -> None:
    expected = cli("--data", digit_folder, "--format", "csv").rows()[0]["nll"]
    for path in digit_folder.rglob("*.png"):
        grey = np.asarray(Image.open(path))[..., 0]
        if mode == "I;16":
            Image.fromarray(grey.astype(np.uint16) * 257).save(path)
        elif mode == "CMYK":
            Image.open(path).convert("CMYK").save(path.with_suffix(".tiff"))
            path.unlink()
        else:
            Image.fromarray(grey).convert("1" if mode == "1" else mode).save(path)
    done = cli("--data", digit_folder, "--format", "csv")
    assert done.code == 0, done.err
    if mode != "1":  # black and white loses grey levels; it must only be read
        assert float(done.rows()[0]["nll"]) == pytest.approx(float(expected), abs=1e-6)


def test_a_1x1_image_is_resized(cli: Cli, digit_folder: Path) -> None:
    Image.new("RGB", (1, 1)).save(digit_folder / "0" / "tiny.png")
    done = cli("--data", digit_folder, "--resize", 32, "--format", "csv")
    assert (done.code, done.rows()[0]["n"]) == (0, "21")
    # Without a resize the size is the checkpoint's, and is checked.
    refused = cli("--data", digit_folder, "--format", "csv")
    assert refused.code == 1
    assert "0/tiny.png" in refused.rows()[0]["error"]


def test_a_truncated_image_fails_its_cell_by_name_and_the_others_go_on(cli: Cli, digit_folder: Path) -> None:
    victim = next((digit_folder / "3").iterdir())
    victim.write_bytes(victim.read_bytes()[:-40])
    done = cli("--data", digit_folder, "--attack", "fgsm", "--limit", 20, "--format", "csv")
    assert done.code == 1
    assert len(done.rows()) == 2
    assert all(f"3/{victim.name}" in row["error"] for row in done.rows())
    assert all(row["top1"] == "" for row in done.rows())
    assert "Traceback" not in done.err


def test_a_model_that_fails_is_shown_as_failed_and_kept(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        CONV.replace(
            "return self.head", "if x.requires_grad: raise MemoryError('full')\n        return self.head"
        )
    )
    flags = [
        "--model",
        "mine.py:make",
        "--mean",
        "0,0,0",
        "--std",
        "1,1,1",
        "--img-size",
        32,
        "--dataset",
        "digits",
    ]
    done = cli(*flags, "--attack", "fgsm", "--limit", 10)
    assert done.code == 1
    assert re.search(r"clean +10 ", done.out)
    assert re.search(r"FGSM linf 4/255 +10 +- +failed \[.\]", done.out)
    assert "MemoryError: full" in done.out
    kept = [json.loads(path.read_bytes()) for path in (tmp_path / "results").rglob("error.json")]
    assert "Traceback" in kept[0]["traceback"]


def test_a_fault_of_ours_is_one_line_unless_debug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("robustbench_quest.cli.session.load_protocol", broken)
    done = cli()
    assert (done.code, done.err) == (
        1,
        "error: internal error: ZeroDivisionError: oh (--debug shows where)\n",
    )
    assert "Traceback" in cli("--debug").err


def test_interrupting_says_that_work_is_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robustbench_quest.cli.session.evaluate", interrupt)
    done = cli("--limit", 10)
    assert done.code == 130
    assert "finished blocks are kept" in done.err


def test_list(cli: Cli) -> None:
    everything = cli("list", group=True).out
    for name in ("fgsm", "elliptical-quest", "digits", "pixel"):
        assert name in everything
    assert cli("list", "attacks", group=True).out.split()[0] == "fgsm"
    wrong = cli("list", "attack", group=True)
    assert wrong.code == 2
    assert "'attacks'" in wrong.err


def test_inspect(cli: Cli) -> None:
    done = cli("inspect", demo_checkpoint("elliptical"), group=True)
    assert done.code == 0
    for fact in ("elliptical", "vision_transformer", "sha256", "digits"):
        assert fact in done.out
    assert cli("inspect", "none.pt", group=True).code == 2
    assert json.loads(cli("inspect", "--json", demo_checkpoint(), group=True).out)["parameters"] == 86554


def test_demo(cli: Cli) -> None:
    done = cli("demo", "--limit", 10, group=True)
    assert done.code == 0
    for name in (
        "standard",
        "quest",
        "qnorm",
        "qknorm-hs",
        "qknorm-ds",
        "qknorm-ln",
        "elliptical",
        "elliptical-quest",
    ):
        assert re.search(rf"vit_digits_{name}_s0 ", done.out)
    assert done.out.splitlines()[0].split() == ["clean", *["FGSM", "linf", "4/255", "PGD", "linf", "4/255"]]


HEAVY = ("torch", "pandas", "scipy", "matplotlib", "timm", "sklearn")
LIGHT = """
import sys
sys.argv = ["rbq", *sys.argv[1:]]
from robustbench_quest.cli import main
try:
    main()
except SystemExit:
    pass
print("LOADED", *sorted(set(sys.modules) & set({heavy!r})))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["eval", "--help"], ["inspect", "--help"]])
def test_help_and_list_import_nothing_heavy(arguments: list[str]) -> None:
    script = LIGHT.format(heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_help_and_list_start_in_under_a_second() -> None:
    import time

    for argument in ("--help", "list"):
        best = float("inf")
        for _ in range(5):  # the best of five: other work on the machine is not what is measured
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "robustbench_quest", argument], capture_output=True, check=True
            )
            best = min(best, time.perf_counter() - start)
        assert best < 1


def test_what_makes_tables_imports_no_torch() -> None:
    code = (
        "import sys, robustbench_quest.store, robustbench_quest.metrics, robustbench_quest.tables,"
        " robustbench_quest.trust; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_progress_is_on_stderr_and_tables_on_stdout(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustbench_quest.cli.progress.LINE_EVERY", 0.0)
    done = cli("--limit", 10, "--format", "csv", "--batch-size", 5)
    assert re.search(r"vit_digits_quest_s0 clean: 5/10 images, [\d.]+ images/s, \d+ s left", done.err)
    assert len(done.rows()) == 1
    assert torch.get_num_threads() == 1
