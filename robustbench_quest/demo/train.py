"""Train the demo zoo: ``python -m robustbench_quest.demo.train [--out DIR] [--attention NAME] [--seed N]``.

Every attention variant, three seeds each, on the digits' training split: tiny ViTs of under 90k parameters,
stored as float16 safetensors with everything needed to load them. Under an hour on 2 cores.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import time
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from ..attention.core import previous_values
from ..attention.elliptical import metric_gradient
from ..attention.swap import swap_attention
from ..attention.variants import VARIANTS, resolve
from ..datasets.digits import PREPROCESSING, load_arrays
from ..rng import generator
from . import FOLDER, SEEDS, model_name

ARCH_OPTIONS = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 4,
    "num_heads": 3,
    "mlp_ratio": 2,
    "num_classes": 10,
}
EPOCHS = 80
BATCH_SIZE = 64
MAX_LEARNING_RATE = 4e-3
WEIGHT_DECAY = 0.05
SHIFT = (3, 4)  # pixels; chosen so that PGD at 4/255 leaves every model between 60 and 80 %


def build(attention: str) -> nn.Module:
    """Return an untrained demo model."""
    model: nn.Module = timm.models.VisionTransformer(**ARCH_OPTIONS)
    return swap_attention(model, resolve(attention))


def train(attention: str, seed: int) -> tuple[nn.Module, float]:
    """Train one model; return it, rounded to float16 and back, and its accuracy on the test split.

    The global random state of the process is left as it was.
    """
    pixels, labels, test = load_arrays()
    x, y = _normalised(pixels[~test]), torch.from_numpy(labels[~test])
    draws = generator("demo-train", seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draws.randint(2**31)))
        model = build(attention)
    # Without a gradient through Elliptical's metric, as its authors train.
    with metric_gradient(previous_values(model), through=False):
        _fit(model, x, y, draws)
    # What is measured is what is stored.
    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    model.eval()
    with torch.no_grad():
        correct = model(_normalised(pixels[test])).argmax(1) == torch.from_numpy(labels[test])
    return model, correct.double().mean().item()


def _fit(model: nn.Module, x: Tensor, y: Tensor, draws: np.random.RandomState) -> None:
    steps = EPOCHS * -(-len(x) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LEARNING_RATE, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        order = torch.from_numpy(draws.permutation(len(x)))
        for batch in order.split(BATCH_SIZE):
            loss = F.cross_entropy(model(_shifted(x[batch], draws)), y[batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def _shifted(x: Tensor, draws: np.random.RandomState) -> Tensor:
    """Move each image by up to 3 or up to 4 pixels in each direction; the border is the digits' black."""
    least, most = SHIFT
    padded = F.pad(x, (most,) * 4, value=float(x.min()))
    reach = draws.randint(least, most + 1, (len(x), 1))
    offsets = most + draws.randint(-reach, reach + 1, (len(x), 2))
    size = x.shape[-1]
    return torch.stack(
        [image[:, a : a + size, b : b + size] for image, (a, b) in zip(padded, offsets, strict=True)]
    )


def _normalised(pixels: npt.NDArray[np.uint8]) -> Tensor:
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(PREPROCESSING[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (x - mean) / std


def metadata(attention: str, seed: int, accuracy: float) -> dict[str, str]:
    """Return the safetensors metadata that lets ``load_model`` do without flags."""
    facts = {
        "name": model_name(attention, seed),
        "arch": "vision_transformer",
        "arch_options": ARCH_OPTIONS,
        "attention": attention,
        "attention_options": dict(resolve(attention).options),
        "preprocessing": PREPROCESSING,
        "dataset": "digits",
        "seed": seed,
        "accuracy": round(accuracy, 4),
    }
    return {"rbq": json.dumps(facts, sort_keys=True)}


def _train_and_save(attention: str, seed: int, out: str) -> str:
    torch.set_num_threads(1)
    start = time.perf_counter()
    model, accuracy = train(attention, seed)
    tensors = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    path = Path(out) / f"{model_name(attention, seed)}.safetensors"
    save_file(tensors, path, metadata=metadata(attention, seed, accuracy))
    return f"{path.name}  accuracy {accuracy:.4f}  {time.perf_counter() - start:.0f} s"


@click.command()
@click.option("--out", default=str(FOLDER), help="Folder to write to.", show_default=True)
@click.option(
    "--attention",
    "attentions",
    multiple=True,
    type=click.Choice(list(VARIANTS)),
    help="Default: all.",
)
@click.option("--seed", "seeds", multiple=True, type=int, help="Default: 0, 1, 2.")
@click.option("--processes", default=2, show_default=True, help="Models trained at once, one core each.")
def main(out: str, attentions: tuple[str, ...], seeds: tuple[int, ...], processes: int) -> None:
    """Train the demo zoo; the same command gives the same files on the same library versions."""
    Path(out).mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for name in attentions or VARIANTS for seed in seeds or SEEDS]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(_train_and_save, name, seed, out) for name, seed in jobs]
        for future in concurrent.futures.as_completed(futures):
            click.echo(future.result())


if __name__ == "__main__":
    main()
