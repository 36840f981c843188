"""Samples answers online, many at once: batched by length, prompts read once for all their answers, and rows
that have ended leave the batch.

The same call with the same seed gives the same samples on the same machine. For grading there are engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.training import prompts as asked
from agent2rl.training.models import precision
from agent2rl.training.policy import Reading, Tokens, read

CROWDED = 0.75
"""Once fewer of the rows than this are still going, the others are dropped: a copy of the cache each time."""


@dataclass(frozen=True)
class SampleSettings:
    max_tokens: int = 256
    temperature: float = 1.0
    """0 is greedy."""
    rows: int = 128
    """Answers at once."""
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    tokens: tuple[int, ...]
    """With the token that ended it."""
    log_probs: tuple[float, ...]
    """Of each token, at the temperature that it was sampled at."""
    text: str
    finished: bool
    """Whether it ended by itself."""


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    settings: SampleSettings,
    times: int = 1,
) -> list[list[Sample]]:
    """`times` answers to each prompt, in the order of the prompts."""
    encoded = asked.encode(tokenizer, prompts)
    ends = asked.ends(model, tokenizer)
    dice = torch.Generator(model.device).manual_seed(settings.seed)
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]), reverse=True)
    many = max(1, settings.rows // times)
    found: dict[int, list[Sample]] = {}
    for start in range(0, len(order), many):
        batch = order[start : start + many]
        rows = _batch(model, [encoded[index] for index in batch], times, settings, ends, dice)
        texts = tokenizer.batch_decode([tokens for tokens, _ in rows], skip_special_tokens=True)
        samples = [
            Sample(tuple(tokens), tuple(logs), text, tokens[-1] in ends)
            for (tokens, logs), text in zip(rows, texts, strict=True)
        ]
        found |= {index: samples[row * times : (row + 1) * times] for row, index in enumerate(batch)}
    return [found[index] for index in range(len(prompts))]


@torch.no_grad()
def _batch(
    model: PreTrainedModel,
    prompts: Sequence[Tokens],
    times: int,
    settings: SampleSettings,
    ends: list[int],
    dice: torch.Generator,
) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of each answer, cut off after its end."""
    with precision(model):
        reading = read(model, prompts, times)
        tokens, logs = _go_on(model, reading, settings, torch.tensor(ends, device=model.device), dice)
    ended = torch.isin(tokens, torch.tensor(ends, device=tokens.device)).int()
    lengths = torch.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1]).tolist()
    return [
        (row[:length], log[:length])
        for row, log, length in zip(tokens.tolist(), logs.tolist(), lengths, strict=True)
    ]


def _go_on(
    model: PreTrainedModel, reading: Reading, settings: SampleSettings, ends: Tensor, dice: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Token by token, a row for each answer; what stands behind a row's end means nothing."""
    count, most = len(reading.logits), settings.max_tokens
    tokens = torch.zeros(count, most, dtype=torch.long, device=model.device)
    logs = torch.zeros(count, most, device=model.device)
    seen = reading.mask.shape[1]
    mask = torch.cat([reading.mask, reading.mask.new_ones(count, most)], 1)
    positions = reading.mask.sum(1, keepdim=True)
    live = torch.arange(count, device=model.device)
    going = torch.ones(count, dtype=torch.bool, device=model.device)
    logits, cache = reading.logits[:, -1], reading.cache
    for step in range(most):
        chosen, tokens_logs = _choose(logits.float(), settings.temperature, dice)
        tokens[live, step], logs[live, step] = chosen, tokens_logs
        going &= ~torch.isin(chosen, ends)
        left = int(going.sum())
        if left == 0 or step + 1 == most:
            return tokens[:, : step + 1], logs[:, : step + 1]
        if left < CROWDED * len(live):
            kept = going.nonzero().squeeze(1)
            cache.batch_select_indices(kept)
            live, mask, positions, chosen, going = (
                part[kept] for part in (live, mask, positions, chosen, going)
            )
        out = model(
            input_ids=chosen[:, None],
            attention_mask=mask[:, : seen + step + 1],
            position_ids=positions + step,
            past_key_values=cache,
        )
        logits = out.logits[:, -1]
    raise AssertionError("an answer has at least one token")


def _choose(logits: Tensor, temperature: float, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next token of each row, and its log-probability."""
    if temperature == 0:
        every = torch.log_softmax(logits, -1)
        chosen = every.argmax(-1)
    else:
        every = torch.log_softmax(logits / temperature, -1)
        chosen = torch.multinomial(every.exp(), 1, generator=dice).squeeze(1)
    return chosen, every.gather(1, chosen[:, None]).squeeze(1)
