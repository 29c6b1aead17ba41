"""The evaluator: determinism as docs/architecture.md states it, honest records, nothing touched."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support import read_npz
from torch import Tensor, nn

import robustbench_quest as rbq
from robustbench_quest.block import check_pixels
from robustbench_quest.datasets.base import Dataset
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST
from robustbench_quest.errors import DataError, OptionError, QuestError
from robustbench_quest.evaluation import make_cell
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.records import Records, column, digest
from robustbench_quest.store import Store
from robustbench_quest.types import CLEAN

PGD = rbq.threat("pgd", eps="4/255", steps=3)


@pytest.fixture(scope="module")
def model() -> Classifier:
    return rbq.load_model(demo_checkpoint(), device=HOST)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return rbq.open_dataset("digits")


class Images(Dataset):
    """Random 8x8 images that a test makes up."""

    name = "images"

    def __init__(self, count: int = 12, classes: int = 10) -> None:
        self.image_ids = tuple(f"image-{i}" for i in range(count))
        self.labels = np.arange(count) % classes
        self.pixels = np.random.RandomState(0).randint(0, 256, (count, 8, 8, 3), np.uint8)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        return np.asarray(self.pixels[index])

    def fingerprint(self) -> str:
        return f"{len(self.image_ids):064d}"


class Rule(nn.Module):
    """A model that is a plain function."""

    def __init__(self, function: Callable[[Tensor], Tensor], num_classes: int = 10) -> None:
        super().__init__()
        self.function = function
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def linear(x: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, 10 * 3 * 8 * 8, dtype=x.dtype).sin().reshape(3 * 8 * 8, 10)
    return x.flatten(1) @ weights


def rule(function: Callable[[Tensor], Tensor], **options: Any) -> Classifier:
    return Classifier(Rule(function), size=8, resize=0, **options)


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*.parquet")}


def test_workers_order_and_resume_change_no_byte(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    how = {"limit": 20, "block_size": 6, "batch_size": 4}
    for name, workers in (("one", 0), ("two", 1), ("four", 4)):
        rbq.evaluate(model, digits, PGD, store=str(tmp_path / name), workers=workers, **how)  # type: ignore[arg-type]
    # A store that has some blocks only, the last ones first: the rest is computed, in another order.
    resumed = tmp_path / "resumed"
    cell = make_cell(model, digits, PGD, limit=20, block_size=6)
    whole, part = Store(tmp_path / "one").cell(cell), Store(resumed).cell(cell)
    part.write_cell({})
    for number in (3, 1):
        part.write_block(number, whole.read_block(number), {})
    assert part.missing() == [0, 2]
    rbq.evaluate(model, digits, PGD, store=str(resumed), **how)  # type: ignore[arg-type]
    expected = files(tmp_path / "one")
    assert len(expected) == 4
    for name in ("two", "four", "resumed"):
        assert files(tmp_path / name) == expected


def test_another_batch_size_changes_only_rounding(model: Classifier, digits: Dataset) -> None:
    base = rbq.evaluate(model, digits, PGD, limit=24, batch_size=24)
    for batch_size in (1, 5):
        other = rbq.evaluate(model, digits, PGD, limit=24, batch_size=batch_size)
        for name in ("index", "image_id", "input_crc", "label", "clean_pred", "queries"):
            assert (column(base, name) == column(other, name)).all()
        clean = rbq.evaluate(model, digits, limit=24, batch_size=batch_size)
        assert column(clean, "nll") == pytest.approx(
            column(rbq.evaluate(model, digits, limit=24, batch_size=24), "nll"), abs=1e-5
        )
        clear = np.abs(column(base, "margin")) > 1e-4
        assert (column(base, "correct") == column(other, "correct"))[clear].all()


def test_random_starts_do_not_depend_on_the_batch(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    # One step of almost no length returns the start itself, which must be the same to the last bit.
    threat = rbq.threat("pgd", eps="4/255", steps=1, alpha="0.000001eps")
    kept = []
    for batch_size in (8, 3):
        store = tmp_path / str(batch_size)
        rbq.evaluate(model, digits, threat, store=str(store), limit=8, batch_size=batch_size, keep_images=8)
        kept.append(read_npz(next(store.rglob("*.npz")))["perturbed"])
    assert np.abs(kept[0] - kept[1]).max() <= 2 * 4 / 255 * 1e-6 + 1e-7
    again = rbq.evaluate(model, digits, threat, limit=8, seed=1)
    assert digest(again) != digest(rbq.evaluate(model, digits, threat, limit=8, seed=0))


def test_limit_is_a_prefix_and_stratified(model: Classifier, digits: Dataset) -> None:
    small, large = (rbq.evaluate(model, digits, limit=limit) for limit in (20, 50))
    assert digest(small) == digest(large.slice(0, 20))
    assert sorted(column(small, "label").tolist()) == sorted([*range(10)] * 2)


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_eps_0_gives_exactly_the_clean_predictions(
    attack: str, norm: str, model: Classifier, digits: Dataset
) -> None:
    clean = rbq.evaluate(model, digits, limit=20)
    attacked = rbq.evaluate(model, digits, rbq.threat(attack, eps=0, norm=norm), limit=20)
    for name in clean.column_names:
        assert attacked[name].equals(clean[name])
    assert column(attacked, "linf").max() == 0


def test_model_and_random_states_are_untouched(model: Classifier, digits: Dataset) -> None:
    state = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    python, numpy, torch_state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    rbq.evaluate(model, digits, PGD, limit=8, workers=1)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags == [False] * len(flags)
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_the_store_answers_without_the_model(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handle = model.module.register_forward_hook(count)
    try:
        first = rbq.evaluate(model, digits, PGD, store=str(tmp_path), limit=8)
        computed = calls
        second = rbq.evaluate(model, digits, PGD, store=str(tmp_path), limit=8)
    finally:
        handle.remove()
    assert computed == 1 + 3 + 1  # clean, three steps, the score
    assert calls == computed
    assert digest(first) == digest(second)


def test_records_say_what_happened(model: Classifier, digits: Dataset) -> None:
    records = rbq.evaluate(model, digits, rbq.threat("pgd", eps="8/255"), limit=60)
    broken_by = column(records, "broken_by")
    clean_right = column(records, "clean_pred") == column(records, "label")
    assert set(broken_by[~clean_right]) <= {"clean"}
    assert set(broken_by[clean_right]) == {"", "pgd"}
    assert ((broken_by == "") == (column(records, "correct") & clean_right)).all()
    assert (column(records, "linf") <= 8 / 255 + 1e-6).all()
    assert not column(records, "violation").any()
    assert (column(records, "queries") == 20).all()
    assert (column(records, "loss_end") > column(records, "loss_start")).mean() > 0.9


def test_an_image_that_is_wrong_without_attack_is_not_robust() -> None:
    # Wrong at the clean image, right everywhere else: the attack "repairs" it, which is no robustness.
    clean = torch.from_numpy(Images().pixels).permute(0, 3, 1, 2).float() / 255

    def fragile(x: Tensor) -> Tensor:
        moved = (x[:, None] - clean[None]).flatten(2).abs().amax(2).amin(1) > 0
        logits = linear(x) * 0 + x.flatten(1).sum(1, keepdim=True) * 1e-6
        logits[:, 0] += torch.where(moved, 1.0, -1.0)
        return logits

    data = Images()
    data.labels = np.zeros(12, dtype=np.int64)
    records = rbq.evaluate(rule(fragile), data, rbq.threat("fgsm", eps="4/255"))
    assert rbq.metrics.accuracy(records) == rbq.metrics.clean_accuracy(records) == 0
    assert column(records, "broken_by").tolist() == ["clean"] * 12
    assert column(records, "linf").max() == 0


def test_nan_models_are_counted_wrong() -> None:
    def sometimes(x: Tensor) -> Tensor:
        return linear(x) * torch.where((torch.arange(len(x)) < 3)[:, None], torch.nan, 1.0)

    records = rbq.evaluate(rule(sometimes), Images(), PGD, batch_size=12)
    assert (~column(records, "finite")).sum() == 3
    assert (column(records, "clean_pred") == -1).sum() == 3
    assert column(records, "grad_nonfinite").max() == 3
    assert not column(records, "violation").any()


def test_an_attack_that_leaves_the_ball_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from robustbench_quest.attacks.base import Proposal
    from robustbench_quest.attacks.fgsm import FGSM

    def cheat(self: FGSM, model: object, x: Tensor, y: Tensor, rng: object) -> Proposal:
        moved = x.clone()
        moved[0] += 9 / 255  # outside the ball
        moved[1] = -moved[1]  # outside the range, and the ball
        moved[2] = torch.nan
        return Proposal.unchanged(moved)

    monkeypatch.setattr(FGSM, "run", cheat)
    records = rbq.evaluate(rule(lambda x: linear(x.nan_to_num())), Images(), rbq.threat("fgsm", eps="4/255"))
    assert column(records, "violation").tolist() == [True] * 3 + [False] * 9


def test_normalised_input_is_refused() -> None:
    with pytest.raises(DataError, match=r"must lie in \[0, 1\], but b has values from -2.1 to -0: probably"):
        check_pixels(
            torch.tensor([0.5, -2.1]).view(2, 1, 1, 1) * torch.tensor([1.0, 0]).view(1, 1, 1, 2), ["a", "b"]
        )
    with pytest.raises(DataError, match="but a has values"):
        check_pixels(torch.full((1, 3, 2, 2), float("nan")), ["a"])


def test_labels_that_the_model_cannot_predict_are_refused(model: Classifier) -> None:
    data = Images(12, classes=11)
    with pytest.raises(DataError, match="label 10 of image-10 is out of range: the model has classes 0-9"):
        rbq.evaluate(model, data)
    data.labels = -data.labels
    with pytest.raises(DataError, match="label -10 of image-10 is out of range"):
        rbq.evaluate(model, data)


def test_another_number_of_classes_is_refused(digits: Dataset) -> None:
    wide = Classifier(Rule(linear, num_classes=1000), size=32, resize=0)
    with pytest.raises(DataError, match="digits has 10 classes, the model 1000; check --data and --ckpt"):
        rbq.evaluate(wide, digits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "--limit must be at least 1, but is 0"),
        ({"block_size": -1}, "--block-size must be at least 1, but is -1"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"workers": -1}, "--workers must be at least 0"),
    ],
)
def test_bad_sizes_are_refused(
    options: dict[str, Any], message: str, model: Classifier, digits: Dataset
) -> None:
    with pytest.raises(OptionError, match=message):
        rbq.evaluate(model, digits, **options)


def test_kept_images_are_those_that_were_scored(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    how: dict[str, Any] = {"limit": 10, "block_size": 4, "store": str(tmp_path)}
    before = rbq.evaluate(model, digits, PGD, **how)
    # Asked for later, they are added to the finished cell without changing its records.
    after = rbq.evaluate(model, digits, PGD, keep_images=6, **how)
    assert digest(before) == digest(after)
    kept = [read_npz(path) for path in sorted(tmp_path.rglob("*.npz"))]
    assert [len(part["image_id"]) for part in kept] == [4, 2]
    rbq.evaluate(model, digits, PGD, keep_images=8, **how)
    assert [len(read_npz(path)["image_id"]) for path in sorted(tmp_path.rglob("*.npz"))] == [4, 4]
    merged = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
    assert merged["image_id"].tolist() == column(after, "image_id")[:6].tolist()
    assert merged["clean"].dtype == merged["perturbed"].dtype == np.float32
    linf = np.abs(merged["perturbed"].astype(np.float64) - merged["clean"]).reshape(6, -1).max(1)
    assert linf.tolist() == column(after, "linf")[:6].tolist()
    with torch.no_grad():
        logits = model(torch.from_numpy(merged["perturbed"]))
    assert logits.argmax(1).tolist() == column(after, "pred")[:6, 0].tolist()


def test_progress_ends_at_the_number_of_images(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    for _ in range(2):  # computed, then answered from the store
        seen: list[float] = []
        rbq.evaluate(model, digits, PGD, limit=10, batch_size=4, store=str(tmp_path), advance=seen.append)
        assert sum(seen) == pytest.approx(10)


def test_unknown_protocols_are_refused(model: Classifier, digits: Dataset) -> None:
    with pytest.raises(QuestError, match="unknown protocol 'pixels'"):
        rbq.evaluate(model, digits, PGD, limit=2, protocol="pixels")


RUN = """
import sys
import torch
import robustbench_quest as rbq
from robustbench_quest.demo import demo_checkpoint
torch.set_num_threads(int(sys.argv[2]))
model = rbq.load_model(demo_checkpoint(), device=rbq.device.HOST)
threat = rbq.threat("pgd", eps="4/255", steps=3)
how = {"limit": 48, "block_size": 6, "batch_size": 3}
rbq.evaluate(model, rbq.open_dataset("digits"), threat, store=sys.argv[1], **how)
"""


def test_kill_9_loses_at_most_one_block(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    command = [sys.executable, "-c", RUN, str(tmp_path / "killed"), str(threads)]
    cell = make_cell(model, digits, PGD, limit=48, block_size=6)
    stored = Store(tmp_path / "killed").cell(cell)
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 120
        while len(stored.missing()) > 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    left = stored.missing()
    # Blocks are finished in order, so what is there is a prefix: only the block in the making was lost.
    assert left == list(range(left[0], 8))
    assert 3 <= left[0] < 8
    before = {path: path.stat().st_mtime_ns for path in stored.path.glob("*.parquet")}
    subprocess.run(command, check=True)
    assert not stored.missing()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    undisturbed: Records = rbq.evaluate(
        model, digits, PGD, store=str(tmp_path / "calm"), limit=48, block_size=6, batch_size=3
    )
    assert digest(stored.read()) == digest(undisturbed)
    assert files(tmp_path / "killed") == files(tmp_path / "calm")


def test_clean_is_a_threat_without_settings() -> None:
    assert rbq.threat("clean") is CLEAN
    with pytest.raises(OptionError, match="clean takes no settings, but got eps"):
        rbq.threat("clean", eps="1/255")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pgd needs a budget, such as eps='1/255'"),
        ({"eps": "1/255", "step": 3}, "unknown setting of pgd 'step'; did you mean 'steps'"),
        ({"eps": 2}, "did you mean 2/255"),
        ({"eps": "0.5"}, "allow-large-eps"),
    ],
)
def test_bad_threats_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rbq.threat("pgd", **options)
    assert rbq.threat("pgd", eps="0.5", allow_large_eps=True).eps == 0.5


def test_equal_budgets_share_a_cell(model: Classifier, digits: Dataset) -> None:
    ids = {
        make_cell(model, digits, rbq.threat("pgd", eps=eps)).id
        for eps in ("1/255", "2/510", 0.00392156862745098, "0.00392156862745098")
    }
    assert len(ids) == 1
