"""Packed rows on a GPU: decode steps by recorded graphs are as near to the truth as masks are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl.engines.transformers.forward_pass import DecodeRow, ForwardPass
from agent2rl.engines.transformers.loading import describe_model
from tests.helpers.tiny_models import write_tiny_llama

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LENGTHS = (200, 150, 33, 199)


@torch.inference_mode()
def test_rows_of_different_lengths_that_grow_turn_by_turn_get_the_logits_of_whole_texts(
    tmp_path: Path,
) -> None:
    directory = write_tiny_llama(tmp_path)
    texts = [torch.randint(6, 250, (length,)).tolist() for length in LENGTHS]
    truth = _read_in_turns(directory, torch.float32, texts, turns=1)

    whole = _read_in_turns(directory, torch.bfloat16, texts, turns=1)
    in_turns = _read_in_turns(directory, torch.bfloat16, texts, turns=5)

    assert _compare(in_turns, truth) < 1.5 * _compare(whole, truth)


@torch.inference_mode()
def test_recorded_steps_choose_what_single_passes_choose(tmp_path: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(write_tiny_llama(tmp_path), dtype=torch.bfloat16)
    model = describe_model(network.cuda(), AutoTokenizer.from_pretrained(tmp_path))
    forward = ForwardPass(model)
    forward.cache.reserve(3, 300, 1 << 20)
    slots = [forward.cache.take_slot() for _ in range(3)]
    forward.feed_slots(slots, [list(range(6, 6 + count)) for count in (40, 7, 90)])
    assert forward.graphs is not None
    rows = [DecodeRow(slot, 9, 0, 0) for slot in slots]
    tokens, _ = forward.graphs.decode_steps(rows, 0.0, 4)
    for row, slot in enumerate(slots):
        text = [*slot.tokens, 9, *(step[row] for step in tokens)]
        keep = torch.arange(len(slot.tokens), len(text) - 1, device="cuda")
        logits = forward.read_texts([text], keep).float()
        chosen = logits.gather(1, torch.tensor(text[len(slot.tokens) + 1 :], device="cuda")[:, None])[:, 0]
        assert bool((chosen >= logits.amax(1) - 0.05 * logits.abs().amax(1)).all())


def _compare(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().mean() / right.abs().mean())


def _read_in_turns(directory: Path, dtype: torch.dtype, texts: list[list[int]], turns: int) -> Tensor:
    """Return the logits after each text, which is fed in parts."""
    network: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    model = describe_model(network.cuda(), AutoTokenizer.from_pretrained(directory))
    forward = ForwardPass(model)
    forward.cache.reserve(len(texts), 300, 1 << 20)
    slots = [forward.cache.take_slot() for _ in texts]
    for turn in range(turns):
        parts = [text[len(text) * turn // turns : len(text) * (turn + 1) // turns] for text in texts]
        logits = forward.feed_slots(slots, parts)
    return logits.float()
