"""``Classifier``: pixels in, logits out, frozen, in eval mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from small_checkpoints import image, named, tiny
from torch import Tensor, nn

from robustbench_quest.errors import OptionError, QuestError
from robustbench_quest.identity import structure, weights_sha256
from robustbench_quest.models.classifier import Classifier
from robustbench_quest.types import AttackSide


class Sums(nn.Module):
    """Logits are the channels' sums; it has dropout and no ``num_classes``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.dropout(self.weight * x.sum(dim=(2, 3)))
        return logits


class Returns(nn.Module):
    """Returns what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Any:
        return self.value


def test_normalisation_is_inside() -> None:
    model = Classifier(Sums(), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 0.25), size=4)
    x = image(4)
    expected = torch.stack(
        [(x[:, c] - m).sum((1, 2)) / s for c, m, s in ((0, 0.1, 0.5), (1, 0.2, 1), (2, 0.3, 0.25))], 1
    )
    torch.testing.assert_close(model(x), expected)
    assert model.num_classes == 3


def test_logits_equal_timms_transform_and_model() -> None:
    from timm.data import create_transform, resolve_data_config

    module = named("deit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=3)
    config = resolve_data_config({}, model=module)
    normalise = create_transform(**config).transforms[-1]
    model = Classifier(module, config["mean"], config["std"])
    x = image(224)
    torch.testing.assert_close(model(x), module(normalise(x)), rtol=0, atol=1e-6)


def test_it_is_frozen_in_eval_mode_and_lets_the_input_gradient_through() -> None:
    module = Sums().train()
    model = Classifier(module, size=4)
    assert not any(part.training for part in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    x = image(4).requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))
    with pytest.raises(QuestError, match="always in eval mode"):
        model.train()
    assert model.eval() is model
    assert not module.training


def test_normalisation_adds_nothing_to_the_state_dict() -> None:
    assert list(Classifier(Sums(), size=4).state_dict()) == ["module.weight"]


def test_the_pixel_space_is_the_classifier_itself() -> None:
    model = Classifier(Sums(), size=4)
    space = model.space(AttackSide())
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert space.encode(x) is space.decode(x) is x
    assert torch.equal(space(x), model(x))
    assert space.bounds == model.bounds == (0.0, 1.0)
    assert space.unit == (1.0, 1.0, 1.0)


def test_preprocessing_defaults() -> None:
    found = Classifier(Sums(), size=8).preprocessing
    assert (found.size, found.resize, found.interpolation) == (8, 8, "bicubic")
    assert Classifier(Sums(), size=8, resize=0).preprocessing.resize == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((torch.ones(1, 2),), "returned a tuple"),
        (torch.ones(1, 2, 3), r"float32 of shape \(1, 2, 3\) for 1 images"),
        (torch.ones(2, 5), r"of shape \(2, 5\) for 1 images"),
        (torch.ones(1, 5, dtype=torch.int64), r"int64 of shape \(1, 5\)"),
    ],
)
def test_an_output_that_is_no_logits_is_an_error(value: Any, message: str) -> None:
    with pytest.raises(QuestError, match=rf"Returns must return floating logits .*{message}"):
        Classifier(Returns(value), size=4)


def test_an_output_that_stops_being_logits_is_an_error() -> None:
    module = Returns(torch.ones(1, 5))
    model = Classifier(module, size=4)
    with pytest.raises(QuestError, match="for 2 images"):
        model(image(4))


def test_another_number_of_logits_is_an_error() -> None:
    module = Returns(torch.ones(1, 5))
    model = Classifier(module, size=4)
    module.value = torch.ones(2, 6)
    with pytest.raises(
        QuestError, match=r"logits \(N, 5\); it returned float32 of shape \(2, 6\) for 2 images"
    ):
        model(image(4))


def test_a_wrong_number_of_classes_is_an_error() -> None:
    module = Returns(torch.ones(1, 5))
    module.num_classes = 1000  # type: ignore[assignment]
    with pytest.raises(QuestError, match="declares num_classes 1000 and returns 5 logits"):
        Classifier(module, size=4)


@pytest.mark.parametrize("declared", [[5], None, "5"])
def test_a_number_of_classes_that_is_no_number_says_nothing(declared: Any) -> None:
    module = Returns(torch.ones(1, 5))
    module.num_classes = declared
    assert Classifier(module, size=4).num_classes == 5


class Exits(Sums):
    """Ends the process from the second call on, or interrupts."""

    error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return super().forward(x)


def test_a_module_cannot_end_the_process_but_a_user_can() -> None:
    module = Exits()
    model = Classifier(module, size=4)
    module.error = SystemExit(0)
    with pytest.raises(QuestError, match="Exits failed: SystemExit: 0"):
        model(image(4))
    with pytest.raises(QuestError, match="Exits cannot take one 4x4 float32 image: SystemExit: 0"):
        Classifier(module, size=4)
    module.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(image(4))


def test_a_size_that_the_module_cannot_take_is_an_error() -> None:
    module = tiny()
    del module.num_classes
    with pytest.raises(
        QuestError, match=r"VisionTransformer cannot take one 24x24 float32 image: .*; check the size"
    ):
        Classifier(module, size=24)


def test_a_headless_module_is_an_error() -> None:
    with pytest.raises(QuestError, match="no classifier head"):
        Classifier(tiny(num_classes=0), size=16)


def test_what_is_no_module_is_an_error() -> None:
    with pytest.raises(OptionError, match="got function"):
        Classifier(image)  # type: ignore[arg-type]


def test_finding_the_number_of_classes_leaves_the_random_state() -> None:
    class Noisy(Sums):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(())

    before = torch.get_rng_state()
    Classifier(Noisy(), size=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_spec_tells_modules_apart() -> None:
    specs = [
        Classifier(tiny(variant), size=16).spec for variant in ("standard", "quest", "qnorm", "elliptical")
    ]
    specs.append(Classifier(tiny("elliptical", {"estimator": "median"}), size=16).spec)
    assert len({spec.checkpoint for spec in specs}) == len(specs)
    again = Classifier(tiny("quest"), size=16).spec
    assert again == specs[1]
    assert again.name == "VisionTransformer"
    assert again.num_classes == 5
    assert len(again.source_hash) == 64
    changed = tiny("quest")
    with torch.no_grad():
        changed.get_parameter("head.bias")[0] += 1e-3
    assert Classifier(changed, size=16).spec.checkpoint != again.checkpoint


def test_the_spec_depends_on_heads_and_preprocessing() -> None:
    one, two = tiny(), tiny(num_heads=6)
    two.load_state_dict(one.state_dict())
    assert weights_sha256(one) != weights_sha256(two)
    first = Classifier(one, size=16).spec
    assert first.identity() != Classifier(one, std=(0.5, 0.5, 0.5), size=16).spec.identity()


def test_the_fingerprint_survives_copies_forward_passes_and_modes() -> None:
    model = tiny("elliptical")
    before = structure(model)
    assert " at 0x" not in before
    model(image())
    assert structure(copy.deepcopy(model).train()) == before


def test_it_moves_and_copies_as_a_module() -> None:
    model = Classifier(
        timm.models.VisionTransformer(
            img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=5
        ),
        mean=(0.5,) * 3,
        size=16,
    )
    x = image()
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    double = copy.deepcopy(model).double()
    torch.testing.assert_close(double(x.double()).float(), model(x))
    assert model.device == x.device
