"""``load_model``: a checkpoint, or a user's own model, as a ``Classifier``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..device import resolve_device
from ..types import OptionValue
from .classifier import Classifier
from .request import ModelRequest
from .resolve import as_in_a_fresh_process, resolve


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
    crop_mode: str | None = None,
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
        crop_mode: "center", "squash" or "border"; see ``types.Preprocessing``.
        device: auto, cpu, cuda, cuda:1 or mps.

    Raises:
        CheckpointError: the file cannot be read, or does not fit.
        OptionError: something must be declared, or an option cannot be used.
    """
    request = ModelRequest(
        checkpoint=None if path is None else str(path),
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
        crop_mode=crop_mode,
    )
    return load_request(request, device)


def load_request(request: ModelRequest, device: str | torch.device = "auto") -> Classifier:
    """Return the classifier that a request describes; its ``spec`` is that of ``resolve.resolve_model``.

    Raises:
        CheckpointError, OptionError: as ``load_model``.
    """
    target = resolve_device(device)
    found = resolve(request)
    assert found.resolved is not None  # a step that fails raises
    assert found.build is not None
    spec = found.resolved.spec
    with as_in_a_fresh_process():
        return Classifier(
            found.build().to(target),
            spec.preprocessing.mean,
            spec.preprocessing.std,
            spec.preprocessing.size,
            resize=spec.preprocessing.resize,
            interpolation=spec.preprocessing.interpolation,
            crop_mode=spec.preprocessing.crop_mode,
            spec=spec,
            trained_on=found.resolved.trained_on,
            explanation=found.resolved.settings,
        )
