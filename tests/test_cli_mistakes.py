"""Every mistake on the command line is one line, exit code 2, and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Cli

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
    "attack option form": (
        ["--attack", "pgd", "--attack-option", "steps=3"],
        "--attack-option 'steps=3' is not of the form NAME.KEY=VALUE",
    ),
    "attack option of another": (
        ["--attack", "pgd", "--attack-option", "fgsm.norm=l2"],
        "--attack-option 'fgsm.norm=l2' is for fgsm, but --attack names pgd",
    ),
    "attack option unknown": (
        ["--attack", "pgd", "--attack-option", "pgd.stepz=3"],
        "unknown setting of pgd 'stepz'; did you mean 'steps'?",
    ),
    "attack option twice": (
        ["--attack", "pgd", "--attack-option", "pgd.steps=3", "--attack-option", "pgd.steps=4"],
        "--attack-option gives pgd.steps twice",
    ),
    "attack option and flag": (
        ["--attack", "pgd", "--steps", "4", "--attack-option", "pgd.steps=3"],
        "--steps and --attack-option pgd.steps both set steps; give one of them",
    ),
    "l2 beyond the cube": (
        ["--attack", "pgd", "--norm", "l2", "--eps", "128"],
        "eps 128 is more than 55.43, the l2 distance from black to white for 32x32 pixels",
    ),
    "protocol file": (
        ["--protocol", "nowhere.yaml"],
        "nowhere.yaml cannot be read: No such file or directory",
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
    "mean of 0-255": (["--mean", "127,127,127"], "divide values for pixels of 0-255 by 255"),
    "no place for a store": (["--out", "/proc/x"], "cannot make the store /proc/x"),
    "zero std": (["--std", "0,1,1"], "std must be positive"),
    "image size": (["--img-size", "33"], "--img-size 33 is not a whole number of patches of 8 pixels"),
    "option form": (
        ["--attention-option", "estimator"],
        "--attention-option 'estimator' is not of the form KEY=VALUE",
    ),
    "option twice": (["--arch-option", "a=1", "--arch-option", "a=2"], "--arch-option gives a twice"),
    "save": (["--save", "nowhere/t.csv"], "--save nowhere/t.csv: its folder does not exist"),
    "save to a folder": (["--save", "."], "--save . is a folder; give a file in it"),
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
