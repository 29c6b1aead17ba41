"""Sizes that a file or the user declares are compared with the tensors before anything is built."""

from __future__ import annotations

import time

import pytest
import timm
import torch
from small_checkpoints import PREPROCESSING, Save, facts, hollow, tiny

from robustbench_quest.errors import OptionError, QuestError
from robustbench_quest.models.declared_sizes import check_sizes, check_total
from robustbench_quest.models.inspect import inspect_checkpoint
from robustbench_quest.models.load import load_model
from robustbench_quest.models.preprocessing import check_preprocessing

pytestmark = pytest.mark.timeout(60)
TENSORS = tiny().state_dict()

SIZES = {
    "depth": (10_000_000, "depth=10000000 was given for vision_transformer, and the file has 2 blocks"),
    "embed_dim": (10_000_000, "patch_embed.proj.weight in the file has 24 rows"),
    "num_classes": (100_000_000, "head.weight in the file has 5 rows"),
    "img_size": (1_000_000, "images have at most 4096 pixels a side"),
    "num_heads": (10_000_000, "no tensor of the file has more than 4096 rows or columns"),
    "mlp_ratio": (1e8, "no tensor of the file has more than 4096 rows or columns"),
    "patch_size": (100_000, "no tensor of the file has more than 4096"),
    "reg_tokens": (10_000_000, "no tensor of the file has more than 4096"),
    "in_chans": (10_000_000, "no tensor of the file has more than 4096"),
}


@pytest.mark.parametrize("option", SIZES)
def test_a_size_in_the_metadata_is_refused_at_once(save_safetensors: Save, option: str) -> None:
    value, message = SIZES[option]
    options = {**facts()["arch_options"], option: value}
    path = save_safetensors(TENSORS, facts(arch_options=options))
    start = time.perf_counter()
    with pytest.raises(OptionError) as caught:
        load_model(path)
    assert message in str(caught.value)
    assert message in " ".join(inspect_checkpoint(path).problems)
    assert time.perf_counter() - start < 8


@pytest.mark.parametrize("option", SIZES)
def test_a_size_that_the_user_gives_is_refused_at_once(save_safetensors: Save, option: str) -> None:
    path, start = save_safetensors(TENSORS, facts()), time.perf_counter()
    with pytest.raises(QuestError):
        load_model(path, arch_options={option: SIZES[option][0]})
    assert time.perf_counter() - start < 8


def test_sizes_that_are_too_large_together_are_refused(save_safetensors: Save) -> None:
    options = {**facts()["arch_options"], "patch_size": 4096, "img_size": 4096}
    path = save_safetensors(TENSORS, facts(arch_options=options))
    with pytest.raises(OptionError, match=r"has 1,207,969,565 values and the file has 14,693; correct the"):
        load_model(path)


@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), -(10**9), pytest.param(1 << 20_000, id="digits")]
)
def test_numbers_that_are_no_size_are_refused(value: float) -> None:
    with pytest.raises(OptionError, match="was given for vit, and the file has 2 blocks"):
        check_sizes("vit", {"depth": value}, TENSORS)


def test_sizes_of_the_file_are_let_through() -> None:
    check_sizes("vision_transformer", {**facts()["arch_options"], "qkv_bias": True, "act": "x" * 99}, TENSORS)
    check_sizes("vision_transformer", {"depth": 1, "embed_dim": 12, "num_classes": 2}, TENSORS)
    check_total("vision_transformer", TENSORS, TENSORS)


def test_an_architecture_without_blocks_is_compared_with_the_number_of_tensors() -> None:
    with pytest.raises(OptionError, match="the file has 1 tensors"):
        check_sizes("cait", {"depth_token_only": 4000}, {"head.weight": torch.ones(4000, 1)})


def test_a_large_real_model_is_let_through(save_pt: Save) -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_large_patch14_224", num_classes=21843)
    options = {"num_classes": 21843, "depth": 24, "embed_dim": 1024}
    metadata = facts(arch="vit_large_patch14_224", arch_options=options)
    metadata["preprocessing"] = {**PREPROCESSING, "size": 224}
    assert inspect_checkpoint(save_pt({"model": hollow(model), "rbq": metadata})).problems == ()


def test_images_are_not_enlarged_without_bound() -> None:
    half = (0.5, 0.5, 0.5)
    assert check_preprocessing(224, 2240, "bicubic", half, half).resize == 2240
    with pytest.raises(OptionError, match="resize must be at most 2240, ten times the size 224; got 2241"):
        check_preprocessing(224, 2241, "bicubic", half, half)
