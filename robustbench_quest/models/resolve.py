"""From a request and a file to what a model is, where each setting came from, and how to build it.

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
from ..user_code import fixed_random_state, short_name
from .architectures import build, fitted_options, input_size, timm_sources
from .attention_choice import Choice, choose_attention, choose_for, heads_setting
from .classifier import num_classes
from .fit import check_fit, check_size, load_strictly, resized_positions
from .infer import VARIANT_KEY, Architecture, choose_architecture
from .preprocessing import SETTINGS, choose_preprocessing
from .request import ModelRequest
from .users_model import build_users_model, timm_sources_of, under_own_keys

P = ParamSpec("P")
T = TypeVar("T")
ROWS = ("name", "arch", "arch options", "heads", "dtype", "position embeddings", "attention", "weights")


@dataclass(frozen=True)
class Resolved:
    """What a model is, without its weights; it holds no tensors.

    Args:
        spec: exactly that of the Classifier which ``load_request`` makes of the same request.
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
        build: makes the module on the host, with its weights; when no step failed.
    """

    checkpoint: Checkpoint | None
    settings: dict[str, Setting] = field(default_factory=dict)
    stored: Mapping[str, Tensor] | None = None
    normalised: Normalised | None = None
    arch: Architecture | None = None
    module: nn.Module | None = None
    resolved: Resolved | None = None
    build: Callable[[], nn.Module] | None = None

    def note(self, *settings: Setting) -> None:
        """Keep settings."""
        self.settings |= {setting.name: setting for setting in settings}

    def ordered(self) -> tuple[Setting, ...]:
        """Return the settings in the order in which they are shown."""
        names = (*ROWS, *SETTINGS)
        return tuple(self.settings[name] for name in names if name in self.settings)

    def conclude(self, spec: ModelSpec, declarations: Sequence[Declaration]) -> None:
        """Keep the whole, with the sources of its settings."""
        settings = self.ordered()
        dataset = declared("dataset", declarations)
        self.resolved = Resolved(
            replace(
                spec,
                sources=tuple((setting.name, setting.source) for setting in settings),
                guessed=tuple(guess for setting in settings for guess in setting.guessed),
            ),
            settings,
            None if dataset is None else dataset.value,
        )


def resolve_model(request: ModelRequest) -> Resolved:
    """Return what a request means. Of architectures of timm no weights are allocated, nor values read.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``, but for values that are not finite and for a
            user's attention class that does not work: those show when the model is built.
    """
    with as_in_a_fresh_process():
        found = resolve(request, read(request))
    assert found.resolved is not None  # a step that fails raises
    return found.resolved


def read(request: ModelRequest) -> Checkpoint | None:
    """Return what the request's file holds, or None where it names none.

    Raises:
        CheckpointError: as ``checkpoints.file.read_checkpoint``.
    """
    return None if request.checkpoint is None else read_checkpoint(request.checkpoint)


@contextlib.contextmanager
def as_in_a_fresh_process() -> Iterator[None]:
    """Set aside whatever dtype, device, mode and random states the caller has set for new tensors."""
    with torch.inference_mode(False), HOST, float32_by_default(), fixed_random_state():
        yield


def resolve(
    request: ModelRequest, checkpoint: Checkpoint | None, problems: list[str] | None = None
) -> Findings:
    """Return what can be found out of a request and its file; to be called ``as_in_a_fresh_process``.

    Args:
        request: what is asked for.
        checkpoint: what its file holds.
        problems: gets the message of each step that fails; without it, the first failure is raised.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``, unless there are ``problems``.
    """
    attempt = _Attempt(problems)
    found = Findings(checkpoint)
    declarations = attempt(declarations_of, request, checkpoint) or [request.declaration()]
    if checkpoint is None:
        found.note(Setting("name", short_name(str(request.model)), FLAG))
    else:
        names = [("the file's name", checkpoint.path.stem), *((d.source, d.name) for d in declarations)]
        found.note(*filter(None, [pick("name", names)]))
    if request.model is not None:
        attempt(_resolve_users_model, found, request, declarations)
    elif checkpoint is not None:
        _resolve_architecture(found, checkpoint, request, declarations, attempt)
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


def declarations_of(request: ModelRequest, checkpoint: Checkpoint | None) -> list[Declaration]:
    """Return what is declared, in order: flag, sidecar, metadata, args.

    Raises:
        CheckpointError: a sidecar, metadata or arguments that cannot be used.
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
    container, setting = chosen
    found.note(setting)
    found.stored = checkpoint.containers[container]
    found.normalised = attempt(normalise, found.stored, tuple(checkpoint.containers))
    if found.normalised is None or attempt(_is_classifier, checkpoint, found.normalised) is None:
        return
    tensors = found.normalised.tensors
    arch = found.arch = attempt(choose_architecture, checkpoint.path, tensors, declarations)
    given = {} if arch is None else {name: option.value for name, option in arch.declared.items()}
    options = arch and attempt(fitted_options, arch.name, tensors, given, request.img_size)
    module = arch and options and attempt(build, arch.name, options, device=META)
    if not arch or not options or not module:
        if any(".attn." in key for key in tensors):
            choice = attempt(choose_attention, tensors, declarations, file)
            found.note(*([choice.setting] if choice else []))
        return
    found.module = module
    found.note(arch.setting, arch.options_setting(options, request.img_size), *heads_setting(module))
    released = "model" in checkpoint.containers and arch.name.startswith("deit_")
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
    if choice is not None:
        found.note(choice.setting)
    else:  # which of them a variant has is not known
        tensors = {key: tensor for key, tensor in tensors.items() if not VARIANT_KEY.search(key)}
    fitted = attempt(_fitted, module, choice, tensors, request.img_size is not None, (file, arch.name))
    if decided is None or choice is None or fitted is None:
        return
    tensors, resized = fitted
    if resized:
        found.note(Setting("position embeddings", "resized", f"because of --img-size: {resized}"))

    def built() -> nn.Module:
        module = build(arch.name, options)
        choice.put_into(module, decided[0].size)
        load_strictly(module, tensors, file, arch.name)
        return module

    found.build = built
    spec = ModelSpec(
        name=checkpoint.path.stem,
        checkpoint=checkpoint.sha256,
        arch=arch.name,
        attention=choice.spec,
        weights=container,
        preprocessing=decided[0],
        num_classes=int(options["num_classes"]),
        arch_options=tuple(sorted(options.items())),
    )
    found.conclude(spec, declarations)


def _is_classifier(checkpoint: Checkpoint, found: Normalised) -> bool:
    if found.kind != CLASSIFIER:
        raise CheckpointError(f"{checkpoint.path} cannot be evaluated as a classifier: {REASONS[found.kind]}")
    return True


def _fitted(
    module: nn.Module,
    choice: Choice | None,
    tensors: Mapping[str, Tensor],
    resize: bool,
    names: tuple[str, str],
) -> tuple[Mapping[str, Tensor], str]:
    """Return the tensors as ``module``, on the meta device, takes them, and which positions were resized.

    A user's attention class, which only a real model can hold, is compared when the model is built.
    """
    if choice is not None and choice.user is None:
        choice.put_into(module, 0)
    resized = ""
    if resize:
        tensors, resized = resized_positions(module, tensors)
    if choice is None or choice.user is None:
        check_fit(module, tensors, *names)
    return tensors, resized


def _resolve_users_model(found: Findings, request: ModelRequest, declarations: Sequence[Declaration]) -> None:
    """Build a user's own model, with a checkpoint's weights or its own.

    Raises:
        CheckpointError, OptionError: as ``load.load_model``.
    """
    checkpoint, users = found.checkpoint, build_users_model(request)
    module = found.module = users.module
    preprocessing, settings = choose_preprocessing(
        declarations, None, input_size(module), timm_sources_of(users), f"--model {users.name}"
    )
    check_size(module, preprocessing.size, request.img_size)
    found.note(Setting("arch", users.name, FLAG), *heads_setting(module), *settings)
    if users.converted:
        found.note(Setting("dtype", "float32", f"converted from {users.converted}"))
    container = ""
    if checkpoint is not None:
        container, setting = choose_weights(checkpoint, declarations)
        found.note(setting)
        found.stored = checkpoint.containers[container]
    choice = choose_for(module, found.stored or {}, declarations, "the checkpoint", users_own=True)
    choice.put_into(module, preprocessing.size)
    found.note(choice.setting)
    if checkpoint is not None and found.stored is not None:
        load_strictly(module, under_own_keys(module, found.stored), checkpoint.path.name, users.name)
    found.build = lambda: module
    spec = ModelSpec(
        name=users.name if checkpoint is None else checkpoint.path.stem,
        checkpoint=weights_sha256(module) if checkpoint is None else checkpoint.sha256,
        arch=users.name,
        attention=choice.spec,
        weights=container,
        preprocessing=preprocessing,
        num_classes=num_classes(module, preprocessing),
        arch_options=tuple(sorted(request.model_options.items())),
        source_hash=users.source_hash,
    )
    found.conclude(spec, declarations)
