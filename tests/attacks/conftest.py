"""The models and images that attacks meet in tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from attack_table import ROWS, Row
from torch import Tensor, nn

from robustbench_quest.attacks.base import Attack
from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.variants import resolve
from robustbench_quest.rng import ImageRng

Batch = tuple[Tensor, Tensor]
Draws = Callable[..., ImageRng]


@pytest.fixture(params=ROWS, ids=lambda row: repr(row.attack))
def row(request: pytest.FixtureRequest) -> Row:
    found: Row = request.param
    return found


@pytest.fixture
def attack(row: Row) -> Attack:
    return row.attack


class PerImage(nn.Module):
    """A module asked about one image at a time, so that no result depends on the batch, not even by a bit."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.module(image[None]) for image in x])


class NearestTemplate(nn.Module):
    """Logits are -0.2 |x - template|^2 per class: right about every image that is near its template."""

    templates: Tensor

    def __init__(self, templates: Tensor) -> None:
        super().__init__()
        self.register_buffer("templates", templates)

    def forward(self, x: Tensor) -> Tensor:
        return -0.2 * (x[:, None] - self.templates).square().sum(dim=(2, 3, 4))


@pytest.fixture(scope="session")
def vit() -> nn.Module:
    """A small ViT with QUEST attention: 16x16 pixels, 10 classes, weights large enough to matter."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = VisionTransformer(
            img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=10
        )
    swap_attention(model, resolve("quest")).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(4)
    return model


@pytest.fixture(scope="session")
def batch(vit: nn.Module) -> Batch:
    """Eight 16x16 images and the ViT's own answers, but for two wrong labels."""
    # A power of two: dividing a loss by it, as peers that average do, is exact.
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    y = vit(x).argmax(dim=1)
    y[:2] = (y[:2] + 1) % 10
    return x, y


@pytest.fixture(scope="session")
def per_image() -> nn.Module:
    """A small network for the images of ``batch`` that answers per image."""
    generator = torch.Generator().manual_seed(3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 16), nn.Tanh(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator).div_(3)
    return PerImage(network).requires_grad_(False)


@pytest.fixture(scope="session")
def sure() -> tuple[nn.Module, Tensor, Tensor]:
    """A model that is right about six non-square images (12x20), the images and their labels."""
    generator = torch.Generator().manual_seed(2)
    templates = 0.3 + 0.4 * torch.rand(4, 3, 12, 20, generator=generator)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    x = (templates[y] + 0.05 * torch.randn(6, 3, 12, 20, generator=generator)).clamp(0, 1)
    return NearestTemplate(templates), x, y


@pytest.fixture(scope="session")
def draws() -> Draws:
    """Make the rng of a batch: ``draws(8)``, ``draws(["a", "b"], seed=1)``."""

    def make(images: int | list[str], seed: int = 0) -> ImageRng:
        ids = [f"image-{i}" for i in range(images)] if isinstance(images, int) else images
        return ImageRng(seed, "test", ids)

    return make


@pytest.fixture(scope="session")
def peers() -> SimpleNamespace:
    """torchattacks and foolbox, the second implementations."""
    with warnings.catch_warnings():
        # foolbox 3.3.4, blur.py: imports scipy.ndimage.filters, which SciPy keeps until 2.0.
        warnings.filterwarnings(
            "ignore", message="Please import `gaussian_filter`", category=DeprecationWarning
        )
        import foolbox
    import torchattacks

    return SimpleNamespace(torchattacks=torchattacks, foolbox=foolbox)
