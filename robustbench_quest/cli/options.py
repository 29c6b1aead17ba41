"""The options of the command line in groups, one decorator each, for every command that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Group = Callable[[Command], Command]

# Settings that several attacks share, under the names that attacks use. Rarer ones: --attack-option.
SHARED_ATTACK_SETTINGS = ("eps", "norm", "steps", "alpha", "restarts", "random_start", "labels", "keep")


def group(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator that adds ``options``, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


model_options = group(
    click.option(
        "--ckpt",
        "checkpoints",
        multiple=True,
        metavar="PATH",
        help="Checkpoint (.pt, .pth, .safetensors); repeatable. None: the demo zoo's QUEST model.",
    ),
    click.option(
        "--arch", metavar="NAME", help="timm architecture; default: what the checkpoint says, else inferred."
    ),
    click.option(
        "--arch-option",
        "arch_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Size of the architecture, such as depth=6; repeatable.",
    ),
    click.option(
        "--model",
        metavar="FILE.py:FUNC",
        help="Your own model: FUNC returns an nn.Module, --ckpt is loaded into it. Runs that file.",
    ),
    click.option(
        "--model-option",
        "model_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Argument of FUNC; repeatable.",
    ),
    click.option(
        "--attention",
        metavar="NAME",
        help="Attention variant (see rbq list attention), or FILE.py:CLASS. Runs that file.",
    ),
    click.option(
        "--attention-option",
        "attention_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Such as estimator=median; repeatable.",
    ),
    click.option(
        "--weights",
        default="auto",
        show_default=True,
        help="raw, ema, or a container's name; auto: raw where present.",
    ),
    click.option("--img-size", type=int, help="Input size; position embeddings are resized to it."),
    click.option("--mean", metavar="R,G,B", help="Normalisation, in [0, 1]."),
    click.option("--std", metavar="R,G,B", help="Normalisation, in [0, 1]."),
    click.option("--resize", type=int, help="Shorter side before the crop."),
    click.option("--interpolation", help="bicubic, bilinear, ..."),
    click.option("--crop-mode", help="center, squash (no crop) or border (padded)."),
)

data_options = group(
    click.option(
        "--dataset",
        "dataset_name",
        metavar="NAME",
        help="Data set (see rbq list datasets); default: what the checkpoint was trained on.",
    ),
    click.option("--data", "root", metavar="DIR", help="Where the data set is."),
    click.option(
        "--dataset-option",
        "dataset_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Setting of the data set's reader (see rbq list datasets NAME); repeatable.",
    ),
    click.option(
        "--limit", type=int, help="Number of images, a stratified prefix of a fixed order; default all."
    ),
)

attack_options = group(
    click.option(
        "--attack",
        "attacks",
        multiple=True,
        metavar="NAME",
        help="Attack (see rbq list attacks); repeatable. None: clean images only.",
    ),
    click.option(
        "--eps",
        metavar="EPS[,EPS...]",
        help="Budget in pixels of [0, 1], such as 1/255; default: the data set's, else the protocol's.",
    ),
    click.option("--norm", help="linf or l2."),
    click.option("--steps", type=int, help="Gradient steps."),
    click.option("--alpha", help="Step size: 0.15eps relative to eps, or absolute such as 1/255."),
    click.option("--restarts", type=int, help="Random restarts; an image is robust if all fail."),
    click.option(
        "--random-start/--no-random-start", default=None, help="Start anywhere in the ball, or at the image."
    ),
    click.option("--labels", help="true, or predicted (the model's own answer)."),
    click.option("--keep", help="last: the last iterate; best: the best visited one."),
    click.option(
        "--attack-option",
        "attack_options",
        multiple=True,
        metavar="NAME.KEY=VALUE",
        help="Any setting of one attack (see rbq list attacks NAME), such as pgd.steps=50; repeatable.",
    ),
    click.option(
        "--protocol",
        default="pixel",
        show_default=True,
        help="Named attack settings (see rbq list protocols), or FILE.yaml.",
    ),
    click.option(
        "--adaptive/--no-adaptive",
        default=None,
        help="Gradients go through Elliptical's metric M; default: the protocol's.",
    ),
    click.option("--allow-large-eps", is_flag=True, help="Allow linf budgets of 0.5 and above."),
)

run_options = group(
    click.option("--seed", default=0, show_default=True, help="Seed of every draw."),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps."),
    click.option("--batch-size", default=32, show_default=True, help="Images per model call."),
    click.option(
        "--block-size", type=int, help="Images per unit of work and resume; default 1024, attacks 256."
    ),
    click.option("--workers", default=0, show_default=True, help="Processes that read images."),
    click.option(
        "--keep-images",
        default=0,
        metavar="K",
        help="Keep clean and perturbed pixels of the first K images, as npz beside the cell.",
    ),
)

output_options = group(
    click.option(
        "--out",
        default="results",
        show_default=True,
        metavar="DIR",
        help="Result store; finished work in it is not repeated.",
    ),
    click.option("--format", "form", default="table", show_default=True, help="table, csv, latex or json."),
    click.option("--save", metavar="PATH", help="Write the table to a file as well."),
    click.option("--explain", is_flag=True, help="Print every setting and where it came from, and stop."),
    click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
)
