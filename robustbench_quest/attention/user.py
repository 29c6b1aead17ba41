"""A user's own attention class in place of a model's: ``--attention FILE.py:CLASS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import OptionError
from ..types import AttentionSpec, OptionValue
from ..user_code import call, fixed_random_state, load_object, refuse_hollow, said, short_name, takes
from .swap import attention_sites, replace_attention

_IF_TAKEN = ("head_dim", "proj_bias", "layer", "num_layers")  # given to constructors that take them
_BLOCK_ARGUMENTS = {"attn_mask": None, "is_causal": False}  # what timm's blocks hand to their attention


@dataclass(frozen=True)
class UserAttention:
    """A user's attention class.

    Args:
        text: "FILE.py:CLASS" as given.
        spec: its name without the folder, its options, and the hash of its file.
        make: the class, or a function that returns a module.
    """

    text: str
    spec: AttentionSpec
    make: Callable[..., Any]


def load_user_attention(text: str, options: Mapping[str, OptionValue]) -> UserAttention:
    """Import a user's attention class.

    Raises:
        OptionError: it cannot be imported.
    """
    made, source_hash = load_object(text, "--attention")
    spec = AttentionSpec(short_name(text), tuple(sorted(options.items())), source_hash=source_hash)
    return UserAttention(text, spec, made)


def swap_user_attention(model: nn.Module, attention: UserAttention, size: int) -> nn.Module:
    """Replace every attention of ``model`` in place by the user's class and try it on one black image.

    The class is called with dim, num_heads, qkv_bias, those of head_dim, proj_bias, layer and num_layers that
    it takes, and the user's options. Its forward takes (x), or (x, attn_mask=None, is_causal=False), and maps
    tokens (B, N, C) to (B, N, C). Tensors whose names and shapes agree with the old attention's are kept.

    Raises:
        OptionError: the constructor refuses, a forward fails, or its output has another shape.
    """
    sites = attention_sites(model)
    cross = [path for path, module in sites if hasattr(module, "wq")]
    if cross:
        raise OptionError(
            f"--attention {attention.text}: {cross[0]} is a cross-attention, which maps N tokens to one; an "
            "own class can replace self-attention only, so give the whole model with --model"
        )
    with fixed_random_state():
        replace_attention(model, lambda old, index, count: _construct(attention, old, index, count))
        _try(model, attention.text, [path for path, _ in sites], size)
    return model


def _construct(attention: UserAttention, old: nn.Module, index: int, count: int) -> nn.Module:
    qkv: Any = old.qkv
    proj: Any = old.proj
    heads: Any = old.num_heads
    offered = {
        "head_dim": qkv.out_features // 3 // heads,
        "proj_bias": proj.bias is not None,
        "layer": index,
        "num_layers": count,
    }
    given = {"dim": qkv.in_features, "num_heads": heads, "qkv_bias": qkv.bias is not None}
    given |= {key: offered[key] for key in _IF_TAKEN if takes(attention.make, key)}
    given |= dict(attention.spec.options)
    module = call(attention.make, attention.text, "--attention", given)
    if not isinstance(module, nn.Module):
        raise OptionError(
            f"--attention {attention.text} must be a torch.nn.Module; it gave {type(module).__name__}"
        )
    refuse_hollow(module, f"--attention {attention.text}")
    return _callable_by_blocks(module)


def _callable_by_blocks(module: nn.Module) -> nn.Module:
    """Let timm's blocks call a forward that does not take the ``attn_mask`` and ``is_causal`` they pass."""
    missing = [name for name in _BLOCK_ARGUMENTS if not takes(type(module).forward, name)]

    def left_out(part: nn.Module, inputs: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        for name in missing:
            if arguments.get(name, _BLOCK_ARGUMENTS[name]) != _BLOCK_ARGUMENTS[name]:
                raise OptionError(
                    f"{type(part).__name__}.forward does not take {name}, which this model needs"
                )
        return inputs, {name: value for name, value in arguments.items() if name not in missing}

    if missing:
        module.register_forward_pre_hook(left_out, with_kwargs=True)
    return module


def _try(model: nn.Module, text: str, paths: list[str], size: int) -> None:
    """Run one black image and check that each attention returns the shape of its tokens."""
    problems: list[str] = []

    def checking(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
            expected = tuple(inputs[0].shape)
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            if shape != expected:
                problems.append(f"{path} returned {shape} for tokens {expected}; expected the same shape")

        return hook

    handles = [model.get_submodule(path).register_forward_hook(checking(path)) for path in paths]
    parameter = next(model.parameters())
    black = torch.zeros(1, 3, size, size, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad():
            model(black)
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        problems.append(said(error))
    finally:
        for handle in handles:
            handle.remove()
    if problems:
        raise OptionError(f"--attention {text} fails on one {size}x{size} image: {problems[0]}")
