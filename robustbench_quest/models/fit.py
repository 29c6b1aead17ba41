"""Loading that leaves nothing out: every tensor of the file has its place in the model, and the reverse."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from ..errors import CheckpointError, OptionError
from .architectures import Positions, distilled_hint, input_size, position_embeddings
from .preprocessing import MAX_SIDE

_SHOWN = 3


def misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Return what does not fit, with the first few names, shapes and counts; "" when all does."""
    parts = []
    missing = [f"{key} {_shape(tensor)}" for key, tensor in expected.items() if key not in found]
    unexpected = [f"{key} {_shape(tensor)}" for key, tensor in found.items() if key not in expected]
    other = [
        f"{key}: {_shape(found[key])} in the file, {_shape(tensor)} in the model"
        for key, tensor in expected.items()
        if key in found and found[key].shape != tensor.shape
    ]
    kinds = [
        f"{key}: {found[key].dtype} in the file, {tensor.dtype} in the model".replace("torch.", "")
        for key, tensor in expected.items()
        if key in found and found[key].is_floating_point() != tensor.is_floating_point()
    ]
    for label, names in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("of another shape", other),
        ("of another kind", kinds),
    ):
        if names:
            more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {label} ({', '.join(names[:_SHOWN])}{more})")
    return "; ".join(parts)


def check_plain(tensors: Mapping[str, Tensor], file: str) -> None:
    """Refuse tensors without values of their own: meta, sparse and quantised ones.

    Raises:
        CheckpointError: with the tensor's name.
    """
    for key, tensor in tensors.items():
        sparse = tensor.layout is not torch.strided
        kind = "is quantised" if tensor.is_quantized else "is sparse" if sparse else "has no values"
        if tensor.is_meta or sparse or tensor.is_quantized:
            raise CheckpointError(f"{file}: {key} {kind}, expected a plain tensor; save the model again")


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
            branch = f" (its branch {key} sees {side} pixels)" if len(seen) > 1 else ""
            raise OptionError(
                f"--img-size {size} is not a whole number of patches of {positions.patch} pixels{branch}; "
                f"the nearest sizes that work: {_nearest(size, seen, tensors)}"
            )
        if key in tensors and tensors[key].ndim == 3 and tensors[key].shape[1] != positions.count:
            grid = [positions.rows, positions.columns]
            resized[key] = resample_abs_pos_embed(tensors[key], grid, num_prefix_tokens=positions.extra)
            before = tensors[key].shape[1] - positions.extra
            done.append(f"{key} from {before} to {positions.rows}x{positions.columns} patches")
    return resized, ", ".join(done)


def _nearest(size: int, seen: Mapping[str, Positions], tensors: Mapping[str, Tensor]) -> str:
    """Return the closest smaller and larger image sizes that every branch cuts into whole patches."""
    patches = [positions.patch for positions in seen.values()]
    stored = [tensors[key].shape for key in seen if key in tensors and tensors[key].ndim == 3]
    # The branches' scales, from the sizes that the tensors were made for. The root, rounded down, is the
    # grid's side: class and distillation tokens are fewer than the next row and column.
    made = [math.isqrt(shape[1]) * patch for shape, patch in zip(stored, patches, strict=False)]
    scales = [side / made[0] for side in made] if len(made) == len(seen) and made[0] else [1.0] * len(seen)

    def works(side: int) -> bool:
        return all(int(side * scale) % patch == 0 for scale, patch in zip(scales, patches, strict=True))

    below = next((side for side in range(size - 1, 0, -1) if works(side)), None)
    above = next((side for side in range(size + 1, MAX_SIDE + 1) if works(side)), None)
    return " and ".join(str(side) for side in (below, above) if side is not None)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
