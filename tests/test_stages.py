"""Attacks on a block: who is attacked, what is kept of it, stages that resume, and the space it happens
in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import Images, linear, rule
from support import read_npz
from torch import Tensor

import robustbench_quest as rbq
from robustbench_quest.attacks.base import Attack, Budgeted, Model, Proposal
from robustbench_quest.attacks.gradient import Oracle
from robustbench_quest.attacks.settings import eps_of, hold
from robustbench_quest.datasets.base import Dataset
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST
from robustbench_quest.evaluation import make_cell
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.records import column, digest
from robustbench_quest.registry import ATTACKS
from robustbench_quest.rng import ImageRng
from robustbench_quest.run import Run
from robustbench_quest.store import Store
from robustbench_quest.stored_cell import StoredStages
from robustbench_quest.types import AttackSide, SpaceSpec

SEEN: list[tuple[str, int]] = []


@dataclass(frozen=True, repr=False)
class Step(Budgeted):
    """One step along the gradient, of a share of eps."""

    eps: Any
    share: float = 1.0
    name: str = "step"
    norm: str = "linf"

    def __post_init__(self) -> None:
        hold(self, eps=eps_of(self.eps, self.norm))

    @property
    def passes(self) -> int:
        return 1

    def run(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Proposal:
        SEEN.append((self.name, len(x)))
        oracle = Oracle(model, x)
        gradient, _ = oracle.gradient(x, y)
        return oracle.proposal(oracle.clip(x + self.share * float(self.eps) * gradient.sign()))


@dataclass(frozen=True, repr=False)
class Ensemble(Budgeted):
    """A small step, then a whole one."""

    eps: Any
    norm: str = "linf"
    only_robust = True

    def __post_init__(self) -> None:
        hold(self, eps=eps_of(self.eps, self.norm))

    @property
    def passes(self) -> int:
        return 2

    def stages(self) -> tuple[tuple[str, Attack], ...]:
        return (
            ("small", Step(self.eps, 0.3, "small")),
            ("whole", Step(self.eps, 1.0, "whole")),
            ("again", Step(self.eps, 1.0, "again")),
        )

    def run(self, model: Model, x: Tensor, y: Tensor, rng: ImageRng) -> Proposal:
        raise AssertionError("its stages run")


@pytest.fixture(autouse=True)
def _made_up() -> Iterator[None]:
    before = dict(ATTACKS._entries)
    ATTACKS.add("ensemble", Ensemble, "made up")
    SEEN.clear()
    yield
    ATTACKS._entries = before


@pytest.fixture
def ensemble() -> rbq.Threat:  # type: ignore[name-defined]
    return rbq.threat("ensemble", eps="16/255")


def test_stages_attack_what_is_still_robust(model: Classifier, digits: Dataset, ensemble: Any) -> None:
    records = rbq.evaluate(model, digits, ensemble, limit=100, block_size=100)
    broken_by = column(records, "broken_by").tolist()
    assert {"", "small", "whole"} <= set(broken_by)
    robust = 100 - broken_by.count("clean")
    left = robust - broken_by.count("small")
    assert [("small", robust), ("whole", left), ("again", left - broken_by.count("whole"))] == SEEN
    queries = dict(zip(broken_by, column(records, "queries").tolist(), strict=True))
    assert (queries["small"], queries["whole"], queries[""]) == (1, 2, 3)
    # What withstands all of them is scored clean, and what was wrong is left alone.
    clean = rbq.evaluate(model, digits, limit=100)
    rows = [index for index, name in enumerate(broken_by) if name in ("", "clean")]
    assert column(records, "nll")[rows].tolist() == column(clean, "nll")[rows].tolist()
    assert column(records, "linf")[rows].max() == 0
    assert (column(records, "correct") == (np.array(broken_by) == "")).all()


def test_an_attack_by_itself_moves_every_image(model: Classifier, digits: Dataset) -> None:
    records = rbq.evaluate(model, digits, rbq.threat("fgsm", eps="24/255"), limit=100)
    assert (column(records, "queries") == 1).all()
    wrong = column(records, "clean_pred") != column(records, "label")
    assert wrong.any()
    assert column(records, "broken_by")[wrong].tolist() == ["clean"] * int(wrong.sum())


@pytest.mark.parametrize("stages_done", [1, 2])
def test_a_run_that_dies_between_stages_goes_on(
    stages_done: int,
    model: Classifier,
    digits: Dataset,
    ensemble: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: dict[str, Any] = {"limit": 60, "block_size": 30, "batch_size": 7}
    calm = rbq.evaluate(model, digits, ensemble, store=str(tmp_path / "calm"), **how)
    write = StoredStages.write
    written = 0

    def die(self: StoredStages, stage: int, name: str, records: Any) -> None:
        nonlocal written
        write(self, stage, name, records)
        written += 1
        if written == stages_done:
            raise KeyboardInterrupt

    monkeypatch.setattr(StoredStages, "write", die)
    with pytest.raises(KeyboardInterrupt):
        rbq.evaluate(model, digits, ensemble, store=str(tmp_path / "killed"), **how)
    assert len(list((tmp_path / "killed").rglob("*.stage-*.parquet"))) == stages_done
    monkeypatch.setattr(StoredStages, "write", write)
    SEEN.clear()
    resumed = rbq.evaluate(model, digits, ensemble, store=str(tmp_path / "killed"), **how)
    assert SEEN[0][0] == ("whole", "again")[stages_done - 1]
    assert digest(resumed) == digest(calm)
    blocks = [
        sorted(p.read_bytes() for p in (tmp_path / n).rglob("block-*.parquet")) for n in ("calm", "killed")
    ]
    assert blocks[0] == blocks[1]
    assert not list(tmp_path.rglob("*.stage-*"))  # they go when their block is written


def test_a_damaged_or_foreign_stage_runs_again(
    model: Classifier, digits: Dataset, ensemble: Any, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"limit": 20, "block_size": 20}
    expected = digest(rbq.evaluate(model, digits, ensemble, **how))
    cell = make_cell(model.spec, digits, ensemble, Run(**how))
    stored = Store(tmp_path).cell(cell)
    stored.write_cell({})
    stages = stored.stages(0)
    records = rbq.evaluate(model, digits, ensemble, **how)
    stages.write(1, "other", records)
    (stored.path / "block-00000.stage-1-other.parquet").rename(
        stored.path / "block-00000.stage-1-whole.parquet"
    )
    assert stages.read(1, "whole") is None
    (stored.path / "block-00000.stage-0-small.parquet").write_bytes(b"PAR1")
    SEEN.clear()
    assert digest(rbq.evaluate(model, digits, ensemble, store=str(tmp_path), **how)) == expected
    assert SEEN[0][0] == "small"


def test_kept_images_of_stages_are_those_that_were_scored(
    model: Classifier, digits: Dataset, ensemble: Any, tmp_path: Path
) -> None:
    records = rbq.evaluate(model, digits, ensemble, limit=30, store=str(tmp_path), keep_images=30)
    kept = read_npz(next(tmp_path.rglob("*.npz")))
    with torch.no_grad():
        logits = model(torch.from_numpy(kept["perturbed"]))
    assert logits.argmax(1).tolist() == column(records, "pred")[:, 0].tolist()
    linf = np.abs(kept["perturbed"].astype(np.float64) - kept["clean"]).reshape(30, -1).max(1)
    assert linf.tolist() == column(records, "linf").tolist()


def side(**settings: Any) -> AttackSide:
    return AttackSide(SpaceSpec("normalised", **settings))


def test_an_attack_in_normalised_space_is_that_of_the_bare_module() -> None:
    std = (0.25, 0.5, 0.2)
    model = rule(linear, mean=(0.5, 0.4, 0.3), std=std)
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    space = model.space(side(clamp=None))
    z = (x - model.mean) / model.std
    torch.testing.assert_close(space(space.encode(x)), linear(z), rtol=0, atol=1e-5)
    torch.testing.assert_close(space.decode(space.encode(x)), x, rtol=0, atol=1e-6)
    assert space.bounds is None
    assert space.unit == std
    # In units of another standard deviation the model is shown the same image.
    other = model.space(side(std=(0.5, 0.5, 0.5), clamp=(-2.0, 2.0)))
    torch.testing.assert_close(other(other.encode(x)), linear(z), rtol=0, atol=1e-5)
    assert (other.bounds, other.unit) == ((-2.0, 2.0), (0.5, 0.5, 0.5))
    assert other.encode(x).std() < z.std()


def test_a_protocol_decides_the_space(tmp_path: Path) -> None:
    protocol = tmp_path / "mine.yaml"
    text = "summary: mine\nspace: {{kind: normalised, std: {}}}\nadaptive: true\neps: 1/255\nattacks: {{}}\n"
    model = rule(linear, mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 0.125))
    found = {}
    for std in ("null", "[0.5, 0.5, 0.5]"):
        protocol.write_text(text.format(std))
        records = rbq.evaluate(model, Images(), rbq.threat("fgsm", eps="8/255"), protocol=str(protocol))
        assert not column(records, "violation").any()
        found[std] = column(records, "linf")
    # eps is in units of the space: times its largest deviation it is in pixels.
    assert found["null"] == pytest.approx(8 / 255 * 0.5, abs=1e-6)
    assert found["[0.5, 0.5, 0.5]"] == pytest.approx(8 / 255 * 0.5, abs=1e-6)
    pixel = rbq.evaluate(model, Images(), rbq.threat("fgsm", eps="8/255"))
    assert column(pixel, "linf").max() == pytest.approx(8 / 255, abs=1e-6)


def test_editing_a_protocols_space_changes_attack_cells_and_no_clean_one(
    model: Classifier, digits: Dataset, tmp_path: Path
) -> None:
    protocol = tmp_path / "mine.yaml"
    texts = [
        "space: {kind: pixel, clamp: [0, 1]}\nadaptive: true",
        "space: {kind: pixel}\nadaptive: true",
        "space: {kind: normalised}\nadaptive: true",
        "space: {kind: normalised, std: [0.2, 0.2, 0.2]}\nadaptive: true",
        "space: {kind: pixel, clamp: [0, 1]}\nadaptive: false",
    ]
    attacks, cleans = set(), set()
    for seed, text in enumerate(texts):
        protocol.write_text(f"summary: mine\neps: 1/255\nattacks: {{}}\n{text}\n")
        run = Run(protocol=str(protocol))
        attacks.add(make_cell(model.spec, digits, rbq.threat("fgsm", eps="1/255"), run).id)
        cleans.add(make_cell(model.spec, digits, run=Run(protocol=str(protocol), seed=seed)).id)
    cleans.add(make_cell(model.spec, digits).id)
    assert len(attacks) == len(texts)
    assert len(cleans) == 1
    # A label is no number: the same settings under another name are the same cell.
    protocol.write_text(f"summary: mine\neps: 1/255\nattacks: {{}}\n{texts[0]}\n")
    threat = rbq.threat("fgsm", eps="1/255")
    assert make_cell(model.spec, digits, threat, Run(protocol=str(protocol))).id in attacks
    assert (
        make_cell(model.spec, digits, threat, Run(protocol=str(protocol))).id
        == make_cell(model.spec, digits, threat).id
    )


def test_the_gradient_through_m_is_the_attackers(digits: Dataset) -> None:
    model = rbq.load_model(demo_checkpoint("elliptical"), device=HOST)
    pgd = rbq.threat("pgd", eps="8/255", steps=5)
    found = [rbq.evaluate(model, digits, pgd, limit=40, adaptive=way) for way in (True, False, None)]
    assert digest(found[0]) == digest(found[2])
    assert digest(found[0]) != digest(found[1])
    cells = {make_cell(model.spec, digits, pgd, Run(adaptive=way)).id for way in (True, False, None)}
    assert len(cells) == 2
