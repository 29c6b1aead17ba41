"""The shipped zoo keeps what it promises, and its training is a function of its seed."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from safetensors import safe_open

import robustbench_quest as rbq
from robustbench_quest.datasets.base import Dataset
from robustbench_quest.demo import FOLDER, SEEDS, demo_checkpoint, train
from robustbench_quest.device import HOST
from robustbench_quest.errors import OptionError
from robustbench_quest.metrics import accuracy, clean_accuracy
from robustbench_quest.registry import ATTENTION

ZOO = [(attention, seed) for attention in ATTENTION for seed in SEEDS]


def test_the_zoo_is_complete_and_small() -> None:
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == {demo_checkpoint(*one).stem for one in ZOO}
    assert len(ZOO) == 24
    assert sum(path.stat().st_size for path in FOLDER.glob("*.safetensors")) < 4.6e6


@pytest.mark.parametrize(("attention", "seed"), ZOO)
def test_a_model_of_the_zoo(attention: str, seed: int, digits: Dataset) -> None:
    path = demo_checkpoint(attention, seed)
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["rbq"])
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    model = rbq.load_model(path, device=HOST)
    assert model.spec.attention is not None
    assert (model.spec.attention.name, model.trained_on, model.spec.guessed) == (attention, "digits", ())
    assert sum(parameter.numel() for parameter in model.parameters()) < 90_000
    records = rbq.evaluate(model, digits, rbq.threat("pgd", eps="4/255"), batch_size=250)
    assert clean_accuracy(records) > 0.97
    assert clean_accuracy(records) == pytest.approx(facts["accuracy"], abs=1e-4)
    assert 0.60 <= accuracy(records) <= 0.80


def test_training_is_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "EPOCHS", 1)
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first, other, again = (train.train("quest", seed)[0].state_dict() for seed in (0, 1, 0))
    assert all(torch.equal(first[name], tensor) for name, tensor in again.items())
    assert not torch.equal(first["head.weight"], other["head.weight"])
    # What is measured is what is stored.
    assert all(torch.equal(tensor, tensor.half().float()) for tensor in first.values())
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]


def test_a_model_that_is_not_in_the_zoo() -> None:
    with pytest.raises(OptionError, match=r"no vit_digits_quest_s7; it holds seeds 0, 1, 2 of standard"):
        demo_checkpoint("quest", 7)
