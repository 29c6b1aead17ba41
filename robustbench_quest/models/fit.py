"""Loading that leaves nothing out: every tensor of the file has its place in the model, and the reverse."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from ..checkpoints.setting import Setting
from ..checkpoints.state_dict import unwrapped
from ..errors import CheckpointError, OptionError
from .architectures import distilled_hint, input_size, position_embeddings

_SHOWN = 3


def misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Return what does not fit, with the first few names, shapes and counts; "" when all does."""
    both = [(key, found[key], tensor) for key, tensor in expected.items() if key in found]
    kinds = {
        "missing": [f"{key} {_shape(t)}" for key, t in expected.items() if key not in found],
        "unexpected": [f"{key} {_shape(t)}" for key, t in found.items() if key not in expected],
        "of another shape": [
            f"{key}: {_shape(ours)} in the file, {_shape(t)} in the model"
            for key, ours, t in both
            if ours.shape != t.shape
        ],
        "of another kind": [
            f"{key}: {ours.dtype} in the file, {t.dtype} in the model".replace("torch.", "")
            for key, ours, t in both
            if ours.is_floating_point() != t.is_floating_point()
        ],
    }
    parts = []
    for label, names in kinds.items():
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        parts.append(f"{len(names)} {label} ({', '.join(names[:_SHOWN])}{more})" if names else "")
    return "; ".join(filter(None, parts))


def non_finite(tensors: Mapping[str, Tensor]) -> str:
    """Return which tensor holds a NaN or an infinity, and how many; "" when none does."""
    for key, tensor in tensors.items():
        if tensor.is_floating_point():
            # Eight-bit types have no test of their own.
            wrong = ~torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor)
            if bool(wrong.any()):
                return f"{key} holds {int(wrong.sum())} values that are not finite"
    return ""


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], file: str, subject: str) -> None:
    """Compare names, shapes and kinds.

    Raises:
        CheckpointError: with what does not fit.
    """
    expected = model.state_dict()
    problem = misfits(expected, tensors)
    if problem:
        hint = distilled_hint(expected, tensors)
        raise CheckpointError(f"{file} does not fit {subject}: {problem}{hint}")


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor], file: str, subject: str) -> None:
    """Copy ``tensors`` into ``model``; other floating types become the model's float32.

    Raises:
        CheckpointError: no tensors, a missing, unexpected or mis-shaped one, or a value that is not finite.
    """
    if not tensors:
        raise CheckpointError(f"{file} holds no tensors")
    check_fit(model, tensors, file, subject)
    model.load_state_dict(dict(tensors))
    problem = non_finite(model.state_dict())
    if problem:
        raise CheckpointError(f"{file}: {problem}; its training diverged, or the file is damaged")


def to_float32(module: nn.Module) -> Setting | None:
    """Make the module float32 in place, and return what was done, or None where it was that already."""
    tensors = (*module.parameters(), *module.buffers())
    other = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()} - {"float32"}
    if not other:
        return None
    module.float()
    return Setting("dtype", "float32", f"converted from {', '.join(sorted(other))}")


def under_own_keys(module: nn.Module, stored: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors under the keys that a user's model has: as stored, or without wrappers' prefixes.

    Where none fits, those that share most keys with the model, for the message.
    """
    expected = module.state_dict()
    forms = list(unwrapped(stored))
    fitting = (form for form in forms if not misfits(expected, form))
    return next(fitting, max(forms, key=lambda form: len(set(form) & set(expected))))


def check_size(module: nn.Module, size: int, asked: int | None) -> None:
    """Refuse preprocessing of another ``size`` than the model takes; ``asked`` is what the user asks for.

    Raises:
        OptionError: with the sizes.
    """
    built = input_size(module)
    if built is None or built == size:
        return
    if asked is not None:
        raise OptionError(
            f"--img-size {size}: the model takes {built}x{built} images, and only position embeddings of "
            f"timm's architectures are resized; leave --img-size out, or build the model for {size}"
        )
    raise OptionError(
        f"the preprocessing gives {size}x{size} images and the model takes {built}x{built}; --img-size "
        f"{built} keeps the model as it is, --img-size {size} resizes the position embeddings of timm's "
        "architectures"
    )


def resized_positions(model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors with position embeddings on the model's grid, and what was done ("" for nothing).

    timm's ``resample_abs_pos_embed`` does it: bicubic, antialiased; class and distillation tokens unchanged.

    Raises:
        OptionError: the image is no whole number of patches.
    """
    resized, done = dict(tensors), []
    size = input_size(model) or 0
    seen = position_embeddings(model)
    # CrossViT scales the image for each of its branches.
    sides = [side for side, *_ in getattr(model, "img_size_scaled", ())] or [size] * len(seen)
    for side, (key, positions) in zip(sides, seen.items(), strict=True):
        if positions.extra < 0 or positions.rows * positions.patch != side:
            scaled = f" (scaled to {side})" if side != size else ""
            raise OptionError(
                f"--img-size {size}{scaled} is not a whole number of patches of {positions.patch} pixels; "
                "give a multiple of the patch"
            )
        if key in tensors and tensors[key].ndim == 3 and tensors[key].shape[1] != positions.count:
            grid = [positions.rows, positions.columns]
            resized[key] = resample_abs_pos_embed(tensors[key], grid, num_prefix_tokens=positions.extra)
            before = tensors[key].shape[1] - positions.extra
            done.append(f"{key} from {before} to {positions.rows}x{positions.columns} patches")
    return resized, ", ".join(done)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
