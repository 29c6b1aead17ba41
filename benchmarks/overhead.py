"""What the command costs over the model calls that it needs: PGD-10 through ``rbq eval`` against bare calls.

The command evaluates clean images and PGD, so for every image a model has to answer three times without a
gradient (the clean cell; the clean image beside the attack; the attacked image) and ten times with one. The
bare side makes just these calls with the same module on batches of the same size. Everything else the command
does counts as its overhead: planning, hashing and loading the checkpoint, decoding, draws, projection,
judging, records, the store.

    python benchmarks/overhead.py --ckpt vit_tiny.safetensors --data images --arch vit_tiny_patch16_224
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click
import torch
import torch.nn.functional as F

import robustbench_quest as rbq
from robustbench_quest.cli.evaluate import evaluate
from robustbench_quest.device import HOST, full_precision
from robustbench_quest.models.classifier import Classifier

STEPS = 10
LIMIT = 1.05


def bare(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the seconds of the model calls that PGD needs for ``x``, a batch."""
    start = time.perf_counter()
    with full_precision(HOST):
        for _ in range(3):
            with torch.no_grad():
                model(x)
        for _ in range(STEPS):
            images = x.detach().requires_grad_()
            loss = F.cross_entropy(model(images), y, reduction="sum")
            torch.autograd.grad(loss, images)
    return time.perf_counter() - start


def command(arguments: list[str]) -> float:
    """Return the seconds of one command, in this process and with an empty store."""
    with tempfile.TemporaryDirectory() as store, contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        code = evaluate.main([*arguments, "--out", store], standalone_mode=False)
        seconds = time.perf_counter() - start
    if code:
        raise SystemExit(f"the command failed with exit code {code}")
    return seconds


@click.command()
@click.option("--ckpt", required=True, type=click.Path(exists=True))
@click.option("--data", required=True, type=click.Path(exists=True), help="Labelled images.")
@click.option("--arch", default="vit_tiny_patch16_224", show_default=True)
@click.option("--attention", default="standard", show_default=True)
@click.option("--limit", default=32, show_default=True, help="Images, one batch of them at a time.")
@click.option("--batch-size", default=16, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(ckpt: str, data: str, arch: str, attention: str, limit: int, batch_size: int, rounds: int) -> None:
    """Print the ratio of the command to its bare model calls, interleaved, and fail above the limit."""
    model = rbq.load_model(Path(ckpt), arch=arch, attention=attention, device=HOST)
    size = model.preprocessing.size
    x = torch.rand(batch_size, 3, size, size, generator=torch.Generator().manual_seed(0))
    y = torch.arange(batch_size) % model.num_classes
    arguments = ["--ckpt", ckpt, "--data", data, "--arch", arch, "--attention", attention, "--attack", "pgd"]
    arguments += ["--steps", str(STEPS), "--limit", str(limit), "--batch-size", str(batch_size)]
    arguments += ["--eps", "1/255", "--device", HOST.type]
    bare(model, x, y)  # the first calls of a process are slower
    ratios = []
    for number in range(rounds):
        half = limit // batch_size // 2
        seconds = sum(bare(model, x, y) for _ in range(half))
        ours = command(arguments)
        seconds += sum(bare(model, x, y) for _ in range(limit // batch_size - half))
        ratios.append(ours / seconds)
        print(f"round {number}: command {ours:.1f} s, bare calls {seconds:.1f} s, ratio {ratios[-1]:.3f}")
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.3f}, limit {LIMIT}, {torch.get_num_threads()} threads")
    sys.exit(ratio > LIMIT)


if __name__ == "__main__":
    main()
