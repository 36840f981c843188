"""Turn conversations into training sequences: games that a model played, demonstrations, or any other chats.

    exchanges = episode.exchanges                    # pairs of an observation and the reply to it
    chat = build_chat(tokenizer, EVALUATOR.prompt, exchanges, EVALUATOR.get_kind(game))
    rows = encode_conversations(model, tokenizer, [chat, ...])
    imitate(model, rows, SftSettings(), TrainingProgress("sft"))

The tokens are those that the model would read and generate in grading: each reply follows exactly the tokens
that the grader would show before it. A conversation that outgrows the model's context is used as far as it
fits. Chat templates run in their own process, as in grading.
"""

import time
from collections.abc import Iterable, Sequence, Sized
from itertools import islice
from typing import Protocol, cast

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage, Sampling
from agent2rl.core.errors import UserError
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.training.demonstrations import Demonstration
from agent2rl.training.policy import TrainingSequence, build_sequences

CHATS_PER_BATCH = 32
"""Conversations that are rendered and tokenized in one call."""
REPORT_SECONDS = 5.0
"""Time between two lines of progress."""


class ObservationFormatter(Protocol):
    """Turns observations into messages, for models with a chat template or without."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = "") -> Chat: ...

    def build_next_message(self, seen: str, as_chat: bool) -> Chat: ...


def build_chat(
    tokenizer: PreTrainedTokenizerBase,
    prompt: ObservationFormatter,
    exchanges: Iterable[tuple[str, str]],
    kind: str = "",
) -> Chat:
    """Return an episode as the chat that the grader would have with the model.

    An exchange is an observation and the reply to it. `kind` is the kind of game, if kinds have different
    prompts.
    """
    as_chat = bool(tokenizer.chat_template)
    chat: Chat = ()
    for observation, reply in exchanges:
        messages = (
            prompt.build_next_message(observation, as_chat)
            if chat
            else prompt.build_first_message(observation, as_chat, kind)
        )
        chat = (*chat, *messages, ChatMessage("assistant", reply))
    return chat


def encode_conversations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chats: Iterable[Sequence[ChatMessage]],
    report_seconds: float = REPORT_SECONDS,
    plain: bool = False,
) -> list[TrainingSequence]:
    """Return the training sequences of chats, in order; the model learns the assistant's messages.

    `plain` encodes them as plain text, as for a model without a chat template.

    Prints its progress every few seconds, because thousands of long chats take minutes.
    """
    end = require_end_token(tokenizer)
    total = len(chats) if isinstance(chats, Sized) else None
    progress = EncodingProgress("conversations", total, report_seconds)
    rows: list[TrainingSequence] = []
    encoder = open_prompt_encoder(model, tokenizer).select_encoder(Sampling(plain=plain))
    try:
        remaining = iter(chats)
        while batch := list(islice(remaining, CHATS_PER_BATCH)):
            for sequences in encode_batch(encoder, batch, end):
                rows += sequences
                progress.add_rows(len(sequences))
            progress.finish_chats(len(batch))
    finally:
        encoder.close()
    return rows


def encode_demonstrations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: ObservationFormatter,
    demonstrations: Iterable[Demonstration],
    plain: bool = False,
) -> list[TrainingSequence]:
    """Return the training sequences of demonstrations, the same as those of the expert's own games.

    Set `plain` if the grader lets every model continue plain text (its `sampling.plain`).
    """
    chats = [
        build_chat(tokenizer, prompt, demonstration.exchanges, demonstration.kind)
        for demonstration in demonstrations
        if demonstration.turns
    ]
    return encode_conversations(model, tokenizer, chats, plain=plain)


class EncodingProgress:
    """Prints every few seconds how many conversations are encoded, and how many training sequences result."""

    def __init__(self, noun: str, total: int | None, every_seconds: float = REPORT_SECONDS) -> None:
        self._noun, self._of = noun, "" if total is None else f" of {total}"
        self._every_seconds = every_seconds
        self._done = self._rows = 0
        self._reported_at = time.monotonic()

    def add_rows(self, count: int) -> None:
        self._rows += count

    def finish_chats(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._reported_at >= self._every_seconds:
            print(f"encoded {self._done}{self._of} {self._noun}: {self._rows} training sequences", flush=True)
            self._reported_at = time.monotonic()


def open_prompt_encoder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PromptEncoder:
    """Return an encoder with the vocabulary and the context of the model. The caller closes it."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    vocabulary = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    return PromptEncoder(tokenizer, vocabulary, context)


def encode_batch(
    encoder: PromptEncoder, chats: Sequence[Sequence[ChatMessage]], end: int
) -> list[tuple[TrainingSequence, ...]]:
    """Return the sequences of each chat. `end` is the token that ends a reply."""
    replies = [
        (number, index)
        for number, chat in enumerate(chats)
        for index, message in enumerate(chat)
        if message.role == "assistant"
    ]
    if silent := set(range(len(chats))) - {number for number, _ in replies}:
        raise UserError(
            f"A conversation has no assistant message, so there is nothing to learn: {chats[min(silent)]!r}.",
            "Leave it out.",
        )
    read = encoder.encode_chats_unbounded([tuple(chats[number][:index]) for number, index in replies])
    turns: list[list[tuple[list[int], list[int]]]] = [[] for _ in chats]
    for (number, index), before in zip(replies, read, strict=True):
        reply = [*encoder.encode_text(chats[number][index].content), end]
        if len(before) + len(reply) <= encoder.context:
            turns[number].append((before, reply))
    return [build_sequences(chat_turns) for chat_turns in turns]


def require_end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that ends a reply."""
    if tokenizer.eos_token_id is None:
        raise UserError("The tokenizer has no end-of-sequence token.", "Set tokenizer.eos_token.")
    return int(tokenizer.eos_token_id)
