"""Small checkpoints, with the containers and key names of the published code bases."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import resolve

TINY = {
    "img_size": 16,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "mlp_ratio": 2,
    "num_classes": 5,
}
PREPROCESSING = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "size": 16, "resize": 0}
State = dict[str, Tensor]
Save = Callable[..., Path]


def tiny(attention: str = "standard", options: Mapping[str, Any] | None = None, **changes: Any) -> nn.Module:
    """Return an untrained ViT of 2 blocks whose logits depend on the attention."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: nn.Module = timm.models.VisionTransformer(**{**TINY, **changes})
        swap_attention(model, resolve(attention, options))
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def named(arch: str, **options: Any) -> nn.Module:
    """Return one of timm's models with weights that are not its initial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model: nn.Module = timm.create_model(arch, **options)
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.2)
    return model.eval()


def hollow(model: nn.Module) -> State:
    """Return a state dict of the same names and shapes that takes no space in a file of torch.save."""
    return {key: torch.zeros(()).expand(tensor.shape) for key, tensor in model.state_dict().items()}


def facts(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a tiny checkpoint."""
    return {
        "name": "tiny",
        "arch": "vision_transformer",
        "arch_options": TINY,
        "attention": "standard",
        "preprocessing": PREPROCESSING,
        "dataset": "digits",
        **changes,
    }


def deit_args(**changes: Any) -> argparse.Namespace:
    """Return arguments as DeiT's main.py stores them, as far as they matter."""
    values = {
        "model": "deit_tiny_patch16_224",
        "input_size": 224,
        "eval_crop_ratio": 0.875,
        "data_set": "IMNET",
        "train_interpolation": "bicubic",
        "output_dir": "out",
        "lr": 5e-4,
    }
    return argparse.Namespace(**{**values, **changes})


def image(side: int = 16, count: int = 2) -> Tensor:
    """Return pixels in [0, 1], the same at every call."""
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(3))


def random_states() -> tuple[bytes, str, str]:
    """Return the state of torch's, numpy's and Python's global generators."""
    numpy_state = np.random.get_state(legacy=False)
    return (
        bytes(torch.get_rng_state()),
        str(numpy_state["state"]["key"].tolist()) + str(numpy_state["state"]["pos"]),
        str(random.getstate()),
    )
