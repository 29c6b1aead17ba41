"""Golden numbers of every attack and attention variant, tied to their versions.

Whoever changes such a number raises the ``version`` of what makes it, and records the new one here: the
version is part of every cell id, so that stored results of the old numbers are not taken for the new.
"""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import VARIANTS, resolve
from robustbench_quest.registry import ATTACKS, ATTENTION
from robustbench_quest.rng import ImageRng, generator

ATTACK_NUMBERS: dict[tuple[str, str, int], list[float]] = {
    ("fgsm", "linf", 1): [-0.03137255, -0.03137255, 0.03137255, 2.96405327],
    ("fgsm", "l2", 1): [-0.02975777, -0.02682766, 0.01763043, 5.20669694],
    ("pgd", "linf", 1): [-0.03137255, -0.03137255, 0.03137255, 2.96405327],
    ("pgd", "l2", 1): [-0.03470912, -0.03504848, 0.00113347, 5.4808379],
}
ATTENTION_NUMBERS: dict[tuple[str, int], list[float]] = {
    ("standard", 1): [-2.46811119, -0.05747703, 1.15994737],
    ("quest", 1): [-2.39730656, -0.10491455, 1.03435227],
    ("qnorm", 1): [-2.41454621, -0.09612188, 1.04192908],
    ("qknorm-hs", 1): [-2.03843071, -1.74182947, -0.44870563],
    ("qknorm-ds", 1): [-0.08877016, -2.55335519, 1.77980823],
    ("qknorm-ln", 1): [0.54866097, 2.47747247, -0.92692336],
    ("elliptical", 1): [-2.50515741, -0.14422246, 1.11416423],
    ("elliptical-quest", 1): [-2.40648355, -0.17139972, 0.9978874],
}


def linear(x: Tensor) -> Tensor:
    """A model whose gradient needs no library's rounding: fixed weights, four classes."""
    weights = torch.from_numpy(generator("golden").standard_normal((3 * 4 * 4, 4))).to(x.dtype)
    return x.flatten(1) @ weights


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack(name: str, norm: str) -> None:
    kind = ATTACKS.load(name)
    x = torch.from_numpy(generator("golden images").random_sample((2, 3, 4, 4)))
    attack = kind(eps="8/255" if norm == "linf" else "0.5", norm=norm)
    moved = attack(linear, x, torch.tensor([0, 1]), ImageRng(0, name, ["a", "b"])) - x
    found = [*moved[0].flatten()[:3].tolist(), moved.abs().sum().item()]
    assert (name, norm, kind.version) in ATTACK_NUMBERS, f"record {found} for version {kind.version}"
    assert found == pytest.approx(ATTACK_NUMBERS[name, norm, kind.version], abs=1e-6)


@pytest.mark.parametrize("name", list(ATTENTION))
def test_attention(name: str) -> None:
    model = timm.models.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=3, num_heads=3, mlp_ratio=2, num_classes=3
    )
    swap_attention(model.double(), resolve(name))
    draws, shapes = generator("golden weights"), {key: t.shape for key, t in model.state_dict().items()}
    state = {key: torch.from_numpy(draws.standard_normal(shapes[key])) / 2 for key in sorted(shapes)}
    model.load_state_dict(state)
    x = torch.from_numpy(generator("golden images").random_sample((1, 3, 16, 16)))
    found = model.eval()(x)[0].tolist()
    version = VARIANTS[name].version
    assert np.isfinite(found).all()
    assert (name, version) in ATTENTION_NUMBERS, f"record {found} for version {version}"
    assert found == pytest.approx(ATTENTION_NUMBERS[name, version], abs=1e-6)
