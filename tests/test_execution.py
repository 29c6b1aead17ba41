"""A plan into a store: one model in memory at a time, none where the store has the answers, failures kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robustbench_quest import execution
from robustbench_quest.block import Advance
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.errors import DataError, QuestError
from robustbench_quest.execution import execute
from robustbench_quest.models.request import ModelRequest
from robustbench_quest.planning import EvalRequest, ThreatRequest, plan
from robustbench_quest.records import column
from robustbench_quest.registry import ATTENTION
from robustbench_quest.run import How, Run
from robustbench_quest.store import Store
from robustbench_quest.types import Cell

ALL = [ModelRequest(str(demo_checkpoint(name))) for name in ATTENTION]
FGSM = [ThreatRequest("fgsm", {"eps": "4/255"})]


class Heard:
    """What an execution reports."""

    def __init__(self) -> None:
        self.images: dict[str, float] = {}
        self.notes: list[str] = []
        self.failures: list[str] = []

    def advance(self, cell: Cell) -> Advance:
        def advance(images: float, computed: bool = True) -> None:
            self.images[cell.id] = self.images.get(cell.id, 0) + images

        return advance

    def note(self, text: str) -> None:
        self.notes.append(text)

    def failed(self, cell: Cell, message: str, trace: str) -> None:
        assert "Traceback" in trace
        self.failures.append(message)


def request(models: Any = None, **settings: Any) -> EvalRequest:
    run = Run(limit=settings.pop("limit", 8), block_size=settings.pop("block_size", None))
    return EvalRequest(models or ALL[:1], threats=FGSM, run=run, how=How(**settings), device="cpu")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """A weak reference to every model that is loaded; loading asserts that none before it is left."""
    load: Callable[..., Any] = execution.load_request
    alive: list[weakref.ref[Any]] = []

    def loaded(*arguments: Any) -> Any:
        assert [ref() for ref in alive] == [None] * len(alive)
        model = load(*arguments)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(execution, "load_request", loaded)
    return alive


def test_eight_models_run_with_one_in_memory(tmp_path: Path, loads: list[Any]) -> None:
    heard = Heard()
    found = plan(request(ALL))
    outcomes = execute(found, Store(tmp_path), heard)
    assert len(loads) == 8
    gc.collect()
    assert all(ref() is None for ref in loads)
    assert [o.error for o in outcomes] == [""] * 16
    assert [o.stored.cell.id for o in outcomes] == [cell.id for cells in found.cells for cell in cells]
    assert all(done == pytest.approx(8) for done in heard.images.values())


def test_a_failing_model_does_not_stay_in_memory(
    tmp_path: Path, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("robustbench_quest.models.classifier.Classifier.forward", fail)
    heard = Heard()
    outcomes = execute(plan(request(ALL[:3])), Store(tmp_path), heard)
    assert len(loads) == 3
    assert [o.error for o in outcomes] == ["RuntimeError: out of memory"] * 6
    assert heard.failures == ["RuntimeError: out of memory"] * 6
    assert len(list(tmp_path.rglob("error.json"))) == 6


def test_a_store_with_the_answers_loads_no_model(tmp_path: Path, loads: list[Any]) -> None:
    execute(plan(request()), Store(tmp_path), Heard())
    heard = Heard()
    execute(plan(request()), Store(tmp_path), heard)
    assert len(loads) == 1
    assert list(heard.images.values()) == [8, 8]
    execute(plan(request(keep_images=2)), Store(tmp_path), Heard())  # images are not there yet
    assert len(loads) == 2
    execute(plan(request(keep_images=2)), Store(tmp_path), Heard())
    assert len(loads) == 2


def test_every_image_is_decoded_once_for_all_cells(tmp_path: Path) -> None:
    found = plan(request(limit=40, block_size=10))
    reads: list[int] = []
    read = found.dataset.read
    found.dataset.read = lambda index: (reads.append(index), read(index))[1]  # type: ignore[method-assign]
    execute(found, Store(tmp_path), Heard())
    assert sorted(reads) == sorted(found.dataset.order[:40].tolist())


def test_one_bad_image_costs_the_cells_that_need_it(tmp_path: Path) -> None:
    found = plan(request(limit=40, block_size=10))
    broken = int(found.dataset.order[25])
    read = found.dataset.read

    def refuse(index: int) -> Any:
        if index == broken:
            raise DataError("it is damaged")
        return read(index)

    found.dataset.read = refuse  # type: ignore[method-assign]
    outcomes = execute(found, Store(tmp_path), Heard())
    assert [o.error for o in outcomes] == ["it is damaged"] * 2
    assert [o.stored.missing() for o in outcomes] == [[2, 3], [2, 3]]
    found.dataset.read = read  # type: ignore[method-assign]
    outcomes = execute(found, Store(tmp_path), Heard())
    assert [o.error for o in outcomes] == [""] * 2
    assert column(outcomes[0].stored.read(), "index").tolist() == list(range(40))


def test_a_checkpoint_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(demo_checkpoint("quest", 0).read_bytes())
    found = plan(request([ModelRequest(str(path))]))
    path.write_bytes(demo_checkpoint("quest", 1).read_bytes())
    with pytest.raises(QuestError, match="m is no longer what it was when its cells were planned"):
        execute(found, Store(tmp_path / "results"), Heard())


def test_a_model_that_cannot_be_loaded_does_not_cost_the_others(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(demo_checkpoint().read_bytes())
    found = plan(request([ModelRequest(str(path)), ALL[0]]))
    path.unlink()
    heard = Heard()
    outcomes = execute(found, Store(tmp_path / "results"), heard)
    assert ["no such checkpoint" in o.error for o in outcomes] == [True, True, False, False]
    assert outcomes[2].error == ""
    with pytest.raises(QuestError, match="no such checkpoint"):  # alone, it is bad input
        execute(plan_of_missing(found), Store(tmp_path / "results"), heard)


def plan_of_missing(found: Any) -> Any:
    import dataclasses

    return dataclasses.replace(found, models=found.models[:1], cells=found.cells[:1])
