"""Passes over cached rows on CPU, with and without the short way for Llama: the logits are the library's."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from agent2rl.engines.transformers.forward_pass import ForwardPass
from agent2rl.engines.transformers.kv_cache import CacheSlot
from agent2rl.engines.transformers.llama_pass import read_llama_layers
from agent2rl.engines.transformers.loading import describe_model
from tests.helpers.tiny_models import make_tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def make_llama(**settings: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **settings)).eval()  # type: ignore[no-untyped-call]


def make_mistral() -> Any:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=20)).eval()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("network", [make_llama(), make_mistral()], ids=["llama", "windows"])
@torch.inference_mode()
def test_rows_of_all_lengths_between_idle_slots_get_the_librarys_logits(network: Any) -> None:
    check_rows(network)


@torch.inference_mode()
def test_positions_may_be_scaled_and_embeddings_tied() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    network = make_llama(rope_parameters=scaling, tie_word_embeddings=True)
    assert read_llama_layers(network) is None  # the library's own attention
    check_rows(network)
    assert read_llama_layers(network) is not None


@torch.no_grad()
def test_weights_that_change_between_passes_are_read_anew() -> None:
    network = make_llama()
    check_rows(network)
    for weight in network.parameters():
        weight.mul_(0.9)
    check_rows(network)
    for weight in network.parameters():
        weight.data = weight.data * 1.1
    check_rows(network)


@torch.inference_mode()
def test_a_layer_that_somebody_changed_is_run_as_changed() -> None:
    network = make_llama()
    check_rows(network)
    network.model.layers[1].mlp.up_proj.register_forward_hook(lambda *given: given[2] * 2)
    check_rows(network)
    network = make_llama()
    check_rows(network)
    network.model.layers[1].input_layernorm = torch.nn.Identity()
    check_rows(network)
    network = make_llama(attention_bias=True, mlp_bias=True)
    check_rows(network)


@torch.inference_mode()
def test_texts_without_a_cache_get_the_librarys_logits() -> None:
    network = make_llama()
    texts = make_texts(3)
    forward = ForwardPass(describe_model(network, make_tiny_tokenizer()))
    for _ in range(2):
        found = forward.read_texts(texts, torch.tensor([3, len(texts[0]) - 1, len(texts[0]) + 5]))
    expected = [read_by_library(network, texts[row])[place] for row, place in ((0, 3), (0, -1), (1, 5))]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-3, atol=1e-3)


def make_texts(count: int) -> list[list[int]]:
    dice = random.Random(count)
    return [[dice.randrange(6, 320) for _ in range(dice.randint(20, 300))] for _ in range(count)]


def read_by_library(network: Any, text: list[int]) -> Tensor:
    logits: Tensor = network(torch.tensor([text])).logits[0]
    return logits


def check_rows(network: Any) -> None:
    """Feed texts to slots of a cache, of some a token, of others many, while others wait."""
    forward = ForwardPass(describe_model(network, make_tiny_tokenizer()))
    forward.cache.reserve(24, 400, 1 << 20)
    dice = random.Random(0)
    texts = make_texts(24)
    expected = [read_by_library(network, text) for text in texts]
    slots = [forward.cache.take_slot() for _ in texts]
    feed(forward, slots, texts, [dice.choice([1, 2, 100]) for _ in texts], expected)
    for _ in range(4):
        counts = [dice.choice([0, 1, 1, 1, 1, 5, 9, 80]) for _ in texts]
        feed(forward, slots, texts, counts, expected)


def feed(
    forward: ForwardPass,
    slots: list[CacheSlot],
    texts: list[list[int]],
    counts: list[int],
    expected: list[Tensor],
) -> None:
    fed = [
        text[len(slot.tokens) : len(slot.tokens) + count]
        for slot, text, count in zip(slots, texts, counts, strict=True)
    ]
    rows = [row for row, tokens in enumerate(fed) if tokens]
    random.Random(1).shuffle(rows)
    found = forward.feed_slots([slots[row] for row in rows], [fed[row] for row in rows])
    right = torch.stack([expected[row][len(slots[row].tokens) - 1] for row in rows])
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)
