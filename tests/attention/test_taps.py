"""Reading the attention of a model that runs: the right logits, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from torch import Tensor

from robustbench_quest.attention.swap import swap_attention
from robustbench_quest.attention.taps import read_attention
from robustbench_quest.attention.variants import VARIANTS, resolve
from robustbench_quest.errors import OptionError


def swapped(name: str) -> Any:
    model = swap_attention(reference.small_vit(), resolve(name))
    reference.randomize(model)
    return model.double()


@pytest.mark.parametrize("name", VARIANTS)
def test_read_attention_gives_logits_and_probabilities_and_restores(name: str) -> None:
    model = swapped(name)
    model.blocks[1].attn.explicit = True
    x = reference.images()
    expected = model(x)
    with read_attention(model) as seen:
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)
    assert len(seen) == reference.DEPTH
    for logits, probabilities in seen:
        assert logits.shape == probabilities.shape == (2, reference.HEADS, reference.TOKENS, reference.TOKENS)
        torch.testing.assert_close(probabilities, logits.softmax(-1), rtol=0, atol=0)
        sums = probabilities.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)
        assert probabilities.requires_grad
    assert [block.attn.explicit for block in model.blocks] == [False, True, False, False]
    model(x)
    assert len(seen) == reference.DEPTH  # no hook is left


def test_read_attention_gives_the_variants_own_logits() -> None:
    model = swapped("quest")
    tokens: list[Tensor] = []
    model.blocks[0].attn.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    with read_attention(model) as seen, torch.no_grad():
        model(reference.images())
    attention = model.blocks[0].attn
    image, head, i, j = 1, 2, 4, 5
    qkv = attention.qkv(tokens[0])[image].view(reference.TOKENS, 3, reference.HEADS, 16)
    expected = reference.logit("quest", qkv[i, 0, head], qkv[j, 1, head], None, {}, head, {})
    torch.testing.assert_close(seen[0][0][image, head, i, j], expected.detach(), rtol=0, atol=1e-12)


def test_read_attention_restores_after_an_error() -> None:
    model = swapped("quest")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    handle = model.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt), read_attention(model) as seen:
        model(reference.images())
    handle.remove()
    assert not any(block.attn.explicit for block in model.blocks)
    model(reference.images())
    assert len(seen) == 2


def test_read_attention_refuses_a_model_without_our_attention() -> None:
    refused = pytest.raises(OptionError, match=r"attention cannot be read; load it with --attention")
    with refused, read_attention(reference.small_vit()):
        pass
