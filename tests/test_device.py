"""Devices by name, and floating point as it should be while numbers are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import robustbench_quest as rbq
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST, device_name, full_precision, resolve_device
from robustbench_quest.errors import OptionError
from robustbench_quest.records import column

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def settings() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.backends.cuda.matmul.allow_tf32,
        cudnn.allow_tf32,
        cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
    )


def test_devices_by_name() -> None:
    assert resolve_device("cpu") == HOST
    assert resolve_device(HOST) is HOST
    assert resolve_device().type in ("cpu", "cuda", "mps")
    assert device_name(HOST)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0x", "", "CUDA"])
def test_a_device_that_is_none_lists_the_right_ones(name: str) -> None:
    with pytest.raises(OptionError, match="use auto, cpu, cuda, cuda:1 or mps"):
        resolve_device(name)


def test_an_absent_device_says_what_to_use() -> None:
    with pytest.raises(
        OptionError, match=r"device 'cuda:99': this machine shows \d+ CUDA devices .*--device cpu"
    ):
        resolve_device("cuda:99")


def test_tf32_is_off_and_kernels_are_deterministic_on_cuda_and_all_is_restored() -> None:
    before = settings()
    with full_precision(torch.device("cuda")):
        assert settings() == (False, False, False, True, True, False)
    assert settings() == before
    with pytest.raises(ZeroDivisionError), full_precision(torch.device("cuda")):
        raise ZeroDivisionError
    assert settings() == before


def test_nothing_is_set_on_the_host() -> None:
    before = settings()
    with full_precision(HOST):
        assert settings() == before


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("attention", ["standard", "quest", "qknorm-hs", "elliptical"])
def test_cuda_repeats_itself_and_agrees_with_the_host(attention: str, tmp_path: Path) -> None:
    data = rbq.open_dataset("digits")
    threat = rbq.threat("pgd", eps="4/255")
    path = demo_checkpoint(attention)
    blocks = []
    for run in ("a", "b"):
        model = rbq.load_model(path, device="cuda")
        rbq.evaluate(model, data, threat, limit=64, store=str(tmp_path / run))
        blocks.append({p.name: p.read_bytes() for p in (tmp_path / run).rglob("*.parquet")})
    assert blocks[0] == blocks[1]
    there = rbq.evaluate(rbq.load_model(path, device="cuda"), data, limit=64)
    here = rbq.evaluate(rbq.load_model(path, device=HOST), data, limit=64)
    assert np.abs(column(there, "nll") - column(here, "nll")).max() < 1e-4
    assert (column(there, "input_crc") == column(here, "input_crc")).all()
    clear = np.abs(column(here, "margin")) > 1e-3
    assert (column(there, "correct") == column(here, "correct"))[clear].all()
