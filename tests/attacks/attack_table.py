"""The table of attacks that the invariants are tested on: a new attack is one row more."""

from __future__ import annotations

from typing import NamedTuple

from robustbench_quest.attacks.base import Attack
from robustbench_quest.attacks.fgsm import FGSM
from robustbench_quest.attacks.pgd import PGD


class Row(NamedTuple):
    """An attack under test, whether the seed changes what it does, and whether it takes gradients."""

    attack: Attack
    random: bool
    gradient: bool = True


# Every invariant is tested on every row: a new attack is one row more.
ROWS = [
    Row(FGSM("8/255"), random=False),
    Row(FGSM("8/255", labels="predicted"), random=False),
    Row(FGSM("0.5", norm="l2"), random=False),
    Row(PGD("8/255", steps=3), random=True),
    Row(PGD("8/255", steps=3, random_start=False, keep="best"), random=False),
    Row(PGD("8/255", steps=3, alpha="3/255", labels="predicted"), random=True),
    Row(PGD("8/255", steps=2, restarts=3), random=True),
    Row(PGD("8/255", steps=2, restarts=2, keep="best", labels="predicted"), random=True),
    Row(PGD("0.5", norm="l2", steps=3), random=True),
    Row(PGD("0.5", norm="l2", steps=2, restarts=2, keep="best"), random=True),
]
