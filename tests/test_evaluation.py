"""The evaluator: honest records, nothing touched, bad input refused."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import Images, Rule, linear, rule
from support import read_npz
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import robustbench_quest as rbq
from robustbench_quest.block import Job, check_pixels
from robustbench_quest.completion import complete, lacking
from robustbench_quest.datasets.base import Dataset
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST
from robustbench_quest.errors import DataError, OptionError, QuestError, StoreError
from robustbench_quest.evaluation import make_cell
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.records import column, digest
from robustbench_quest.run import How, Run
from robustbench_quest.store import Store
from robustbench_quest.types import CLEAN

PGD = rbq.threat("pgd", eps="4/255", steps=3)


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


def test_a_model_that_was_changed_after_wrapping_is_refused(digits: Dataset) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 10))
    model = Classifier(module, size=32, resize=0)
    before = digest(rbq.evaluate(model, digits, limit=4))
    module.train()
    with pytest.raises(QuestError, match="Sequential was set to training mode after it was wrapped"):
        rbq.evaluate(model, digits, limit=4)
    module.eval()
    assert digest(rbq.evaluate(model, digits, limit=4)) == before
    module[1].train()
    with pytest.raises(QuestError, match="1 was set to training mode"):
        rbq.evaluate(model, digits, limit=4)
    module.eval()
    with torch.no_grad():
        module[3].weight.mul_(2)
    with pytest.raises(QuestError, match=r"3\.weight changed after it was wrapped; make a new Classifier"):
        rbq.evaluate(model, digits, limit=4)
    assert digest(rbq.evaluate(Classifier(module, size=32, resize=0), digits, limit=4)) != before


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
    wide = Classifier(Rule(lambda x: x.flatten(1)[:, :1000], num_classes=1000), size=32, resize=0)
    with pytest.raises(DataError, match="10 classes, the model 1000; check `root` and `checkpoint`"):
        rbq.evaluate(wide, digits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "`limit` must be at least 1, but is 0"),
        ({"block_size": -1}, "`block_size` must be at least 1, but is -1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"workers": -1}, "`workers` must be at least 0"),
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


def test_damaged_images_are_made_again(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    how: dict[str, Any] = {"limit": 4, "store": str(tmp_path), "keep_images": 4}
    rbq.evaluate(model, digits, **how)
    path = next(tmp_path.rglob("*.npz"))
    path.write_bytes(path.read_bytes()[:50])
    rbq.evaluate(model, digits, **how)
    assert len(read_npz(path)["clean"]) == 4


def test_kept_images_need_a_store(model: Classifier, digits: Dataset) -> None:
    with pytest.raises(OptionError, match="keep_images=3 needs a store"):
        rbq.evaluate(model, digits, limit=4, keep_images=3)


def test_the_callers_precision_and_modes_change_nothing(model: Classifier, digits: Dataset) -> None:
    expected = digest(rbq.evaluate(model, digits, PGD, limit=8))
    with torch.autocast(HOST.type, torch.bfloat16):
        assert digest(rbq.evaluate(model, digits, PGD, limit=8)) == expected
    with torch.inference_mode():
        assert digest(rbq.evaluate(model, digits, PGD, limit=8)) == expected
    with sdpa_kernel(SDPBackend.MATH):
        assert digest(rbq.evaluate(model, digits, PGD, limit=8)) == expected
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False
    try:
        assert digest(rbq.evaluate(model, digits, PGD, limit=8)) == expected
        fresh = rbq.load_model(demo_checkpoint(), device=HOST)
        assert digest(rbq.evaluate(fresh, digits, PGD, limit=8)) == expected
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_default_dtype() == torch.float64
        assert torch.backends.mkldnn.enabled is False
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.enabled = torch.backends.mkldnn.is_available()
    with torch.inference_mode(), torch.device("meta"):
        fresh = rbq.load_model(demo_checkpoint(), device=HOST)
    assert digest(rbq.evaluate(fresh, digits, PGD, limit=8)) == expected


def test_rounding_is_no_violation(model: Classifier, digits: Dataset) -> None:
    for norm, eps in (("l2", "0.00001"), ("l2", "3"), ("linf", "0.001/255"), ("linf", "64/255")):
        records = rbq.evaluate(model, digits, rbq.threat("pgd", eps=eps, norm=norm), limit=12)
        assert not column(records, "violation").any()


def test_a_lost_cell_json_is_written_again(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    rbq.evaluate(model, digits, limit=4, store=str(tmp_path))
    facts = next(tmp_path.rglob("cell.json"))
    before = facts.read_bytes()
    facts.unlink()
    rbq.evaluate(model, digits, limit=4, store=str(tmp_path))
    assert facts.read_bytes() == before


def test_a_cell_that_cannot_be_stored_ends_no_other(
    model: Classifier, digits: Dataset, tmp_path: Path
) -> None:
    cells = [make_cell(model.spec, digits, threat, Run(limit=4)) for threat in (CLEAN, PGD)]
    stored = [Store(tmp_path).cell(cell) for cell in cells]
    stored[0].path.parent.mkdir(parents=True)
    stored[0].path.write_text("")  # a file where the folder belongs
    jobs = [Job(model, digits, cell, How(), lambda images, computed=True: None) for cell in cells]
    errors = complete(jobs, stored, [lacking(cell, How()) for cell in stored])
    assert isinstance(errors[0], StoreError)
    assert errors[1] is None
    assert stored[1].read().num_rows == 4


def test_progress_ends_at_the_number_of_images(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    for first in (True, False):  # computed, then answered from the store
        seen: dict[bool, float] = {True: 0, False: 0}

        def advance(images: float, computed: bool = True, seen: dict[bool, float] = seen) -> None:
            seen[computed] += images

        rbq.evaluate(model, digits, PGD, limit=10, batch_size=4, store=str(tmp_path), advance=advance)
        assert seen == pytest.approx({True: 10, False: 0} if first else {True: 0, False: 10})


def test_unknown_protocols_are_refused(model: Classifier, digits: Dataset) -> None:
    with pytest.raises(QuestError, match="unknown protocol 'pixels'"):
        rbq.evaluate(model, digits, PGD, limit=2, protocol="pixels")


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
        make_cell(model.spec, digits, rbq.threat("pgd", eps=eps)).id
        for eps in ("1/255", "2/510", 0.00392156862745098, "0.00392156862745098")
    }
    assert len(ids) == 1
