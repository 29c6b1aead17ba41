"""A model as the rest of the package sees it: pixels in [0, 1] in, logits out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..attention.core import previous_values
from ..attention.elliptical import metric_gradient
from ..checkpoints.setting import Setting
from ..device import HOST
from ..errors import OptionError, QuestError
from ..identity import weights_sha256
from ..types import AttackSide, ModelSpec, Preprocessing
from ..user_code import said
from ..user_sources import source_sha256
from .preprocessing import check_preprocessing
from .space import Space, unchanged


class Classifier(nn.Module):
    """A frozen module in eval mode, with its normalisation inside.

    Args:
        module: maps normalised images (N, 3, H, W) to logits (N, K). It is set to eval mode and frozen, in
            place.
        mean, std: per channel; the module sees (x - mean) / std.
        size: side of the input, pixels.
        resize: the shorter side before the centre crop, pixels; default ``size``; 0 leaves images as is.
        interpolation: how images are resized: a Pillow filter's name.
        crop_mode: "center"; "squash" resizes both sides to ``resize``, "border" the longer one.
        name: for tables; default the module's class.
        spec: what the model is; default made from the module and its weights.

    Attributes:
        bounds: the range of the input, (0.0, 1.0).
        num_classes: K.
        trained_on: name of the data set that the checkpoint names as its own, or None.
        explanation: every setting, where it came from, and what other sources would give.

    Raises:
        OptionError: a preprocessing value that cannot be used.
        QuestError: the module does not give logits.
    """

    mean: Tensor
    std: Tensor
    bounds = (0.0, 1.0)

    def __init__(
        self,
        module: nn.Module,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        size: int = 224,
        *,
        resize: int | None = None,
        interpolation: str = "bicubic",
        crop_mode: str = "center",
        name: str | None = None,
        spec: ModelSpec | None = None,
        trained_on: str | None = None,
        explanation: Sequence[Setting] = (),
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise OptionError(f"a Classifier wraps a torch.nn.Module; got {type(module).__name__}")
        self.preprocessing = check_preprocessing(
            size, size if resize is None else resize, interpolation, mean, std, crop_mode
        )
        self.trained_on = trained_on
        self.explanation = tuple(explanation)
        self.module = module
        device = _device_of(module)
        for key in ("mean", "std"):
            value = torch.tensor(getattr(self.preprocessing, key), dtype=torch.float32, device=device)
            self.register_buffer(key, value.view(3, 1, 1), persistent=False)
        self.eval()
        self.requires_grad_(False)
        # A model of timm's gives as many logits as it says; any other is tried.
        self.num_classes = num_classes(module, self.preprocessing) if spec is None else spec.num_classes
        self.spec = spec or _spec_of(module, name, self.preprocessing, self.num_classes)
        self._versions = self._tensor_versions()

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 images (N, 3, H, W) in [0, 1] to logits (N, K).

        Raises:
            QuestError: the module returns something else, or ends the process.
        """
        return self.of_normalised((x - self.mean) / self.std)

    def of_normalised(self, z: Tensor) -> Tensor:
        """Map images (N, 3, H, W) that are normalised already to logits (N, K).

        Raises:
            QuestError: as ``forward``.
        """
        try:
            logits: Tensor = self.module(z)
        except SystemExit as error:
            raise QuestError(f"{type(self.module).__name__} failed: {said(error)}") from error
        _check_logits(self.module, logits, len(z), self.num_classes)
        return logits

    def train(self, mode: bool = True) -> Classifier:
        """Refuse training mode: numbers of a model with dropout or batch statistics mean nothing.

        Raises:
            QuestError: always, unless ``mode`` is False.
        """
        if mode:
            raise QuestError("a Classifier is always in eval mode; train the module before it is wrapped")
        super().train(False)
        return self

    def check_unchanged(self) -> None:
        """Refuse a model that is no longer the one that ``spec`` describes.

        Raises:
            QuestError: a module inside is in training mode, or a weight or buffer was written to.
        """
        training = next((name for name, part in self.module.named_modules() if part.training), None)
        if training is not None:
            part = training or type(self.module).__name__
            raise QuestError(
                f"{part} was set to training mode after it was wrapped; call eval() on the module"
            )
        for name, version in self._tensor_versions().items():
            if self._versions.get(name) != version:
                raise QuestError(f"{name} changed after it was wrapped; make a new Classifier of the module")

    def _tensor_versions(self) -> dict[str, int]:
        # torch counts the writes to each tensor; moving a module to another device is none.
        return {name: tensor._version for name, tensor in self.module.state_dict(keep_vars=True).items()}

    def space(self, side: AttackSide) -> Space:
        """Return the model as an attack sees it.

        A normalised space whose ``std`` is not the model's only changes the unit of the budget: what the
        model is shown is rescaled to its own.
        """
        spec = side.space
        answer = self.of_normalised if spec.kind == "normalised" else self
        previous = previous_values(self.module)

        def outputs(z: Tensor) -> Tensor:
            with metric_gradient(previous, side.adaptive):
                return answer(z)

        if spec.kind == "pixel":
            return Space(outputs, unchanged, unchanged, spec.clamp, (1.0, 1.0, 1.0))
        std = self.std if spec.std is None else self.std.new_tensor(spec.std).view(3, 1, 1)
        ratio = std / self.std
        return Space(
            outputs if spec.std is None else lambda z: outputs(z * ratio),
            encode=lambda x: (x - self.mean) / std,
            decode=lambda z: z * std + self.mean,
            bounds=spec.clamp,
            unit=self.preprocessing.std if spec.std is None else spec.std,
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.mean.device


def num_classes(module: nn.Module, preprocessing: Preprocessing) -> int:
    """Return K: how many logits the module gives for one black image (float32).

    Raises:
        QuestError: it has no classifier head, cannot take such an image, does not give logits, or gives
            another number of them than its ``num_classes``.
    """
    declared = getattr(module, "num_classes", None)
    if declared == 0:
        raise QuestError(f"{type(module).__name__} has no classifier head (num_classes is 0)")
    side = preprocessing.size
    black = torch.zeros(1, 3, side, side, device=_device_of(module))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            logits = module(black)
    except (Exception, SystemExit) as error:  # whatever a module raises for what it was not made for
        raise QuestError(
            f"{type(module).__name__} cannot take one {side}x{side} float32 image: {said(error)}; check the "
            "size and the module's dtype"
        ) from error
    _check_logits(module, logits, 1)
    found = int(logits.shape[1])
    if isinstance(declared, int) and declared != found:
        raise QuestError(
            f"{type(module).__name__} declares num_classes {declared} and returns {found} logits; correct one"
        )
    return found


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*module.parameters(), *module.buffers())), HOST)


def _check_logits(module: nn.Module, value: object, images: int, classes: int | None = None) -> None:
    found = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        shaped = value.ndim == 2 and len(value) == images and classes in (None, value.shape[1])
        if shaped and value.is_floating_point():
            return
        found = f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)} for {images} images"
    shape = "(N, K)" if classes is None else f"(N, {classes})"
    raise QuestError(f"{type(module).__name__} must return floating logits {shape}; it returned {found}")


def _spec_of(
    module: nn.Module, name: str | None, preprocessing: Preprocessing, num_classes: int
) -> ModelSpec:
    kind = type(module)
    return ModelSpec(
        name=name or kind.__name__,
        checkpoint=weights_sha256(module),
        arch=f"{kind.__module__}.{kind.__qualname__}",
        attention=None,
        weights="",
        preprocessing=preprocessing,
        num_classes=num_classes,
        source_hash=source_sha256(kind),
        sources=(("weights", "a module given in Python"),),
    )
