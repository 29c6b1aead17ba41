"""The only place that names a kind of device, and that sets how floating point is done."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .errors import OptionError

HOST = torch.device("cpu")
META = torch.device("meta")  # shapes without memory


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device that ``name`` stands for: auto, cpu, cuda, cuda:1 or mps.

    Raises:
        OptionError: no such kind of device, or this machine has none of it.
    """
    # cuBLAS reads this when its first handle is made; it is the documented setting for determinism.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps") if torch.backends.mps.is_available() else HOST
    match = re.fullmatch(r"(cpu|cuda|mps)(?::([0-9]+))?", name)
    if match is None:
        raise OptionError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:1 or mps")
    kind, index = match.groups()
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(index or 0) >= count:
            raise OptionError(
                f"device {name!r}: this machine shows {count} CUDA devices to PyTorch; use --device cpu"
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise OptionError(f"device {name!r}: PyTorch has no MPS on this machine; use --device cpu")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the maker's name of a device, as far as the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Run float32 as float32 and with deterministic kernels; restore the settings afterwards.

    Whatever the caller has switched on: no autocast, no TF32 or bfloat16 inside matrix products.

    TF32 and run-to-run differences change verdicts near the decision boundary, which attacks seek out.
    Deterministic kernels are only asked for on CUDA: on the CPU the operations used here are deterministic.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    # On CUDA the faster kernels sum their gradients in no fixed order.
    faster = [] if device.type == "cuda" else [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    attention = [SDPBackend.MATH, *faster]
    mkldnn = torch.backends.mkldnn
    mkldnn_before, mkldnn.enabled = mkldnn.enabled, mkldnn.is_available()
    try:
        with (
            torch.autocast(device.type, enabled=False),
            float32_by_default(),
            sdpa_kernel(attention),
            _cuda_kernels(device),
        ):
            yield
    finally:
        mkldnn.enabled = mkldnn_before
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """Make new tensors float32, and restore the caller's choice afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _cuda_kernels(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (
        matmul.allow_tf32,
        cudnn.allow_tf32,
        cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    )
    warn_before = torch.is_deterministic_algorithms_warn_only_enabled()
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = False, False, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before[:3]
        torch.use_deterministic_algorithms(before[3], warn_only=warn_before)
