"""Read the logits and probabilities of a model's attention while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from ..errors import OptionError
from .core import Attention


@contextlib.contextmanager
def read_attention(model: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect (logits, probabilities) of every attention, in order, for the forward passes made inside.

    Each has shape (B, H, N, N), or (B, H, 1, N) for cross-attention, and is part of the autograd graph;
    logits are scaled and not yet masked. The model must hold this package's attention (``swap_attention``);
    the explicit path is used inside.

    Raises:
        OptionError: the model holds no attention of this package.
    """
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    if not modules:
        raise OptionError(
            "the model's attention cannot be read; load it with --attention (standard included)"
        )
    seen: list[tuple[Tensor, Tensor]] = []
    logits: list[Tensor] = []

    def on_logits(_: nn.Module, __: object, output: Tensor) -> None:
        logits.append(output)

    def on_probabilities(_: nn.Module, __: object, output: Tensor) -> None:
        seen.append((logits.pop(), output))

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.logits_tap.register_forward_hook(on_logits).remove)
            stack.callback(module.probabilities_tap.register_forward_hook(on_probabilities).remove)
            stack.callback(setattr, module, "explicit", module.explicit)
            module.explicit = True
        yield seen
