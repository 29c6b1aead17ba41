"""What will be loaded, and why: every setting of a model from the first source that declares it.

The order is always the same: flag, sidecar ``<ckpt>.yaml``, metadata in the file, ``args`` in the file, and
then what the tensors themselves show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..checkpoints.containers import choose_container, kind_of, shown
from ..checkpoints.declared import (
    FLAG,
    Declaration,
    from_metadata,
    from_sidecar,
    merged_options,
    overruled,
    sidecar_path,
    sources_text,
)
from ..checkpoints.file import Checkpoint
from ..checkpoints.preprocessing import Source, from_container
from ..checkpoints.setting import Row
from ..checkpoints.state_dict import CLASSIFIER, REASONS, Normalised, normalise
from ..checkpoints.training_args import declared_by_args
from ..errors import CheckpointError, OptionError
from ..types import OptionValue, Preprocessing
from .architectures import Candidate, check_architecture, infer, timm_config
from .fit import check_plain
from .preprocessing import MAX_SIDE, from_timm, resolve_preprocessing


@dataclass(frozen=True)
class Request:
    """What the user asks for; None and "auto" mean: find out. See ``load.load_model`` for the meanings."""

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
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def declaration(self) -> Declaration:
        """Return the request as the first of the declarations.

        Raises:
            OptionError: an image size that is no size.
        """
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
        said = Source(
            FLAG,
            size=size,
            resize=self.resize,
            interpolation=self.interpolation,
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


@dataclass(frozen=True)
class Weights:
    """The state dict that is used, as stored; which container it is, and why."""

    container: str
    source: str
    stored: Mapping[str, Tensor]
    others: tuple[str, ...] = ()
    overruled: str = ""

    @property
    def row(self) -> Row:
        """The line of ``--explain``."""
        return Row("weights", shown(self.container), self.source, self.overruled)


@dataclass(frozen=True)
class Architecture:
    """The architecture, its declared options, where they came from, and whether anything declared it.

    Args:
        option_sources: where each declared option came from.
        notes: what other sources declare.
        others: architectures of the same function, where it was inferred.
    """

    name: str
    options: Mapping[str, OptionValue]
    option_sources: Mapping[str, str]
    source: str
    notes: tuple[str, ...] = ()
    guessed: bool = False
    others: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        """The line of ``--explain``."""
        same = f"of the same function: {', '.join(self.others)}" if self.others else ""
        return Row("arch", self.name, self.source, "; ".join(filter(None, [*self.notes, same])))

    def options_row(self, options: Mapping[str, OptionValue], asked: int | None) -> Row:
        """Return the line of ``--explain`` for the options that the model is built with.

        Args:
            options: all of them; those that nothing declares are as the tensors have them.
            asked: the image size that the user asks for, or None.
        """
        sources = {option: self.option_sources.get(option, "tensors in the file") for option in options}
        if asked is not None and "img_size" in options:
            sources["img_size"] = FLAG
        text = ", ".join(f"{option}={value}" for option, value in sorted(options.items()))
        return Row("arch options", text, sources_text(sources))


def declarations_of(request: Request, checkpoint: Checkpoint | None) -> list[Declaration]:
    """Return what is declared, in order: flag, sidecar, metadata, args.

    Raises:
        CheckpointError: a sidecar or metadata that cannot be used.
    """
    found = [request.declaration()]
    if checkpoint is None:
        return found
    sidecar = sidecar_path(checkpoint.path)
    if sidecar is not None:
        found.append(from_sidecar(sidecar))
    if checkpoint.metadata:
        found.append(from_metadata(checkpoint.metadata, str(checkpoint.path)))
    if checkpoint.args:
        found.append(declared_by_args(checkpoint.args, checkpoint.entries))
    return found


def choose_weights(checkpoint: Checkpoint, declarations: Sequence[Declaration]) -> Weights:
    """Return the state dict that is used.

    Raises:
        OptionError: the file has no such container, or more than one and none is known.
        CheckpointError: tensors without values.
    """
    names = tuple(checkpoint.containers)
    declared = next((d for d in declarations if d.weights is not None), None)
    container = choose_container(names, "auto" if declared is None else str(declared.weights))
    others = tuple(shown(name) for name in names if name != container)
    if declared is not None:
        source = declared.source
    else:
        source = f"{kind_of(container)} by default" if others else "the only state dict in the file"
    if others:
        source += f"; the file also holds {', '.join(others)}"
    stored = checkpoint.containers[container]
    check_plain(stored, checkpoint.path.name)
    said = str(declared.weights) if declared is not None else ""
    return Weights(container, source, stored, others, overruled("weights", said, declarations))


def in_timms_names(checkpoint: Checkpoint, weights: Weights) -> Normalised:
    """Return the chosen state dict in timm's names, and what kind of model it is.

    Raises:
        CheckpointError: two keys become one.
    """
    return normalise(weights.stored, tuple(checkpoint.containers))


def refuse_other_kinds(checkpoint: Checkpoint, found: Normalised) -> None:
    """Refuse files that are no classifiers.

    Raises:
        CheckpointError: with the reason.
    """
    if found.kind != CLASSIFIER:
        raise CheckpointError(f"{checkpoint.path} cannot be evaluated as a classifier: {REASONS[found.kind]}")


def choose_architecture(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration]
) -> Architecture:
    """Return the architecture from the first declaration that names one, else from names and shapes.

    Raises:
        OptionError: no such architecture, or several fit and they differ in function or preprocessing.
        CheckpointError: none fits.
    """
    declared = next((d for d in declarations if d.arch is not None), None)
    if declared is not None:
        name = check_architecture(str(declared.arch), declared.source)
        options, sources, left_out = _options_for(name, declarations)
        notes = (overruled("arch", name, declarations), *left_out)
        return Architecture(name, options, sources, declared.source, notes)
    candidates = infer(tensors)
    if not candidates:
        raise CheckpointError(
            f"{checkpoint.path} declares no architecture, and its {len(tensors)} tensors are those of no "
            "vit, deit, deit3 or crossvit of timm; give --arch NAME, or --model FILE.py:FUNC"
        )
    _refuse_ambiguity(checkpoint, candidates, declarations)
    first, *others = (candidate.name for candidate in candidates)
    options, sources, _ = _options_for(first, declarations)
    return Architecture(first, options, sources, "inferred from shapes", guessed=True, others=tuple(others))


def _options_for(
    name: str, declarations: Sequence[Declaration]
) -> tuple[dict[str, OptionValue], dict[str, str], list[str]]:
    """Return the options declared for an architecture, who declared each, and what was declared for another.

    Options belong to the architecture that they were declared with; those declared with none, such as
    flags, to whichever is chosen. Earlier declarations win.
    """

    def same(arch: str | None) -> bool:
        return arch is None or arch.partition(".")[0] == name.partition(".")[0]  # a tag names weights

    fitting = [d for d in declarations if same(d.arch)]
    options, sources = merged_options([(d.source, d.arch_options) for d in fitting])
    left_out = [
        f"left out, for {d.arch} ({d.source}): {', '.join(f'{k}={v}' for k, v in d.arch_options.items())}"
        for d in declarations
        if d.arch_options and not same(d.arch)
    ]
    left_out += [
        f"{d.source}: {option}={value}"
        for d in fitting
        for option, value in d.arch_options.items()
        if value != options[option]
    ]
    return options, sources, left_out


def choose_preprocessing(
    declarations: Sequence[Declaration],
    size: int | None,
    config: tuple[str, Mapping[str, object]] | None,
    container: Source | None,
    subject: str,
) -> tuple[Preprocessing, list[Row]]:
    """Return the preprocessing and one row per setting.

    Args:
        declarations: flag, sidecar, metadata, args.
        size: the side of the input that the model is built for, or None.
        config: (name, timm's configuration), or None.
        container: what the file's container implies beyond the arguments in it, or None.
        subject: what is loaded, for messages.

    Raises:
        OptionError: nothing declares a setting, or a value that cannot be used.
    """
    sources = [source for declaration in declarations for source in declaration.preprocessing]
    if container is not None:
        sources.append(container)
    if size is not None:
        sources.append(Source("the model's own input size", size=size))
    if config is not None:
        sources.append(from_timm(*config))
    return resolve_preprocessing(sources, subject)


def released_deit(checkpoint: Checkpoint, arch: str) -> Source | None:
    """Return DeiT's preprocessing for a file like DeiT's own: {"model": ...}, and a DeiT."""
    released = "model" in checkpoint.containers and arch.startswith("deit_")
    return from_container("DeiT") if released else None


def _refuse_ambiguity(
    checkpoint: Checkpoint, candidates: Sequence[Candidate], declarations: Sequence[Declaration]
) -> None:
    names = ", ".join(candidate.name for candidate in candidates)
    if len({candidate.function for candidate in candidates}) > 1:
        raise OptionError(
            f"{checkpoint.path.name}: several architectures have its shapes and compute different things "
            f"({names}); give --arch"
        )
    said = [source for declaration in declarations for source in declaration.preprocessing]
    for setting, key in (
        ("mean", "mean"),
        ("std", "std"),
        ("resize", "crop_pct"),
        ("interpolation", "interpolation"),
    ):
        declared = any(source.value(setting, 1) is not None for source in said)
        if not declared and len({str(candidate.config.get(key)) for candidate in candidates}) > 1:
            shown_values = "; ".join(
                f"{candidate.name}: {candidate.config.get(key)}" for candidate in candidates
            )
            raise OptionError(
                f"{checkpoint.path.name}: its shapes fit {names}, which were trained with different "
                f"preprocessing ({setting}: {shown_values}); say which with --arch"
            )


def timm_source(arch: str) -> tuple[str, Mapping[str, object]] | None:
    """Return (name, configuration) of an architecture where timm has one."""
    config = timm_config(arch)
    return None if config is None else (arch, config)
