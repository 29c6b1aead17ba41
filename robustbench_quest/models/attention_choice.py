"""Which attention variant a checkpoint was trained with: what its keys can say, and what was declared.

Five variants have the keys of a standard ViT, so nothing but a declaration can tell them apart; a wrong guess
loads without complaint and gives wrong numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..attention.user import UserAttention, load_user_attention
from ..attention.variants import VARIANTS, resolve
from ..checkpoints.declared import FLAG, Declaration, merged_options, overruled, sources_text
from ..checkpoints.setting import Row
from ..errors import CheckpointError, OptionError
from ..types import AttentionSpec, OptionValue
from ..user_code import split_target

_ATTENTION_KEY = re.compile(r"(?:^|\.)attn\.(.+)$")
_SHARED = re.compile(r"^(qkv|proj|wq|wk|wv)\.")
FORMS = {"qknorm-ds": "mode", "qknorm-hs": "param"}  # the option that has the same keys in each form
LOOKS_LOG_BELOW = 5.0  # exp(5) = 148 is above the usual clamp at 100


@dataclass(frozen=True)
class Choice:
    """The variant of a model, where it and its options came from, and which options nothing declared.

    Args:
        source: of the variant, and of those options that came from elsewhere.
        alternatives: what other sources declare, and what the tensors look like.
        guessed: options that nothing declared, as "attention layers".
    """

    spec: AttentionSpec
    source: str
    alternatives: str = ""
    guessed: tuple[str, ...] = ()
    user: UserAttention | None = None

    @property
    def row(self) -> Row:
        """The line of ``--explain``."""
        return Row("attention", str(self.spec), self.source, self.alternatives)


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
        return user_choice(user, declarations)
    declared = next((d for d in declarations if d.attention is not None), None)
    fitting = variants_by_keys(tensors)
    name = _by_keys(fitting, tensors, file) if declared is None else str(declared.attention)
    source = "keys in the file" if declared is None else declared.source
    choice = named_choice(name, source, declarations)
    if name not in fitting:
        fits = f"they are those of {', '.join(fitting)}" if fitting else "no built-in attention has those"
        cure = "give another --attention" if source == FLAG else "correct it or override it with --attention"
        raise CheckpointError(
            f"attention {name} was declared ({source}), but {file} has {_describe(tensors)}: {fits}; {cure}"
        )
    return with_form(choice, tensors, declarations)


def user_choice(user: UserAttention, declarations: Sequence[Declaration]) -> Choice:
    """Return the choice of a user's class, which only the flag can name."""
    return Choice(
        user.spec, FLAG, overruled("attention", str(declarations[0].attention), declarations), user=user
    )


def named_choice(name: str, source: str, declarations: Sequence[Declaration]) -> Choice:
    """Return a variant with the options that are declared for it, as yet compared with no tensors.

    Raises:
        OptionError: no such variant, or an option or value that it does not have.
    """
    options, sources = declared_options(name, declarations)
    spec = resolve(name, options)
    decider = next((d for d in declarations if d.attention == name), None)
    left = () if decider is None else tuple(option for option in decider.unsure if option not in options)
    notes = [overruled("attention", name, declarations), decider.note if decider else ""]
    for declaration in declarations[1:]:
        if declaration.attention == name:
            given = declaration.attention_options or {}
            notes += [
                f"{declaration.source}: {option}={value}"
                for option, value in given.items()
                if value != options[option]
            ]
    return Choice(
        spec,
        sources_text(sources, source),
        "; ".join(filter(None, notes)),
        tuple(f"attention {option}" for option in left),
    )


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


def declared_options(
    name: str, declarations: Sequence[Declaration]
) -> tuple[dict[str, OptionValue], dict[str, str]]:
    """Return a variant's declared options and who declared each; earlier ones win, flags hold for any."""
    return merged_options(
        [
            (d.source, d.attention_options or {})
            for d in declarations
            if d.attention == name or d.source == FLAG
        ]
    )


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


def _form_is_declared(name: str, declarations: Sequence[Declaration]) -> bool:
    """Return whether the option that changes numbers but not keys is declared.

    A file that lists a variant's options, even none of them, has declared the others' defaults.
    """
    complete = any(
        d.attention == name and d.attention_options is not None for d in declarations if d.source != FLAG
    )
    return complete or FORMS.get(name) in declared_options(name, declarations)[0]


def with_form(choice: Choice, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration]) -> Choice:
    """Return the choice with what its tensors look like.

    Forms are options that change numbers but not keys: in all but name, other variants.

    Raises:
        OptionError: the variant has several forms and nothing declares one.
    """
    name = choice.spec.name
    if name not in FORMS:
        return choice
    option = FORMS[name]
    looks, form = _scale_form(tensors) if name == "qknorm-hs" else ("", "")
    if not _form_is_declared(name, declarations):
        listed = ", ".join(f"{option}={value}" for value in VARIANTS[name].options[option][1])
        raise OptionError(
            f"attention {name} ({choice.source}): nothing says in which form it was trained, and all have "
            f"the same keys; give --attention-option with one of {listed}{looks and f' ({looks})'}"
        )
    given = dict(choice.spec.options)[option]
    against = f", against the declared {option}={given}" if looks and form != given else ""
    return replace(choice, alternatives="; ".join(filter(None, [choice.alternatives, looks + against])))


def _scale_form(tensors: Mapping[str, Tensor]) -> tuple[str, str]:
    """Say what the stored scales of qknorm-hs, if any, look like; and return the form that they look like."""
    stored = [tensor for key, tensor in tensors.items() if key.endswith("attn.logit_scale")]
    if not stored:
        return "", ""
    largest = max(float(tensor.float().max()) for tensor in stored)
    form = "log" if largest < LOOKS_LOG_BELOW else "linear"
    return f"stored scales up to {largest:.3g} look {'log-space' if form == 'log' else form}", form
