"""Tables: every format, arranged for one model or several, escaped, with flags and failures visible."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import require

from robustbench_quest.errors import OptionError, QuestError
from robustbench_quest.tables import FORMATS, Result, render
from robustbench_quest.tables.latex import escape
from robustbench_quest.trust import Flag

CLEAN = Result(
    model="vit_a",
    weights="",
    attention_name="quest",
    attention="quest",
    dataset="digits",
    task="classification",
    threat="clean",
    title="clean",
    norm="",
    protocol="pixel",
    settings="clean",
    eps="",
    seed=0,
    n=500,
    numbers={"top1": 98.0, "top5": 100.0, "nll": 0.0643, "clean_top1": 98.0},
    clean_metric="clean_top1",
    flags=(),
    cell_id="c" * 64,
)


def with_numbers(r: Result, **numbers: float | None) -> Result:
    return replace(r, numbers={**r.numbers, **numbers})


PGD = replace(
    with_numbers(CLEAN, top1=71.25, top5=98.8, nll=1.1151),
    threat="pgd",
    title="PGD linf 4/255",
    norm="linf",
    settings="PGD(eps='4/255')",
    eps="4/255",
    cell_id="d" * 64,
)
OTHER = [replace(r, model="vit_b", attention_name="standard", attention="standard") for r in (CLEAN, PGD)]
FLAGGED = replace(PGD, flags=(Flag("zero gradients", "9/500", "the attack was blind there"),))
FAILED = replace(PGD, numbers=dict.fromkeys(PGD.numbers), state="failed", error="RuntimeError: out of memory")
HOSTILE = r"""vit_ti_quest & 50% #1 ~ ^ {x} $y$ \end{table} "q" <b> |"""


def test_one_model_is_a_row_per_threat() -> None:
    lines = render([CLEAN, PGD], "table").splitlines()
    assert lines[0].split() == ["threat", "n", "clean", "Top-1", "Top-1", "Top-5", "NLL"]
    assert lines[2].split() == ["clean", "500", "98.00", "98.00", "100.00", "0.064"]
    assert lines[3].split() == ["PGD", "linf", "4/255", "500", "98.00", "71.25", "98.80", "1.115"]
    notes = "\n".join(lines[4:])
    for fact in ("vit_a", "quest", "digits", "protocol pixel", "PGD(eps='4/255')", "seed 0"):
        assert fact in notes


def test_several_models_are_a_row_each() -> None:
    lines = render([CLEAN, PGD, *OTHER], "table").splitlines()
    assert lines[0].split() == ["clean", "PGD", "linf", "4/255"]
    assert lines[3].split()[:3] == ["vit_a", "quest", "500"]
    assert lines[3].split()[3:] == ["98.00", "100.00", "0.064", "71.25", "98.80", "1.115"]
    assert lines[4].split()[:2] == ["vit_b", "standard"]


def test_different_n_never_share_a_row() -> None:
    rows = render([CLEAN, replace(PGD, n=100), *OTHER], "table").splitlines()
    assert rows[3].split()[2:] == ["500", "98.00", "100.00", "0.064", "-", "-", "-"]
    assert rows[4].split()[2:] == ["100", "-", "-", "-", "71.25", "98.80", "1.115"]


def test_two_data_sets_or_containers_never_share_a_row() -> None:
    for change in ({"dataset": "folder"}, {"weights": "model_ema"}, {"attention": "quest(x=1)"}):
        rows = render([CLEAN, replace(PGD, **change), *OTHER], "table").splitlines()[3:6]
        assert [row.count("-") for row in rows] == [3, 3, 0]
    assert "vit_a (model_ema)" in render([CLEAN, replace(CLEAN, weights="model_ema")], "table")
    assert "model vit_a, weights model_ema" in render([replace(CLEAN, weights="model_ema")], "table")


def test_a_threat_that_comes_twice_begins_a_new_row() -> None:
    rows = render([CLEAN, with_numbers(CLEAN, top1=11.0), *OTHER], "table").splitlines()[3:5]
    assert ("98.00" in rows[0], "11.00" in rows[1]) == (True, True)


def test_no_results_is_an_error() -> None:
    with pytest.raises(QuestError, match="expected at least one cell"):
        render([], "table")


def test_options_of_a_variant_are_a_note_unless_they_tell_rows_apart() -> None:
    mean = [replace(r, attention_name="elliptical", attention="elliptical(m=mean)") for r in (CLEAN, PGD)]
    median = [replace(r, model="vit_b", attention="elliptical(m=median)") for r in mean]
    alone = render([*mean, *OTHER], "table")
    assert "vit_a  elliptical " in alone
    assert "\nelliptical(m=mean)\n" in alone
    assert "vit_b  elliptical(m=median) " in render([*mean, *median], "table")


def test_flags_and_failures_are_marked_and_explained() -> None:
    for results in ([CLEAN, FLAGGED, FAILED], [CLEAN, FLAGGED, OTHER[0], replace(FAILED, model="vit_b")]):
        text = render(results, "table")
        assert "71.25 [a]" in text
        assert "failed [b]" in text
        assert "[a] zero gradients 9/500: the attack was blind there" in text
        assert "[b] RuntimeError: out of memory" in text


def test_csv_is_tidy() -> None:
    rows = list(csv.DictReader(io.StringIO(render([CLEAN, FLAGGED, FAILED], "csv"))))
    assert [row["threat"] for row in rows] == ["clean", "pgd", "pgd"]
    assert (rows[1]["top1"], rows[1]["nll"], rows[1]["n"]) == ("71.250000", "1.115100", "500")
    assert rows[1]["flags"] == "zero gradients 9/500"
    assert (rows[2]["top1"], rows[2]["error"]) == ("", "RuntimeError: out of memory")


def test_json_is_json() -> None:
    rows = json.loads(render([CLEAN, FLAGGED, with_numbers(FAILED, nll=math.inf)], "json"))
    assert rows[0]["top1"] == 98.0
    assert rows[1]["flags"] == [
        {"name": "zero gradients", "figure": "9/500", "meaning": "the attack was blind there"}
    ]
    assert rows[2]["top1"] is None
    assert rows[2]["nll"] == "inf"


def test_infinite_nll_is_shown() -> None:
    broken = with_numbers(CLEAN, nll=math.inf)
    assert render([broken], "table").splitlines()[2].split()[-1] == "inf"
    assert next(csv.DictReader(io.StringIO(render([broken], "csv"))))["nll"] == "inf"


def test_no_top5_with_few_classes() -> None:
    text = render([with_numbers(CLEAN, top5=None)], "table")
    assert text.splitlines()[2].split()[-2:] == ["-", "0.064"]
    assert "Top-5 needs at least five classes" in text


def test_latex_escapes_everything() -> None:
    assert escape("a_b & 50% #1") == r"a\_b \& 50\% \#1"
    assert escape("\\") == r"\textbackslash{}"
    assert escape("~^{}$") == r"\textasciitilde{}\textasciicircum{}\{\}\$"


def test_latex_is_booktabs() -> None:
    text = render([CLEAN, FLAGGED, *OTHER], "latex")
    assert r"\begin{tabular}{llrrrrrrr}" in text
    assert r"\cmidrule(lr){4-6} \cmidrule(lr){7-9}" in text
    assert r"\multicolumn{3}{c}{PGD linf 4/255}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


LIGATURES = ("--", "---", "``", "''", "?`", "!`", "<<", ">>", ",,", "a--b", "x---``''y", "'''")


@pytest.mark.parametrize("text", LIGATURES)
def test_latex_keeps_characters_apart_that_tex_would_join(text: str) -> None:
    pieces = escape(text).split(r"{\kern0pt}")
    assert [p for p in pieces if any(pair in p for pair in ("--", "``", "''", "?`", "!`", ",,"))] == []
    plain = "".join(pieces).replace(r"\textless{}", "<").replace(r"\textgreater{}", ">")
    assert plain == text


def pdflatex(body: str, folder: Path) -> str:
    """Typeset ``body`` and return what TeX logs."""
    require(shutil.which("pdflatex") is not None, "pdflatex is not installed")
    (folder / "t.tex").write_text(
        "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\usepackage{booktabs}\n"
        f"\\begin{{document}}\n{body}\\end{{document}}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "t.pdf").stat().st_size > 1000
    return (folder / "t.log").read_text(encoding="latin-1")


@pytest.mark.parametrize("several", [False, True])
def test_latex_compiles(several: bool, tmp_path: Path) -> None:
    hostile = HOSTILE + " ".join(LIGATURES)
    nasty = [
        replace(r, model=hostile, attention_name=hostile, attention=hostile, title=f"[{hostile}]")
        for r in (CLEAN, FLAGGED, FAILED)
    ]
    results = [*nasty, *OTHER] if several else nasty
    pdflatex(render(results, "latex"), tmp_path)


def test_tex_joins_nothing(tmp_path: Path) -> None:
    logged = "\\showboxbreadth=9999 \\showboxdepth=99 \\tracingoutput=1 "
    for text, joined in (("--", True), (escape(" ".join(LIGATURES)), False)):
        log = pdflatex(f"{logged}{text}\n", tmp_path)
        assert ("(ligature" in log) is joined


def test_a_name_with_a_newline_stays_in_its_line() -> None:
    odd = [replace(r, model="vit\nti\x1b[31m\ud800", title=f"{r.title}\t") for r in (CLEAN, PGD)]
    for results in (odd, [*odd, *OTHER]):
        for form in ("table", "latex"):
            text = render(results, form)
            assert "\x1b" not in text
            assert "\t" not in text
            expected = r"vit\nti\x1b[31m\ud800"
            assert (escape(expected) if form == "latex" else expected) in text
            text.encode()  # can be written


def test_an_unknown_format_lists_the_right_ones() -> None:
    with pytest.raises(OptionError, match=r"unknown format 'text'; .*csv, json, latex, table"):
        render([CLEAN], "text")
    assert set(FORMATS) == {"table", "csv", "latex", "json"}


def test_results_of_several_tasks_never_share_a_table() -> None:
    for form in FORMATS:
        with pytest.raises(QuestError, match="results are of classification and counting"):
            render([CLEAN, replace(PGD, task="counting")], form)


def test_an_incomplete_cell_is_no_number() -> None:
    half = replace(FAILED, state="incomplete", error="1 of 2 blocks are missing")
    text = render([CLEAN, half], "table")
    assert "incomplete [a]" in text
    assert "[a] 1 of 2 blocks are missing" in text


def test_a_value_says_what_belongs_to_it() -> None:
    value = FLAGGED.values["top1"]
    assert (value.number, value.n, value.state, value.flags) == (71.25, 500, "done", FLAGGED.flags)
    assert FAILED.values["nll"].number is None
    assert FAILED.values["nll"].error == "RuntimeError: out of memory"
