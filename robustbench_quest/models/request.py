"""What a user asks for of a model, checked as far as that needs no file. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..checkpoints.declared import FLAG, Declaration
from ..checkpoints.preprocessing import Source
from ..errors import OptionError
from ..types import OptionValue
from .preprocessing import MAX_SIDE


@dataclass(frozen=True)
class ModelRequest:
    """One model as it is asked for; None and "auto" mean: find out. ``load.load_model`` says what each means.

    Args:
        checkpoint: the file's path; None only with ``model``, which keeps its own weights.

    Raises:
        OptionError: nothing to load, settings that exclude each other, or an image size that is no size.
    """

    checkpoint: str | None = None
    arch: str | None = None
    arch_options: Mapping[str, OptionValue] = field(default_factory=dict)
    attention: str | None = None
    attention_options: Mapping[str, OptionValue] = field(default_factory=dict)
    model: str | None = None
    model_options: Mapping[str, OptionValue] = field(default_factory=dict)
    weights: str = "auto"
    img_size: int | None = None
    resize: int | None = None
    interpolation: str | None = None
    crop_mode: str | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.checkpoint is None and self.model is None:
            raise OptionError("nothing to load: give a checkpoint, or a model as FILE.py:FUNC")
        if self.model is not None and (self.arch is not None or self.arch_options):
            raise OptionError("--model builds the architecture itself; leave --arch and --arch-option out")
        if self.model is None and self.model_options:
            raise OptionError(
                "--model-option needs --model FILE.py:FUNC; timm's architectures take --arch-option"
            )
        if self.checkpoint is None and self.weights != "auto":
            raise OptionError(
                "--weights chooses among the state dicts of a checkpoint; give --ckpt, or leave it out"
            )
        self._check_image_size()

    def declaration(self) -> Declaration:
        """Return the request as the first of the declarations."""
        said = Source(
            FLAG,
            size=self.img_size,
            resize=self.resize,
            interpolation=self.interpolation,
            crop_mode=self.crop_mode,
            # What is no sequence is refused with its value when preprocessing is checked.
            mean=tuple(self.mean) if isinstance(self.mean, Sequence) else self.mean,
            std=tuple(self.std) if isinstance(self.std, Sequence) else self.std,
        )
        return Declaration(
            FLAG,
            arch=self.arch,
            arch_options=self.arch_options,
            attention=self.attention,
            attention_options=self.attention_options or None,
            preprocessing=(said,),
            weights=None if self.weights == "auto" else self.weights,
        )

    def _check_image_size(self) -> None:
        size = self.img_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise OptionError(f"--img-size must be a whole number of pixels, at least 1; got {size!r}")
        built = self.arch_options.get("img_size", size)
        if size is not None and built != size:
            raise OptionError(
                f"--img-size {size} and --arch-option img_size={built} differ; give one of them"
            )
        for flag, side in (("--img-size", size), ("--arch-option img_size", built)):
            if isinstance(side, int) and side > MAX_SIDE:
                raise OptionError(f"{flag} must be at most {MAX_SIDE} pixels; got {side}")
