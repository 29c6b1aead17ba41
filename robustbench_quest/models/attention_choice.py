"""Which attention variant a model was trained with: what its keys can say, and what was declared.

Five variants have the keys of a standard ViT, so nothing but a declaration can tell them apart; a wrong guess
loads without complaint and gives wrong numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ..attention.swap import attention_sites, check_replaceable, heads_text, is_replaceable, swap_attention
from ..attention.user import UserAttention, load_user_attention, swap_user_attention
from ..attention.variants import VARIANTS, for_layers, resolve
from ..checkpoints.declared import FLAG, Declaration, declared
from ..checkpoints.setting import Setting, joined, merge, remarks
from ..errors import CheckpointError, OptionError
from ..types import AttentionSpec
from ..user_code import split_target

_ATTENTION_KEY = re.compile(r"(?:^|\.)attn\.(.+)$")
_SHARED = re.compile(r"^(qkv|proj|wq|wk|wv)\.")
FORMS = {"qknorm-ds": "mode", "qknorm-hs": "param"}  # the option that has the same keys in each form
LOOKS_LOG_BELOW = 5.0  # exp(5) = 148 is above the usual clamp at 100


@dataclass(frozen=True)
class Choice:
    """The attention that is used: a variant, a user's class, or (``spec`` None) what the model is built with.

    ``setting`` says where it and its options came from, what other sources declare, and what nothing did.
    """

    spec: AttentionSpec | None
    setting: Setting
    user: UserAttention | None = None

    def put_into(self, module: nn.Module, size: int) -> None:
        """Replace the attention of ``module`` in place; a user's class is tried on an image of side ``size``.

        Raises:
            OptionError: as ``swap.swap_attention`` and ``user.swap_user_attention``.
        """
        if self.user is not None:
            swap_user_attention(module, self.user, size)
        elif self.spec is not None:
            swap_attention(module, self.spec)


OWN = Choice(None, Setting("attention", "own", "as the model is built"))


def heads_setting(module: nn.Module) -> Setting | None:
    """Return the number of heads as a setting, or None for a model without attention."""
    text = heads_text(module)
    return Setting("heads", text, "the model as built") if text else None


def choose_for(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    declarations: Sequence[Declaration],
    file: str,
    *,
    users_own: bool = False,
) -> Choice:
    """Return the attention of a model, in the form for its layers.

    Args:
        module: one of timm's, or a user's.
        tensors: of the file; in timm's names for a model of timm's.
        declarations: flag, sidecar, metadata, args, in that order.
        file: the checkpoint's name, for messages.
        users_own: whether the module is a user's, which keeps its attention unless one is declared.

    Raises:
        CheckpointError, OptionError: as ``choose_attention``; or a variant or an option is declared and the
            model has no attention that can be replaced.
    """
    if declared("attention", declarations) is None and (users_own or not is_replaceable(module)):
        if any(d.source == FLAG and d.attention_options for d in declarations):
            raise OptionError(
                "--attention-option needs --attention NAME or FILE.py:CLASS; without it this model keeps "
                "its own"
            )
        return OWN
    check_replaceable(module)
    choice = choose_attention(tensors, declarations, file, by_keys=not users_own)
    assert choice.spec is not None
    spec = for_layers(choice.spec, len(attention_sites(module)))
    return replace(choice, spec=spec, setting=replace(choice.setting, value=str(spec)))


def choose_attention(
    tensors: Mapping[str, Tensor], declarations: Sequence[Declaration], file: str, *, by_keys: bool = True
) -> Choice:
    """Return the first variant that is declared, else the one that the keys identify.

    Args:
        tensors, declarations, file: as in ``choose_for``.
        by_keys: whether the keys are timm's, so that they can be compared with the variants'.

    Raises:
        OptionError: nothing says which variant, or an option that the variant does not have.
        CheckpointError: the declared variant contradicts the keys, or a file names code to run.
    """
    setting = declared("attention", declarations)
    if setting is not None and split_target(str(setting.value)) is not None:
        if setting.source != FLAG:  # code runs only when the user names it
            raise CheckpointError(
                f"{setting.source} of {file} names code to run (attention {setting.value}); only the flag "
                f"may: add --attention {setting.value} if you trust it"
            )
        user = load_user_attention(setting.value, declarations[0].attention_options or {})
        return Choice(user.spec, replace(setting, value=str(user.spec)), user)
    fitting = variants_by_keys(tensors)
    if setting is None and len(fitting) > 1:
        raise OptionError(
            f"{file} does not say which attention it was trained with, and its keys fit {', '.join(fitting)} "
            f"alike; give --attention NAME, or `attention: NAME` in {file}.yaml"
        )
    if setting is None and not fitting:
        raise OptionError(
            f"{file} has {_describe(tensors)}, which no built-in attention has ({', '.join(VARIANTS)}); "
            "give --attention FILE.py:CLASS"
        )
    setting = setting or Setting("attention", fitting[0], "keys in the file")
    choice = _variant(setting, declarations)
    if by_keys and setting.value not in fitting:
        fits = f"they are those of {', '.join(fitting)}" if fitting else "no built-in attention has those"
        again = setting.source == FLAG
        cure = "give another --attention" if again else "correct it or override it with --attention"
        raise CheckpointError(
            f"attention {setting.value} was declared ({setting.source}), but {file} has "
            f"{_describe(tensors)}: {fits}; {cure}"
        )
    return _with_form(choice, tensors, declarations)


def variants_by_keys(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the variants whose keys the state dict has; none where it has keys of no variant."""
    extra = _extra_parameters(tensors)
    return tuple(name for name, variant in VARIANTS.items() if frozenset(variant.parameters) == extra)


def _variant(setting: Setting, declarations: Sequence[Declaration]) -> Choice:
    """Return a variant with the options that are declared for it; those of the flag hold for any."""
    name = str(setting.value)
    fitting = [d for d in declarations if name == d.attention or d.source == FLAG]
    options = merge([(d.source, d.attention_options or {}) for d in fitting])
    spec = resolve(name, {option: given.value for option, given in options.items()})
    whole = joined("attention", str(spec), options.values(), main=setting)
    decider = next((d for d in declarations if d.attention == name), None)
    if decider is None:
        return Choice(spec, whole)
    unsure = tuple(f"attention {option}" for option in decider.unsure if option not in options)
    return Choice(spec, replace(whole, others=remarks([whole.others, decider.note]), guessed=unsure))


def _with_form(choice: Choice, tensors: Mapping[str, Tensor], declarations: Sequence[Declaration]) -> Choice:
    """Return the choice with what its tensors look like.

    Forms are options that change numbers but not keys: in all but name, other variants. A file that lists a
    variant's options, even none of them, has declared the others' defaults.

    Raises:
        OptionError: the variant has several forms and nothing declares one.
    """
    assert choice.spec is not None
    name, setting = choice.spec.name, choice.setting
    if name not in FORMS:
        return choice
    option = FORMS[name]
    looks, form = _scale_form(tensors) if name == "qknorm-hs" else ("", "")
    if not any(
        option in (d.attention_options or {})
        if d.source == FLAG
        else d.attention == name and d.attention_options is not None
        for d in declarations
    ):
        listed = ", ".join(f"{option}={value}" for value in VARIANTS[name].options[option][1])
        raise OptionError(
            f"attention {name} ({setting.source}): nothing says in which form it was trained, and all have "
            f"the same keys; give --attention-option with one of {listed}{looks and f' ({looks})'}"
        )
    given = dict(choice.spec.options)[option]
    against = f", against the declared {option}={given}" if looks and form != given else ""
    return replace(choice, setting=replace(setting, others=remarks([setting.others, looks + against])))


def _scale_form(tensors: Mapping[str, Tensor]) -> tuple[str, str]:
    """Say what the stored scales of qknorm-hs, if any, look like; and return the form that they look like."""
    stored = [tensor for key, tensor in tensors.items() if key.endswith("attn.logit_scale")]
    if not stored:
        return "", ""
    largest = max(float(tensor.float().max()) for tensor in stored)
    form = "log" if largest < LOOKS_LOG_BELOW else "linear"
    return f"stored scales up to {largest:.3g} look {'log-space' if form == 'log' else form}", form


def _describe(tensors: Mapping[str, Tensor]) -> str:
    extra = sorted(_extra_parameters(tensors))
    return f"the keys attn.{', attn.'.join(extra)}" if extra else "no attention keys beyond qkv and proj"


def _extra_parameters(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the attention parameters beyond qkv and proj, relative to the attention module."""
    names = (match[1] for key in tensors if (match := _ATTENTION_KEY.search(key)))
    return frozenset(name for name in names if not _SHARED.match(name))
