"""The command line as a user meets it: tables, exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import Cli
from support import read_npz, require

from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.store import Store
from robustbench_quest.verified_files import read_json, write_json

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
    assert [row["model"] for row in rows] == ["a/m", "b/m"]


def test_formats_and_save(cli: Cli, tmp_path: Path) -> None:
    assert cli("--limit", 10, "--format", "latex", "--save", "t.tex").out == (tmp_path / "t.tex").read_text()
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    rows = json.loads(cli("--limit", 10, "--format", "json").out)
    assert rows[0]["n"] == 10
    assert len(rows[0]["cell_id"]) == 64
    assert len(list(Store(tmp_path / "results").cells(print))) == 1


def test_explain_computes_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("--attack", "pgd", "--steps", 7, "--explain")
    assert done.code == 0
    assert re.search(r"attention +quest +metadata in the file", done.out)
    assert re.search(r"eps +4/255 +default of data set digits", done.out)
    assert re.search(r"steps +7 +flag", done.out)
    assert re.search(r"alpha +0.15eps +protocol pixel", done.out)
    assert "0 of 2 blocks of 256 in the store" in done.out
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--eps", "3/255", "--alpha", "5/1275"], [r"eps +3/255 +flag", r"alpha +1/255 +flag"]),
        (["--eps", "17/255"], [r"eps +17/255 +flag"]),  # 1/15 in lowest terms
        (["--eps", "0.5", "--norm", "l2"], [r"eps +0.5 +flag"]),
        (["--batch-size", "7", "--workers", "2"], [r"batch size +7 ", r"workers +2 "]),
    ],
)
def test_explain_writes_budgets_as_tables_do(flags: list[str], lines: list[str], cli: Cli) -> None:
    out = cli("--attack", "pgd", *flags, "--explain").out
    for line in lines:
        assert re.search(line, out)


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


def test_what_was_left_out_is_said(cli: Cli, digit_folder: Path) -> None:
    (digit_folder / "0" / "notes.txt").write_text("no image")
    done = cli("--data", digit_folder)
    assert done.code == 0
    assert re.search(r"data set folder: .*notes\.txt", done.err)


def test_a_mixed_environment_is_flagged(cli: Cli, tmp_path: Path) -> None:
    flags = ("--limit", 20, "--block-size", 10)
    assert "mixed" not in cli(*flags).out
    side = next(tmp_path.rglob("block-00001.json"))
    facts = read_json(side)
    write_json(side, {**facts, "libraries": {**facts["libraries"], "torch": "1.0"}})
    assert "[a] mixed environment 2: blocks were computed with different library versions" in cli(*flags).out


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_text("{}")], ids=["lost", "damaged"])
def test_an_environment_that_is_lost_is_flagged(
    lose: Callable[[Path], object], cli: Cli, tmp_path: Path
) -> None:
    flags = ("--limit", 20, "--block-size", 10)
    cli(*flags)
    lose(next(tmp_path.rglob("block-00001.json")))
    done = cli(*flags)
    assert done.code == 0
    assert "[a] environment unknown 1/2 blocks: with which library versions" in done.out


def test_a_damaged_block_is_computed_again_with_a_note(cli: Cli, tmp_path: Path) -> None:
    flags = ("--attack", "fgsm", "--limit", 10, "--format", "csv")
    first = cli(*flags)
    cells = {read_json(p)["names"]["threat"]: p.parent for p in tmp_path.rglob("cell.json")}
    block = cells["clean"] / "block-00000.parquet"
    before = block.read_bytes()
    block.write_bytes(before[:100])
    done = cli(*flags)
    assert (done.code, done.out) == (0, first.out)
    shown = re.findall(
        r"clean: (.*)/block-00000\.parquet cannot be read \(.*\); it is computed again", done.err
    )
    assert len(shown) == 1
    assert block.read_bytes() == before
    assert "computed again" not in cli(*flags).err


def test_a_folder_in_the_way_fails_its_cell_and_the_others_go_on(cli: Cli, tmp_path: Path) -> None:
    flags = ("--attack", "fgsm", "--limit", 10, "--format", "csv")
    cli(*flags)
    cells = {read_json(p)["names"]["threat"]: p.parent for p in tmp_path.rglob("cell.json")}
    block = cells["clean"] / "block-00000.parquet"
    block.unlink()
    block.mkdir()
    done = cli(*flags)
    assert done.code == 1
    clean, fgsm = done.rows()
    assert clean["error"] == f"{block.relative_to(tmp_path)} is a folder where a file belongs; move it away"
    assert float(fgsm["top1"]) > 0
    block.rmdir()
    assert cli(*flags).code == 0
    assert not list(tmp_path.rglob("error.json"))


def test_files_that_are_not_the_stores_are_left_with_a_note(cli: Cli, tmp_path: Path) -> None:
    first = cli("--limit", 10)
    cell = next(tmp_path.rglob("cell.json")).parent
    for name in ("notes.txt", "block-00007.parquet"):
        (cell / name).write_text("mine")
    done = cli("--limit", 10)
    assert (done.code, done.out) == (0, first.out)
    assert "leaves them: block-00007.parquet, notes.txt\n" in done.err
    assert (cell / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("out", ["x" * 5000, "a\0b", "link", "file/inside"])
def test_an_impossible_store_is_bad_input(out: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "file").write_text("")
    done = cli("--limit", 10, "--out", out)
    assert done.code == 2
    assert re.fullmatch(r"error: .{10,300}\n", done.err)


def test_a_gradient_that_ignores_m_is_flagged(cli: Cli) -> None:
    flags = ("--ckpt", demo_checkpoint("elliptical"), "--attack", "fgsm", "--limit", 10)
    assert "detached metric" not in cli(*flags).out
    assert (
        "[a] detached metric of elliptical: the attack's gradient ignored M"
        in cli(*flags, "--no-adaptive").out
    )


def test_a_table_that_cannot_be_saved_is_still_printed(cli: Cli, tmp_path: Path) -> None:
    require(Path("/dev/full").exists(), "this system has no /dev/full")
    done = cli("--limit", 10, "--format", "csv", "--save", "/dev/full")
    assert (done.code, len(done.rows())) == (2, 1)
    assert (
        "error: --save /dev/full cannot be written: No space left on device; the table is above" in done.err
    )


def test_kept_images(cli: Cli, tmp_path: Path) -> None:
    assert cli("--attack", "fgsm", "--limit", 10, "--keep-images", 3).code == 0
    arrays = [read_npz(path) for path in (tmp_path / "results").rglob("*.npz")]
    assert sorted(len(array["clean"]) for array in arrays) == [3, 3]
    assert sorted("perturbed" in array for array in arrays) == [False, True]


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
    assert "Traceback" not in done.err
    assert "Traceback" in cli(*flags, "--attack", "fgsm", "--limit", 10, "--debug").err


def test_a_fault_of_ours_is_one_line_unless_debug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("robustbench_quest.cli.session.plan", broken)
    done = cli()
    assert (done.code, done.err) == (
        1,
        "error: internal error: ZeroDivisionError: oh (--debug shows where)\n",
    )
    assert "Traceback" in cli("--debug").err


def test_interrupting_says_that_work_is_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robustbench_quest.execution.complete", interrupt)
    done = cli("--limit", 10)
    assert done.code == 130
    assert "finished blocks are kept" in done.err


def test_a_cell_that_ends_says_so_once(cli: Cli) -> None:
    err = cli("--attack", "pgd", "--attack-option", "pgd.steps=3", "--limit", 10).err
    assert re.findall(r"(clean|PGD linf 4/255): 10 images in", err) == ["clean", "PGD linf 4/255"]


def test_list(cli: Cli) -> None:
    everything = cli("list", group=True).out
    for name in ("fgsm", "elliptical-quest", "digits", "pixel"):
        assert name in everything
    assert cli("list", "attacks", group=True).out.split()[0] == "fgsm"
    wrong = cli("list", "attack", group=True)
    assert wrong.code == 2
    assert "'attacks'" in wrong.err


def test_list_shows_the_settings_behind_a_name(cli: Cli) -> None:
    out = cli("list", "attacks", "pgd", group=True).out
    assert re.search(r"^  eps +required +the budget, as", out, re.MULTILINE)
    assert re.search(r"^  steps +20 +gradient steps per restart, at least 1\.$", out, re.MULTILINE)
    assert re.search(r"estimator +mean +mean, median", cli("list", "attention", "elliptical", group=True).out)
    assert re.search(
        r"labels +auto +what class folders mean", cli("list", "datasets", "folder", group=True).out
    )
    assert "no settings" in cli("list", "datasets", "digits", group=True).out
    assert re.search(r"eps +1/255", cli("list", "protocols", "pixel", group=True).out)
    wrong = cli("list", "attacks", "pdg", group=True)
    assert (wrong.code, wrong.err) == (
        2,
        "error: unknown attack 'pdg'; did you mean 'pgd'? Available: fgsm, pgd\n",
    )


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


def test_the_time_left_counts_only_what_is_computed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = ("--limit", 40, "--block-size", 10, "--batch-size", 10)
    cli(*flags)
    next((tmp_path / "results").rglob("block-00003.parquet")).unlink()
    monkeypatch.setattr("robustbench_quest.cli.progress.LINE_EVERY", 0.0)
    clock = iter(range(1000))
    monkeypatch.setattr("robustbench_quest.cli.progress.time.monotonic", lambda: float(next(clock)))
    err = cli(*flags).err
    # Ten images were computed in the time that is shown; 30 came from the store.
    (rate,) = re.findall(r"40/40 images, ([\d.]+) images/s", err)
    (seconds,) = re.findall(r"40 images in ([\d.]+) s", err)
    assert float(rate) * float(seconds) == 10


def test_progress_is_on_stderr_and_tables_on_stdout(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustbench_quest.cli.progress.LINE_EVERY", 0.0)
    done = cli("--limit", 10, "--format", "csv", "--batch-size", 5)
    assert re.search(r"vit_digits_quest_s0 clean: 5/10 images, [\d.]+ images/s, [\d:]+ left", done.err)
    assert len(done.rows()) == 1
    assert torch.get_num_threads() == 1
