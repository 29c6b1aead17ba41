"""``load_model``: a checkpoint, or a user's own model, as a ``Classifier``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.file import read_checkpoint
from ..checkpoints.setting import Row
from ..device import HOST, float32_by_default, resolve_device
from ..errors import OptionError
from ..types import OptionValue
from ..user_code import fixed_random_state
from .assembly import Loaded, assemble, assemble_user_model
from .classifier import Classifier
from .plan import Request, declarations_of


def load_model(
    path: str | Path | None = None,
    *,
    arch: str | None = None,
    arch_options: Mapping[str, OptionValue] | None = None,
    attention: str | None = None,
    attention_options: Mapping[str, OptionValue] | None = None,
    model: str | None = None,
    model_options: Mapping[str, OptionValue] | None = None,
    weights: str = "auto",
    img_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
    device: str | torch.device = "auto",
) -> Classifier:
    """Return the classifier that a checkpoint holds. No code in the file runs; no random state changes.

    What is None is found out: from the sidecar ``<ckpt>.yaml``, the file's metadata, its ``args``, or its
    tensors. ``spec.sources`` says from where, ``spec.guessed`` what nothing declared.

    Args:
        path: ``.pt``, ``.pth`` or ``.safetensors``; None only with ``model``, which keeps its own weights.
        arch: timm's name, or "vision_transformer" with every option in ``arch_options``.
        arch_options: keyword arguments of the architecture.
        attention: a variant's name, or "FILE.py:CLASS".
        attention_options: options of the variant, or keyword arguments of the class.
        model: "FILE.py:FUNC" or "package.module:FUNC", which returns the module; in place of ``arch``.
        model_options: keyword arguments of FUNC.
        weights: "auto" (raw weights where there are some, else the moving average), "raw", "ema", or a
            container's name.
        img_size: side of the input, pixels; position embeddings are resized only when this asks for it.
        mean, std: per channel, for pixels in [0, 1].
        resize: the shorter side before the centre crop, pixels; 0 leaves images as they are.
        interpolation: a Pillow filter's name.
        device: auto, cpu, cuda, cuda:1 or mps.

    Raises:
        CheckpointError: the file cannot be read, or does not fit.
        OptionError: something must be declared, or an option cannot be used.
    """
    target = resolve_device(device)
    request = Request(
        arch=arch,
        arch_options=arch_options or {},
        attention=attention,
        attention_options=attention_options or {},
        model=model,
        model_options=model_options or {},
        weights=weights,
        img_size=img_size,
        mean=mean,
        std=std,
        resize=resize,
        interpolation=interpolation,
    )
    # Whatever dtype, device or inference mode the caller has set for new tensors.
    with torch.inference_mode(False), HOST, float32_by_default():
        loaded = _load(path, request)
        found = loaded.spec.preprocessing
        return Classifier(
            loaded.module.to(target),
            found.mean,
            found.std,
            found.size,
            resize=found.resize,
            interpolation=found.interpolation,
            spec=loaded.spec,
            trained_on=loaded.dataset,
            explanation=loaded.rows,
        )


def explain(path: str | Path | None = None, **options: Any) -> list[Row]:
    """Return each setting of a model, its value, where it came from, and what other sources would give.

    Takes what ``load_model`` takes, and raises what it raises.
    """
    return list(load_model(path, **options).explanation)


def _load(path: str | Path | None, request: Request) -> Loaded:
    if path is None and request.model is None:
        raise OptionError("nothing to load: give a checkpoint, or a model as FILE.py:FUNC")
    if request.model is not None and (request.arch is not None or request.arch_options):
        raise OptionError("--model builds the architecture itself; leave --arch and --arch-option out")
    if request.model is None and request.model_options:
        raise OptionError(
            "--model-option needs --model FILE.py:FUNC; timm's architectures take --arch-option"
        )
    if path is None and request.weights != "auto":
        raise OptionError(
            "--weights chooses among the state dicts of a checkpoint; give --ckpt, or leave it out"
        )
    checkpoint = None if path is None else read_checkpoint(path)
    declarations = declarations_of(request, checkpoint)
    with fixed_random_state():
        if request.model is not None:
            return assemble_user_model(request, checkpoint, declarations)
        assert checkpoint is not None  # one of the two is given
        return assemble(request, checkpoint, declarations)
