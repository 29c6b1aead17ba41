"""What a newcomer may add without editing anything else: a kind of threat, a task, a metric."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from made_up import Images, linear, rule
from torch import Tensor

import robustbench_quest as rbq
from robustbench_quest.block import Block, Columns, joined, kept_images
from robustbench_quest.errors import OptionError
from robustbench_quest.metrics import METRICS, Metric
from robustbench_quest.records import Records, column, digest
from robustbench_quest.registry import TASKS, THREAT_KINDS, Registry
from robustbench_quest.rng import ImageRng
from robustbench_quest.store import Store
from robustbench_quest.tables import FORMATS, render, result_of
from robustbench_quest.tasks import Task
from robustbench_quest.threats import Compute, ThreatKind
from robustbench_quest.types import ModelSpec

WEATHER = Registry("weather")


@dataclass(frozen=True)
class Dusk:
    """Images made darker, by an amount that is drawn."""

    least: float = 0.2
    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise OptionError(f"least {self.least}: expected a number above 0 and at most 1")


WEATHER.add("dusk", Dusk, "darker")


class Weather(ThreatKind):
    name = "weather"
    threats = WEATHER
    columns = (("light", pa.float64()),)
    block_size = 5

    def title(self, threat: Any) -> str:
        return f"{threat.name} from {dict(threat.options)['least']}"

    def computing(self) -> Compute:
        return darkened


def darkened(block: Block) -> tuple[Columns, dict[str, Any]]:
    job = block.job
    rng = ImageRng(job.cell.seed or 0, "dusk", block.image_ids)
    least = dict(job.cell.threat.options)["least"]
    light = least + (1 - least) * rng.uniform((1, 1, 1))
    parts = [
        job.task.score(job.model(block.pixels(p) * torch.from_numpy(light[p])), block.targets[p])
        for p in block.batches()
    ]
    job.advance(len(block.positions))
    return {**joined(parts), "light": light.reshape(-1).astype(np.float64)}, kept_images(block)


class Counting(Task):
    """How many things are in an image; right within one half."""

    name = "counting"
    columns = (("count", pa.float64()), ("answer", pa.float64()), ("close", pa.bool_()))
    compared = (("clean_answer", pa.float64()),)
    success = "close"
    metrics = ("count_error",)

    def check(self, model: ModelSpec, dataset: Any) -> None:
        assert dataset.labels.min() >= 0

    def targets(self, dataset: Any, indices: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(dataset.labels[indices]).float()

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        answer = outputs[:, 0].double().numpy()
        count = targets.double().numpy()
        return {"count": count, "answer": answer, "close": np.abs(answer - count) < 0.5}

    def compare(self, scored: Any, clean: Tensor, final: Tensor, aimed: Tensor) -> dict[str, Any]:
        return {"clean_answer": clean[:, 0].double().numpy()}

    def objective(self) -> Any:
        return Off()


def count_error(records: Records) -> float:
    return float(np.abs(column(records, "answer") - column(records, "count")).mean())


class Off:
    """The answer moved away from the count."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).abs()

    def failed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets) >= 0.5

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0]


class Counted(Images):
    """Images with a count."""

    name = "counted"
    task = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.labels = self.pixels.reshape(12, -1).mean(1).round().astype(np.int64)


@pytest.fixture(autouse=True)
def _added() -> Iterator[None]:
    before = dict(THREAT_KINDS._entries), dict(TASKS._entries), dict(METRICS._entries)
    THREAT_KINDS.add("weather", Weather(), "made up")
    TASKS.add("counting", Counting(), "made up")
    METRICS.add("count_error", Metric("count error", count_error, "things", 1, "lower"), "made up")
    yield
    THREAT_KINDS._entries, TASKS._entries, METRICS._entries = before


def counter() -> Any:
    def mean(x: Tensor) -> Tensor:
        return 255 * x.flatten(1).mean(1, keepdim=True) + 0.01 * linear(x)[:, :1]

    return rule(mean, classes=1)


def test_a_made_up_kind_passes_evaluator_and_store(tmp_path: Path) -> None:
    dusk = rbq.threat("dusk", least=0.5)
    assert (dusk.kind, dusk.version) == ("weather", 3)
    model, data = rule(linear), Images()
    first = rbq.evaluate(model, data, dusk, store=str(tmp_path), seed=1, batch_size=4, keep_images=2)
    assert first.column_names[-1] == "light"
    assert column(first, "light").min() >= 0.5
    assert len(list(tmp_path.rglob("block-?????.parquet"))) == 3
    assert digest(Store(tmp_path).cell(_cell(model, data, dusk)).read()) == digest(first)
    assert digest(rbq.evaluate(model, data, dusk, seed=1)) == digest(first)
    assert digest(rbq.evaluate(model, data, dusk, seed=2)) != digest(first)
    with pytest.raises(OptionError, match="unknown setting of dusk 'last'; did you mean 'least'"):
        rbq.threat("dusk", last=1)
    with pytest.raises(OptionError, match="unknown threat 'duks'; did you mean 'dusk'"):
        rbq.threat("duks")


def test_a_made_up_task_passes_evaluator_and_store(tmp_path: Path) -> None:
    model, data = counter(), Counted()
    clean = rbq.evaluate(model, data, store=str(tmp_path))
    assert column(clean, "close").all()
    attacked = rbq.evaluate(model, data, rbq.threat("pgd", eps="4/255", steps=3), store=str(tmp_path))
    assert set(attacked.column_names) > {"clean_answer", "linf", "broken_by"}
    assert column(attacked, "clean_answer").tolist() == column(clean, "answer").tolist()
    assert set(column(attacked, "broken_by")) == {"pgd"}
    assert np.abs(column(attacked, "answer") - column(attacked, "count")).min() > 1
    dusk = rbq.evaluate(model, data, rbq.threat("dusk"))
    assert not column(dusk, "close").any()


def tables(store: Path) -> dict[str, str]:
    """Return what a store holds as a table in every format; a note would be a failure."""
    results = [result_of(stored) for stored in Store(store).cells(pytest.fail)]
    return {form: render(results, form) for form in FORMATS}


def test_a_made_up_kind_passes_the_tables(tmp_path: Path) -> None:
    dusk = rbq.threat("dusk", least=0.5)
    records = rbq.evaluate(rule(linear), Images(), dusk, store=str(tmp_path), seed=1)
    top1, shown = 100 * rbq.metrics.accuracy(records), tables(tmp_path)
    # How the model does on the clean images is not known, and is not made up of what it does at dusk.
    assert shown["table"].splitlines()[2].split()[:6] == ["dusk", "from", "0.5", "12", "-", f"{top1:.2f}"]
    assert "near chance" not in shown["table"]
    assert "\ndusk from 0.5: Dusk(least=0.5)\nseed 1\n" in shown["table"]
    assert "protocol" not in shown["table"]
    (row,) = json.loads(shown["json"])
    assert (row["top1"], row["clean_top1"], row["settings"]) == (top1, None, "Dusk(least=0.5)")
    assert f"{{dusk from 0.5}} & {{12}} & {{-}} & {{{top1:.2f}}}" in shown["latex"]
    (row,) = csv.DictReader(io.StringIO(shown["csv"]))
    assert (row["threat"], row["top1"], row["clean_top1"]) == ("dusk", f"{top1:.6f}", "")


def test_a_made_up_task_passes_the_tables(tmp_path: Path) -> None:
    model, data = counter(), Counted()
    rbq.evaluate(model, data, store=str(tmp_path))
    attacked = rbq.evaluate(model, data, rbq.threat("pgd", eps="4/255", steps=3), store=str(tmp_path))
    error, shown = count_error(attacked), tables(tmp_path)
    lines = shown["table"].splitlines()
    assert lines[0].split() == ["threat", "n", "count", "error"]
    (line,) = [line for line in lines if line.startswith("PGD linf 4/255  ")]
    assert line.split() == ["PGD", "linf", "4/255", "12", f"{error:.1f}"]
    assert "; count error in things, each over all n images, perturbed where attacked" in shown["table"]
    assert "Top-1" not in "".join(shown.values())
    assert f"{{PGD linf 4/255}} & {{12}} & {{{error:.1f}}}" in shown["latex"]
    for row in json.loads(shown["json"]):
        assert (row["threat"] == "pgd") is (row["count_error"] == error)
        assert not {"top1", "clean_top1"} & set(row)
    values = {row["threat"]: row["count_error"] for row in csv.DictReader(io.StringIO(shown["csv"]))}
    assert values["pgd"] == f"{error:.6f}"
    assert float(values["clean"]) < 0.5


def _cell(model: Any, data: Any, threat: Any) -> Any:
    from robustbench_quest.evaluation import make_cell
    from robustbench_quest.run import Run

    return make_cell(model.spec, data, threat, Run(seed=1))
