"""Requests become cells: every setting with its source, no weights loaded, the ids that evaluation uses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import robustbench_quest as rbq
from robustbench_quest.datasets import open_dataset
from robustbench_quest.demo import demo_checkpoint
from robustbench_quest.device import HOST
from robustbench_quest.errors import OptionError
from robustbench_quest.evaluation import make_cell
from robustbench_quest.models.request import ModelRequest
from robustbench_quest.planning import (
    DatasetRequest,
    EvalRequest,
    ThreatRequest,
    distinguishing_end,
    plan,
    plan_threats,
)
from robustbench_quest.protocols import load_protocol
from robustbench_quest.run import Run
from robustbench_quest.threats import kind_of
from robustbench_quest.types import CLEAN

QUEST = ModelRequest(str(demo_checkpoint()))
PIXEL = load_protocol()


def planned(*threats: ThreatRequest) -> list[tuple[str, dict[str, str]]]:
    found = plan_threats(threats, PIXEL, open_dataset("digits"))
    return [(kind_of(p.threat).text(p.threat), dict(p.sources)) for p in found]


def test_clean_images_come_first_and_every_budget_is_a_threat() -> None:
    found = planned(
        ThreatRequest("fgsm", {"eps": "1/255, 2/510,8/255"}), ThreatRequest("fgsm", {"eps": [0.1]})
    )
    assert [text for text, _ in found] == [
        "clean",
        "FGSM(eps='1/255', norm='linf', labels='true')",
        "FGSM(eps='8/255', norm='linf', labels='true')",
        "FGSM(eps='0.1', norm='linf', labels='true')",
    ]


def test_every_setting_has_its_source() -> None:
    (_, clean), (text, sources) = planned(ThreatRequest("pgd", {"steps": 7}, source="zoo.yaml"))
    assert clean == {}
    assert "steps=7, alpha='0.15eps'" in text
    assert sources == {
        "eps": "default of data set digits",
        "steps": "zoo.yaml",
        **dict.fromkeys(("norm", "alpha", "random_start", "restarts", "labels", "keep"), "protocol pixel"),
    }


def test_one_request_for_each_attack_keeps_its_own_settings() -> None:
    found = planned(ThreatRequest("pgd", {"steps": 3}), ThreatRequest("pgd", {"steps": 5}))
    assert [text.partition("steps=")[2][:1] for text, _ in found] == ["", "3", "5"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ThreatRequest("pdg"), "unknown threat 'pdg'; did you mean 'pgd'? Available: clean, fgsm, pgd"),
        (ThreatRequest("pgd", {"stepz": 3}), "unknown setting of pgd 'stepz'; did you mean 'steps'?"),
        (ThreatRequest("pgd", {"eps": "1/255,"}), "`eps` '1/255,' has an empty entry"),
        (
            ThreatRequest("pgd", {"norm": "l2"}),
            "`norm` l2 has no default budget; give one, such as `eps` 0.5",
        ),
        (ThreatRequest("pgd", {"eps": 0.5}), "every image could turn grey"),
    ],
)
def test_bad_threats_are_refused(request_: ThreatRequest, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        planned(request_)


def test_large_budgets_can_be_meant() -> None:
    (_, (text, _)) = planned(ThreatRequest("fgsm", {"eps": "0.5", "allow_large_eps": True}))
    assert text == "FGSM(eps='0.5', norm='linf', labels='true')"


def test_an_l2_budget_beyond_the_image_cube_is_refused() -> None:
    request = EvalRequest([QUEST], threats=[ThreatRequest("pgd", {"norm": "l2", "eps": "128"})])
    message = r"eps 128 is more than 55\.43, the l2 distance from black to white for 32x32 pixels in \[0, 1\]"
    with pytest.raises(OptionError, match=message):
        plan(request)
    model = rbq.load_model(demo_checkpoint(), device=HOST)
    with pytest.raises(OptionError, match=message):
        rbq.evaluate(model, open_dataset("digits"), rbq.threat("fgsm", norm="l2", eps=128), limit=2)


def test_the_ids_are_those_that_evaluation_uses(tmp_path: Path) -> None:
    run = Run(limit=4, seed=3)
    found = plan(EvalRequest([QUEST], threats=[ThreatRequest("fgsm")], run=run))
    model, data = rbq.load_model(demo_checkpoint(), device=HOST), open_dataset("digits")
    threats = (CLEAN, rbq.threat("fgsm", eps="4/255"))
    assert [c.id for c in found.cells[0]] == [make_cell(model.spec, data, t, run).id for t in threats]
    rbq.evaluate(model, data, store=str(tmp_path), limit=4, seed=3)
    assert [path.name for path in tmp_path.glob("cells/*/*")] == [found.cells[0][0].id]


def test_clean_cells_are_the_same_under_every_seed_and_protocol(tmp_path: Path) -> None:
    protocol = tmp_path / "mine.yaml"
    protocol.write_text(
        "summary: mine\nspace: {kind: normalised}\nadaptive: false\neps: 2/255\nattacks: {}\n"
    )
    runs = [Run(), Run(seed=1), Run(protocol=str(protocol)), Run(seed=2, adaptive=False)]
    plans = [plan(EvalRequest([QUEST], threats=[ThreatRequest("fgsm")], run=run)) for run in runs]
    assert len({p.cells[0][0].id for p in plans}) == 1
    assert len({p.cells[0][1].id for p in plans}) == len(runs)


@pytest.mark.parametrize(
    ("path", "others", "end"),
    [
        ("a/vit.pt", ["b/vit.pt"], "a/vit"),
        ("a/x/vit.pt", ["b/x/vit.pt"], "a/x/vit"),
        ("a/vit.pt", ["a/vit.pth"], "vit.pt"),
        ("a/vit.pt", ["b/vit.pt", "a/vit.pth"], "a/vit.pt"),
        ("vit.pt", ["b/vit.pt"], None),
    ],
)
def test_equal_names_are_told_apart_by_the_shortest_end(
    path: str, others: list[str], end: str | None
) -> None:
    found = distinguishing_end(Path("/zoo", path), [Path("/zoo", other) for other in others])
    assert found == (end or "zoo/vit")


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    copies = [tmp_path / "a" / "m.safetensors", tmp_path / "b" / "m.safetensors"]
    for copy in copies:
        copy.parent.mkdir()
        copy.write_bytes(demo_checkpoint().read_bytes())
    found = plan(EvalRequest([ModelRequest(str(copy)) for copy in copies]))
    assert [model.spec.name for model in found.models] == ["a/m", "b/m"]
    assert found.cells[0][0].id == found.cells[1][0].id  # a name is no number


def test_no_common_data_set_is_refused(tmp_path: Path) -> None:
    request = EvalRequest([QUEST], DatasetRequest(root=str(tmp_path / "nowhere")))
    with pytest.raises(rbq.errors.QuestError, match="nowhere"):
        plan(request)


PEAK = """
import resource, sys
from robustbench_quest.models.request import ModelRequest
from robustbench_quest.planning import DatasetRequest, EvalRequest, ThreatRequest, plan
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
request = EvalRequest(
    [ModelRequest(sys.argv[1], arch="vit_tiny_patch16_224", attention="standard")],
    DatasetRequest(root=sys.argv[2]),
    [ThreatRequest("pgd")],
)
cells = plan(request).cells[0]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *(cell.id for cell in cells))
"""


@pytest.mark.shared
def test_a_plan_of_the_real_vit_allocates_no_weights(real_vit: Path, nips17: Path) -> None:
    command = [sys.executable, "-c", PEAK, str(real_vit), str(nips17)]
    grown, *ids = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(grown) < 40 * 1024  # kB
    model = rbq.load_model(real_vit, arch="vit_tiny_patch16_224", attention="standard", device=HOST)
    data: Any = open_dataset("folder", nips17)
    threats = (CLEAN, rbq.threat("pgd", eps="1/255"))
    assert ids == [make_cell(model.spec, data, threat).id for threat in threats]
