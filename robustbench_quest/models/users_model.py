"""A user's own model: ``--model FILE.py:FUNC``, with its own weights or a checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import timm
from torch import Tensor, nn

from ..checkpoints.preprocessing import Source
from ..checkpoints.state_dict import unwrapped
from ..user_code import build_user_model, short_name
from .architectures import timm_config, timm_sources
from .fit import misfits
from .preprocessing import from_timm
from .request import ModelRequest


@dataclass(frozen=True)
class UsersModel:
    """The module that a user's function returns, in float32.

    Args:
        name: "FILE.py:FUNC" without the folder.
        module: in eval mode, with its own weights.
        source_hash: of the user's file.
        converted: the floating types that it had, where they were others than float32.
    """

    name: str
    module: nn.Module
    source_hash: str
    converted: str


def build_users_model(request: ModelRequest) -> UsersModel:
    """Build the module that ``request.model`` names.

    Raises:
        OptionError: as ``user_code.build_user_model``.
    """
    text = str(request.model)
    module, source_hash = build_user_model(text, request.model_options)
    tensors = (*module.parameters(), *module.buffers())
    other = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()} - {"float32"}
    if other:
        module.float()
    return UsersModel(short_name(text), module, source_hash, ", ".join(sorted(other)))


def timm_sources_of(model: UsersModel) -> list[Source]:
    """Return the preprocessing that a model of timm's carries, as ``architectures.timm_sources`` does.

    timm gives a model that is built by its bare name the tag of its newest weights, so that tag says no more
    than the bare name.
    """
    config = getattr(model.module, "pretrained_cfg", None)
    if not isinstance(config, dict) or "crop_pct" not in config:
        return []
    arch = str(config.get("architecture"))
    newest = (timm_config(arch) or {}) if timm.is_model(arch) else {}
    rivals: list[Source] = []
    if newest and newest.get("tag") == config.get("tag"):
        rivals = timm_sources(arch, getattr(model.module, "num_classes", 0))[1:]
    return [from_timm(model.name, config), *rivals]


def under_own_keys(module: nn.Module, stored: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors under the keys that a user's model has: as stored, or without wrappers' prefixes.

    Where none fits, those that share most keys with the model, for the message.
    """
    expected = module.state_dict()
    forms = list(unwrapped(stored))
    fitting = (form for form in forms if not misfits(expected, form))
    return next(fitting, max(forms, key=lambda form: len(set(form) & set(expected))))
