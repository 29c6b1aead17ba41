"""Protocols: the shipped ones, a user's file, and what is wrong with one that cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robustbench_quest.errors import OptionError
from robustbench_quest.protocols import load_protocol, protocol_names
from robustbench_quest.registry import ATTACKS
from robustbench_quest.threats import ATTACK
from robustbench_quest.types import SpaceSpec

WHOLE = """
summary: "as published"
space: {kind: normalised, std: [0.229, 0.224, 0.225], clamp: [-2, 2]}
adaptive: false
eps: 1/255
attacks:
  pgd: {steps: 10}
"""


@pytest.mark.parametrize("name", protocol_names())
def test_what_is_shipped_can_be_used(name: str) -> None:
    protocol = load_protocol(name)
    assert protocol.name == name
    for attack, settings in protocol.attacks.items():
        assert attack in ATTACKS
        assert ATTACK.make(attack, {"eps": protocol.eps, **settings}).name == attack


def test_the_default_moves_pixels_and_sees_the_whole_model() -> None:
    protocol = load_protocol()
    assert (protocol.space, protocol.adaptive, protocol.eps) == (SpaceSpec(), True, "1/255")


def test_a_users_file_is_a_protocol(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(WHOLE)
    protocol = load_protocol(str(tmp_path / "mine.yaml"))
    assert protocol.name == "mine"
    assert protocol.space == SpaceSpec("normalised", (0.229, 0.224, 0.225), (-2.0, 2.0))
    assert (protocol.adaptive, protocol.attacks) == (False, {"pgd": {"steps": 10}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("normalised", "normalized"), "unknown space 'normalized'; did you mean 'normalised'?"),
        (("0.229", "0"), "space: std must be three positive numbers"),
        (("[0.229, 0.224, 0.225]", "0.5"), "space: std must be three positive numbers"),
        (("[-2, 2]", "[2, -2]"), "space: clamp must be two numbers, the lowest value and the highest"),
        (("false", "maybe"), "adaptive must be true or false"),
        (("eps: 1/255\n", ""), "eps"),
        (("eps: 1/255", "eps: [1]"), "eps must be a budget, such as 1/255"),
        (("adaptive", "adaptiv"), "unknown key 'adaptiv'; did you mean 'adaptive'?"),
        (("{steps: 10}", "10"), "attacks: pgd must be a mapping"),
        (("summary:", "- summary:"), "not YAML"),
    ],
)
def test_a_file_that_is_no_protocol_is_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(WHOLE.replace(*change))
    with pytest.raises(OptionError, match=re.escape(message)) as caught:
        load_protocol(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown protocol 'pixels'; did you mean 'pixel'"):
        load_protocol("pixels")
    with pytest.raises(OptionError, match="cannot be read"):
        load_protocol(str(tmp_path / "none.yaml"))
