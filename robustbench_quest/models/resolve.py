"""From a request to what a model is, where each setting came from, and how to build it.

Loading, inspecting and planning all take these steps. Each setting comes from the first source that declares
it: flag, sidecar ``<ckpt>.yaml``, metadata in the file, ``args`` in the file; then what the tensors show.

Architectures of timm are built on the meta device, so nothing is allocated. A user's own model is the
exception: only running its code shows what it is, and without a checkpoint its weights are its identity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..checkpoints.declared import FLAG, Declaration, declared, from_metadata, from_sidecar, sidecar_path
from ..checkpoints.file import Checkpoint, read_checkpoint
from ..checkpoints.preprocessing import from_container
from ..checkpoints.setting import Setting, pick
from ..checkpoints.state_dict import CLASSIFIER, REASONS, Normalised, normalise
from ..checkpoints.training_args import declared_by_args
from ..checkpoints.weights import choose_weights
from ..device import HOST, META, float32_by_default
from ..errors import CheckpointError, QuestError
from ..identity import weights_sha256
from ..types import ModelSpec
from ..user_code import build_user_model, fixed_random_state, short_name
from .architectures import build, fitted_options, input_size, timm_sources, timm_sources_of
from .attention_choice import Choice, choose_attention, choose_for, heads_setting
from .classifier import num_classes
from .fit import check_fit, check_size, load_strictly, resized_positions, to_float32, under_own_keys
from .infer import VARIANT_KEY, Architecture, choose_architecture
from .preprocessing import SETTINGS, choose_preprocessing
from .request import ModelRequest

P = ParamSpec("P")
T = TypeVar("T")
ORDER = ("name", "arch", "arch options", "heads", "dtype", "position embeddings", "attention", "weights")


@dataclass(frozen=True)
class Resolved:
    """What a model is, without its weights; it holds no tensors.

    Args:
        spec: that of the Classifier which ``load.load_request`` makes of the same request and file.
        settings: every setting, where it came from, and what other sources would give.
        trained_on: the data set that the checkpoint names as its own, or None.
    """

    spec: ModelSpec
    settings: tuple[Setting, ...]
    trained_on: str | None


@dataclass
class Findings:
    """What the steps of ``resolve`` found; what a failed step would have given stays as it is here.

    Args:
        checkpoint: the file.
        settings: by name.
        stored: the state dict that is used.
        normalised: the same in timm's names, for architectures of timm.
        arch: the architecture.
        module: on the meta device, or a user's own.
        resolved: the whole, when no step failed.
        build: makes the module on the host, with its weights, ``as_in_a_fresh_process``.
    """

    checkpoint: Checkpoint | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    stored: Mapping[str, Tensor] | None = None
    normalised: Normalised | None = None
    arch: Architecture | None = None
    module: nn.Module | None = None
    resolved: Resolved | None = None
    build: Callable[[], nn.Module] | None = None

    def note(self, *settings: Setting | None) -> None:
        """Keep settings."""
        self.settings |= {setting.name: setting for setting in settings if setting is not None}

    def ordered(self) -> tuple[Setting, ...]:
        """Return the settings in the order in which they are shown."""
        return tuple(self.settings[name] for name in (*ORDER, *SETTINGS) if name in self.settings)


def resolve_model(request: ModelRequest) -> Resolved:
    """Return what a request means. Of architectures of timm no weights are allocated, nor their values read.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``, but for values that are not finite and for a
            user's attention class that does not work: those show when the model is built.
    """
    found = resolve(request).resolved
    assert found is not None  # a step that fails raises
    return found


@contextlib.contextmanager
def as_in_a_fresh_process() -> Iterator[None]:
    """Set aside whatever dtype, device, mode and random states the caller has set for new tensors."""
    with torch.inference_mode(False), HOST, float32_by_default(), fixed_random_state():
        yield


@as_in_a_fresh_process()
def resolve(request: ModelRequest, problems: list[str] | None = None) -> Findings:
    """Return all that can be found out of a request and its file.

    Args:
        request: what is asked for.
        problems: gets the message of each step that fails; without it, the first failure is raised.

    Raises:
        CheckpointError: the file cannot be read.
        CheckpointError, OptionError: as ``load.load_model``, unless there are ``problems``.
    """
    found, attempt = Findings(), _Attempt(problems)
    if request.checkpoint is None:
        declarations = [request.declaration()]
        found.note(Setting("name", short_name(str(request.model)), FLAG))
    else:
        checkpoint = found.checkpoint = read_checkpoint(request.checkpoint)
        declarations = [request.declaration(), *(attempt(_declared_by_file, checkpoint) or ())]
        names = [("the file's name", checkpoint.path.stem), *((d.source, d.name) for d in declarations)]
        found.note(pick("name", names))
        if request.model is None:
            _resolve_architecture(found, checkpoint, request, declarations, attempt)
    if request.model is not None:
        attempt(_resolve_users_model, found, request, declarations)
    return found


class _Attempt:
    """Call a step. Where problems are collected, one that fails gives None, and its message is kept."""

    def __init__(self, problems: list[str] | None) -> None:
        self.problems = problems

    def __call__(self, step: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        try:
            return step(*args, **options)
        except QuestError as error:
            if self.problems is None:
                raise
            self.problems.append(str(error))
            return None


def _declared_by_file(checkpoint: Checkpoint) -> list[Declaration]:
    """Return what is declared beside the request, in order: sidecar, metadata, args."""
    sidecar = sidecar_path(checkpoint.path)
    found = [] if sidecar is None else [from_sidecar(sidecar)]
    if checkpoint.metadata:
        found.append(from_metadata(checkpoint.metadata, str(checkpoint.path)))
    if checkpoint.args:
        found.append(declared_by_args(checkpoint.args, checkpoint.entries))
    return found


def _resolve_architecture(
    found: Findings,
    checkpoint: Checkpoint,
    request: ModelRequest,
    declarations: Sequence[Declaration],
    attempt: _Attempt,
) -> None:
    """Find out what a checkpoint of one of timm's architectures is."""
    file = checkpoint.path.name
    chosen = attempt(choose_weights, checkpoint, declarations)
    if chosen is None:
        return
    found.note(chosen[1])
    found.stored = checkpoint.containers[chosen[0]]
    found.normalised = attempt(normalise, found.stored, tuple(checkpoint.containers))
    if found.normalised is None or not attempt(_is_classifier, checkpoint, found.normalised):
        return
    tensors = found.normalised.tensors
    arch = found.arch = attempt(choose_architecture, checkpoint.path, tensors, declarations)
    options = arch and attempt(fitted_options, arch.name, tensors, arch.given(), request.img_size)
    module = arch and options and attempt(build, arch.name, options, device=META)
    if not arch or not options or not module:
        if any(".attn." in key for key in tensors):
            choice = attempt(choose_attention, tensors, declarations, file)
            found.note(None if choice is None else choice.setting)
        return
    found.module = module
    found.note(arch.setting, arch.options_setting(options, request.img_size), heads_setting(module))
    released = "model" in checkpoint.containers and arch.name.startswith("deit_")  # as DeiT's own files
    decided = attempt(
        choose_preprocessing,
        declarations,
        from_container("DeiT") if released else None,
        input_size(module),
        timm_sources(arch.name, int(options["num_classes"])),
        file,
    )
    if decided is not None:
        found.note(*decided[1])
        attempt(check_size, module, decided[0].size, request.img_size)
    choice = attempt(choose_for, module, tensors, declarations, file)
    found.note(None if choice is None else choice.setting)
    if choice is None:  # so which of them it has is not known
        tensors = {key: tensor for key, tensor in tensors.items() if not VARIANT_KEY.search(key)}
    fitted = attempt(_fitted, module, choice, tensors, request.img_size is not None, file, arch.name)
    if decided is None or choice is None or fitted is None:
        return
    if fitted[1]:
        found.note(Setting("position embeddings", "resized", f"because of --img-size: {fitted[1]}"))
    spec = ModelSpec(
        name=checkpoint.path.stem,
        checkpoint=checkpoint.sha256,
        arch=arch.name,
        attention=choice.spec,
        weights=chosen[0],
        preprocessing=decided[0],
        num_classes=int(options["num_classes"]),
        arch_options=tuple(sorted(options.items())),
    )
    _conclude(found, spec, declarations)

    def built() -> nn.Module:
        module = build(arch.name, options)
        choice.put_into(module, spec.preprocessing.size)
        load_strictly(module, fitted[0], file, arch.name)
        return module

    found.build = built


def _is_classifier(checkpoint: Checkpoint, found: Normalised) -> bool:
    if found.kind != CLASSIFIER:
        raise CheckpointError(f"{checkpoint.path} cannot be evaluated as a classifier: {REASONS[found.kind]}")
    return True


def _fitted(
    module: nn.Module,
    choice: Choice | None,
    tensors: Mapping[str, Tensor],
    resize: bool,
    file: str,
    arch: str,
) -> tuple[Mapping[str, Tensor], str]:
    """Return the tensors as ``module``, on the meta device, takes them, and which positions were resized.

    A user's attention class, which needs values, is put in and compared when the model is built.
    """
    if choice is not None and choice.user is None:
        choice.put_into(module, 0)
    tensors, resized = resized_positions(module, tensors) if resize else (tensors, "")
    if choice is None or choice.user is None:
        check_fit(module, tensors, file, arch)
    return tensors, resized


def _resolve_users_model(found: Findings, request: ModelRequest, declarations: Sequence[Declaration]) -> None:
    """Build a user's own model, with a checkpoint's weights or its own."""
    checkpoint, name = found.checkpoint, short_name(str(request.model))
    module, source_hash = build_user_model(str(request.model), request.model_options)
    found.module, found.build = module, lambda: module
    preprocessing, settings = choose_preprocessing(
        declarations, None, input_size(module), timm_sources_of(module, name), f"--model {name}"
    )
    check_size(module, preprocessing.size, request.img_size)
    found.note(Setting("arch", name, FLAG), heads_setting(module), *settings, to_float32(module))
    container = ""
    if checkpoint is not None:
        container, setting = choose_weights(checkpoint, declarations)
        found.note(setting)
        found.stored = checkpoint.containers[container]
    choice = choose_for(module, found.stored or {}, declarations, "the checkpoint", users_own=True)
    choice.put_into(module, preprocessing.size)
    found.note(choice.setting)
    if checkpoint is not None and found.stored is not None:
        load_strictly(module, under_own_keys(module, found.stored), checkpoint.path.name, name)
    spec = ModelSpec(
        name=name if checkpoint is None else checkpoint.path.stem,
        checkpoint=weights_sha256(module) if checkpoint is None else checkpoint.sha256,
        arch=name,
        attention=choice.spec,
        weights=container,
        preprocessing=preprocessing,
        num_classes=num_classes(module, preprocessing),
        arch_options=tuple(sorted(request.model_options.items())),
        source_hash=source_hash,
    )
    _conclude(found, spec, declarations)


def _conclude(found: Findings, spec: ModelSpec, declarations: Sequence[Declaration]) -> None:
    """Keep the whole, with the sources of its settings."""
    settings, dataset = found.ordered(), declared("dataset", declarations)
    sources = tuple((setting.name, setting.source) for setting in settings)
    guessed = tuple(guess for setting in settings for guess in setting.guessed)
    spec = replace(spec, sources=sources, guessed=guessed)
    found.resolved = Resolved(spec, settings, None if dataset is None else dataset.value)
