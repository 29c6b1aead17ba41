"""Which attention variant a checkpoint was trained with: what its keys can say, and what was declared.

Five variants have the keys of a standard ViT, so nothing but a declaration can tell them apart; a wrong guess
loads without complaint and gives wrong numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import CheckpointError, OptionError
from ..types import AttentionSpec, OptionValue
from .declaration import FLAG, Declaration
from .preprocessing import Row
from .user_attention import UserAttention, load_user_attention
from .user_code import split_target
from .variants import VARIANTS, resolve

_ATTENTION_KEY = re.compile(r"(?:^|\.)attn\.(.+)$")
_SHARED = re.compile(r"^(qkv|proj|wq|wk|wv)\.")
LOOKS_LOG_BELOW = 5.0  # exp(5) = 148 is above the usual clamp at 100


@dataclass(frozen=True)
class Choice:
    """The variant of a model, where that came from, and which of its options nothing declared."""

    spec: AttentionSpec
    sources: Mapping[str, str]
    guessed: tuple[str, ...] = ()
    user: UserAttention | None = None

    @property
    def row(self) -> Row:
        """The line of ``--explain``."""
        return Row("attention", str(self.spec), self.sources["attention"])


def extra_parameters(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the attention parameters beyond qkv and proj, relative to the attention module."""
    names = (match[1] for key in tensors if (match := _ATTENTION_KEY.search(key)))
    return frozenset(name for name in names if not _SHARED.match(name))


def variants_by_keys(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the variants whose keys the state dict has; none where it has keys of no variant."""
    extra = extra_parameters(tensors)
    return tuple(name for name, variant in VARIANTS.items() if frozenset(variant.parameters) == extra)


def choose_attention(tensors: Mapping[str, Tensor], declarations: Sequence[Declaration], file: str) -> Choice:
    """Return the first variant that is declared, else the one that the keys identify.

    Args:
        tensors: in timm's names.
        declarations: flag, sidecar, metadata, args, in that order.
        file: the checkpoint's name, for messages.

    Raises:
        OptionError: nothing says which variant, or an option that the variant does not have.
        CheckpointError: the declared variant contradicts the keys, or a file names code to run.
    """
    user = declared_user_attention(declarations, file)
    if user is not None:
        return Choice(user.spec, {"attention": FLAG}, user=user)
    declared = next((d for d in declarations if d.attention is not None), None)
    fitting = variants_by_keys(tensors)
    name = _by_keys(fitting, tensors, file) if declared is None else str(declared.attention)
    source = "keys in the file" if declared is None else declared.source
    options = declared_options(name, declarations)
    spec = resolve(name, options)
    if name not in fitting:
        fits = f"they are those of {', '.join(fitting)}" if fitting else "no built-in attention has those"
        raise CheckpointError(
            f"attention {name} was declared ({source}), but {file} has {_describe(tensors)}: {fits}; "
            "correct the declaration or override it with --attention"
        )
    # A file that lists a variant's options, even none of them, has declared the others' defaults.
    complete = any(
        d.attention == name and d.attention_options is not None for d in declarations if d.source != FLAG
    )
    return _with_twins(spec, source, options, complete, tensors)


def declared_user_attention(declarations: Sequence[Declaration], file: str) -> UserAttention | None:
    """Return the user's attention class that the flag names, or None.

    Raises:
        CheckpointError: a file names one: code runs only when the user names it.
    """
    declared = next((d for d in declarations if d.attention is not None), None)
    if declared is None or split_target(str(declared.attention)) is None:
        return None
    if declared.source != FLAG:
        raise CheckpointError(
            f"{declared.source} of {file} names code to run (attention {declared.attention}); only the flag "
            f"may: add --attention {declared.attention} if you trust it"
        )
    return load_user_attention(str(declared.attention), declared.attention_options or {})


def declared_options(name: str, declarations: Sequence[Declaration]) -> dict[str, OptionValue]:
    """Return what is declared of a variant; earlier declarations win, and flags hold for any variant."""
    options: dict[str, OptionValue] = {}
    for declaration in reversed(declarations):
        if declaration.attention == name or declaration.source == FLAG:
            options.update(declaration.attention_options or {})
    return options


def _by_keys(fitting: tuple[str, ...], tensors: Mapping[str, Tensor], file: str) -> str:
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise OptionError(
            f"{file} does not say which attention it was trained with, and its keys fit {', '.join(fitting)} "
            f"alike; give --attention NAME, or `attention: NAME` in {file}.yaml"
        )
    raise OptionError(
        f"{file} has {_describe(tensors)}, which no built-in attention has ({', '.join(VARIANTS)}); "
        "give --attention FILE.py:CLASS"
    )


def _describe(tensors: Mapping[str, Tensor]) -> str:
    extra = sorted(extra_parameters(tensors))
    return f"the keys attn.{', attn.'.join(extra)}" if extra else "no attention keys beyond qkv and proj"


def _with_twins(
    spec: AttentionSpec,
    source: str,
    options: Mapping[str, OptionValue],
    complete: bool,
    tensors: Mapping[str, Tensor],
) -> Choice:
    """Return the choice; treat options that change numbers but not keys as what they are: other variants."""
    if spec.name == "qknorm-ds" and "mode" not in options and not complete:
        listed = ", ".join(f"mode={choice}" for choice in VARIANTS["qknorm-ds"].options["mode"][1])
        raise OptionError(
            f"attention qknorm-ds ({source}): nothing says in which form it was trained, and all have the "
            f"same keys; give --attention-option with one of {listed}"
        )
    if spec.name != "qknorm-hs":
        return Choice(spec, {"attention": source})
    said = "param" in options or complete
    form = f"{'declared' if said else 'default, not declared'}; {_scale_form(tensors)}"
    return Choice(spec, {"attention": source, "attention param": form}, () if said else ("attention param",))


def _scale_form(tensors: Mapping[str, Tensor]) -> str:
    """Say whether the stored scales of qknorm-hs look like logarithms."""
    stored = [tensor for key, tensor in tensors.items() if key.endswith("attn.logit_scale")]
    largest = max(float(tensor.float().max()) for tensor in stored)
    return f"stored scales up to {largest:.3g} look {'log-space' if largest < LOOKS_LOG_BELOW else 'linear'}"
