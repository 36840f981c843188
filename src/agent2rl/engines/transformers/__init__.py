"""Runs a model directory with transformers, on CPU (float32) or one GPU (bfloat16).

Greedy replies in float32 do not depend on the batch. Nothing in the directory is executed: weights are
safetensors, remote code is never trusted, and the chat template runs in a sandbox (see `prompts`). Prompts
with a common prefix share one prefill; conversations keep their KV cache, so that a turn processes only what
is new; the scorer sums the log-probabilities of given replies. Not covered: several GPUs, quantized weights,
and models with a recurrent state instead of keys and values.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from agent2rl.core.engine import (
    Chat,
    ChatMessage,
    Completion,
    Conversations,
    Engine,
    OpenEngine,
    Sampling,
)
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.engines.prompts.continuation import EncodedChat
from agent2rl.engines.transformers.decoding import (
    BatchDecoder,
    BatchLimits,
    FollowUp,
    GenerationRequest,
    build_non_finite_error,
)
from agent2rl.engines.transformers.forked_workers import (
    ForkedWorkers,
    count_workers,
    deal_shares,
    join_shares,
)
from agent2rl.engines.transformers.forward_pass import build_out_of_memory_error, is_out_of_memory
from agent2rl.engines.transformers.kv_cache import CacheSlot
from agent2rl.engines.transformers.loading import LoadedModel, load_model

# Shared prefixes: common instructions, worked examples or game history are processed once

MIN_SHARED_TOKENS = 64
"""Minimum common tokens of different texts that are worth a separate pass."""
MIN_REPEATED_TOKENS = 16
"""Minimum tokens of a shorter text that are worth one, if several requests have it: episodes of one game."""


def find_shared_prefixes(
    requests: Sequence[GenerationRequest],
) -> Iterator[tuple[list[int], list[GenerationRequest]]]:
    """Yield common prefixes with the requests that have them; each request keeps at least one token."""
    alike: dict[tuple[int, ...], list[GenerationRequest]] = {}
    for request in requests:
        if not request.has_slot and len(request.ids) > MIN_REPEATED_TOKENS:
            alike.setdefault(tuple(request.ids[:MIN_SHARED_TOKENS]), []).append(request)
    for group in alike.values():
        if len(group) > 1:
            texts = [request.ids[:-1] for request in group]
            # The common prefix of the smallest and the largest is common to all.
            yield _find_common_prefix(min(texts), max(texts)), group


def _find_common_prefix(first: list[int], last: list[int]) -> list[int]:
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((place for place, (a, b) in pairs if a != b), min(len(first), len(last)))]


# Conversations with a KV cache, so that a turn processes only new tokens

AnswerReply = Callable[[str, Completion], Chat]
"""Returns the messages that follow a reply in the conversation of this name; none if it is over."""


class CachedConversations:
    """Conversations that keep their slots of the KV cache, as long as those hold at most `tokens` tokens."""

    def __init__(self, engine: "TransformersEngine", tokens: int) -> None:
        self.chats: dict[str, Chat] = {}
        self._engine = engine
        self._tokens = tokens
        self._encoded: dict[str, EncodedChat] = {}
        self._slots: dict[str, CacheSlot] = {}
        """In order of use, the most recent last."""

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        requests = self._build_requests(turns, sampling)
        self._engine.run_requests([], list(requests.values()), sampling)
        replies = self._finish_turns(requests, sampling)
        self._release_oldest_slots()
        return replies

    def play(self, turns: Mapping[str, Chat], answer: AnswerReply, sampling: Sampling) -> None:
        """Go on with each conversation until `answer` returns no message to its reply.

        Conversations do not wait for each other: one may be in its tenth turn while another is in its second.
        The replies are those that `extend` gives. A conversation that has ended is dropped.
        """
        names: dict[GenerationRequest, str] = {}

        def start_turns(turns: Mapping[str, Chat]) -> list[GenerationRequest]:
            """Return a request for each turn. Where the context is full, there is none."""
            started: list[GenerationRequest] = []
            while turns:
                requests = self._build_requests(turns, sampling)
                full = {
                    name: request for name, request in requests.items() if self._engine.fills_context(request)
                }
                fitting = {name: request for name, request in requests.items() if name not in full}
                names.update({request: name for name, request in fitting.items()})
                started += fitting.values()
                turns = answer_replies(full)
            return started

        def answer_replies(requests: Mapping[str, GenerationRequest]) -> dict[str, Chat]:
            replies = self._finish_turns(requests, sampling)
            answers = {name: answer(name, reply) for name, reply in replies.items()}
            self.drop([name for name, messages in answers.items() if not messages])
            return {name: messages for name, messages in answers.items() if messages}

        def follow_up(ended: Sequence[GenerationRequest]) -> list[GenerationRequest]:
            return start_turns(answer_replies({names.pop(request): request for request in ended}))

        self._engine.run_requests([], start_turns(turns), sampling, follow_up)

    def _build_requests(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, GenerationRequest]:
        """Append messages to the conversations, and return the requests for the replies."""
        for name, messages in turns.items():
            self.chats[name] = self.chats.get(name, ()) + messages
        # A turn's random numbers depend on the conversation and its length, not on the rest of the batch.
        encoded = self._engine.prompts.select_encoder(sampling).continue_chats(
            [self.chats[name] for name in turns], [self._encoded.get(name) for name in turns]
        )
        self._encoded.update(zip(turns, encoded, strict=True))
        return {
            name: GenerationRequest(
                part.ids, f"{sampling.seed}:{name}:{part.messages}", self._slots.pop(name, None), keep=True
            )
            for name, part in zip(turns, encoded, strict=True)
        }

    def _finish_turns(
        self, requests: Mapping[str, GenerationRequest], sampling: Sampling
    ) -> dict[str, Completion]:
        """Append the replies to the conversations, and return them."""
        replies = {}
        for name, request in requests.items():
            replies[name] = self._engine.build_completion(request, sampling)
            self.chats[name] = (*self.chats[name], ChatMessage("assistant", replies[name].text))
            if request.slot is not None:
                self._slots[name] = request.slot
        self.record_turn(requests)
        return replies

    def record_turn(self, requests: Mapping[str, GenerationRequest]) -> None:
        """Do something with the tokens of a turn. Overridden where a training records them."""

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.chats.pop(name, None)
            self._encoded.pop(name, None)
            if slot := self._slots.pop(name, None):
                self._engine.decoder.release_slots([slot])

    def _release_oldest_slots(self) -> None:
        total = sum(len(slot.tokens) for slot in self._slots.values())
        while total > self._tokens:
            slot = self._slots.pop(next(iter(self._slots)))
            total -= len(slot.tokens)
            self._engine.decoder.release_slots([slot])


# Log-probabilities of given replies: one pass over prompt and reply, no sampling

MAX_BATCH_LOGITS = 1 << 26
"""Numbers in one batch of logits."""


class LogprobScorer:
    def __init__(self, decoder: BatchDecoder) -> None:
        self.decoder = decoder
        self.model = decoder.model

    @torch.inference_mode()
    def score_replies(self, prompts: Sequence[list[int]], replies: Sequence[list[int]]) -> list[float]:
        pairs = list(zip(prompts, replies, strict=True))
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]) + len(pairs[index][1]))
        scores = [0.0] * len(pairs)
        for group in self._group_by_length([index for index in order if pairs[index][1]], pairs):
            for index, value in zip(group, self._score_group([pairs[index] for index in group]), strict=True):
                scores[index] = value
        return scores

    def _group_by_length(
        self, order: list[int], pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[list[int]]:
        group: list[int] = []
        for index in order:
            extended = [*group, index]
            tokens = sum(len(pairs[member][0]) + len(pairs[member][1]) for member in extended)
            logits = sum(len(pairs[member][1]) for member in extended) * self.model.vocabulary
            if group and (tokens > self.decoder.room.read or logits > MAX_BATCH_LOGITS):
                yield group
                extended = [index]
            group = extended
        if group:
            yield group

    def _score_group(self, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
        try:
            return self._score_in_one_pass(pairs)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if len(pairs) == 1:
            raise build_out_of_memory_error()
        self.decoder.forward.release_memory()
        half = len(pairs) // 2
        return self._score_group(pairs[:half]) + self._score_group(pairs[half:])

    def _score_in_one_pass(self, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
        texts = [prompt + reply for prompt, reply in pairs]
        counts = [len(reply) for _, reply in pairs]
        # The logits at a position predict the next token.
        ends = accumulate(map(len, texts))
        places = [
            place
            for end, count in zip(ends, counts, strict=True)
            for place in range(end - count - 1, end - 1)
        ]
        device = self.model.device
        logits = self.decoder.forward.read_texts(texts, torch.tensor(places, device=device)).float()
        tokens = torch.tensor([token for _, reply in pairs for token in reply], device=device)
        chosen = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=1)
        # In 64 bits, because the sum may have thousands of terms.
        sums = [float(part.double().sum()) for part in torch.split(chosen, counts)]
        if not all(map(math.isfinite, sums)):
            raise build_non_finite_error()
        return sums


# The engine

CPU_BYTES = 2 << 30
"""Memory for the KV cache, of running and of waiting conversations."""
CUDA_SHARE = 0.5
"""The same, as a share of the GPU memory that is free once the model is loaded."""
MAX_ROWS = {"cpu": 256, "cuda": 512}
MAX_PREFILL_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens per prefill pass; larger passes are no faster."""


def measure_batch_limits(model: LoadedModel) -> BatchLimits:
    """Return the batch limits that fit into this machine's memory."""
    kind = model.device.type
    memory = int(torch.cuda.mem_get_info()[0] * CUDA_SHARE) if kind == "cuda" else CPU_BYTES
    return BatchLimits(MAX_ROWS[kind], max(1, memory // model.token_bytes), MAX_PREFILL_TOKENS[kind])


class TransformersEngine:
    def __init__(self, model: LoadedModel, limits: BatchLimits) -> None:
        self.model = model
        self.limits = limits
        self.prompts = PromptEncoder(model.tokenizer, model.vocabulary, model.context, model.chat_format)
        self.decoder = BatchDecoder(model, limits)

    def generate(
        self, chats: Sequence[Chat], sampling: Sampling, places: Sequence[int] | None = None
    ) -> list[Completion]:
        """Return one completion for each chat, in order.

        If these are some of many chats, `places` are their positions among all: then they get the same
        replies as they would get among all.
        """
        indexes = range(len(chats)) if places is None else places
        requests = [GenerationRequest([], f"{sampling.seed}:{index}") for index in indexes]
        return self.run_requests(chats, requests, sampling)

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        tokens = [self.prompts.encode_text(text) for text in continuations]
        return LogprobScorer(self.decoder).score_replies(self.prompts.encode_chats(chats), tokens)

    def run_requests(
        self,
        chats: Sequence[Chat],
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        follow_up: FollowUp | None = None,
    ) -> list[Completion]:
        """Run all requests, and those that follow up; return the completions of the former.

        Requests without tokens get those of their chats.
        """
        unread = [place for place, request in enumerate(requests) if not request.ids]
        rows = self.prompts.select_encoder(sampling).encode_chats_unbounded(
            [chats[place] for place in unread]
        )
        for place, ids in zip(unread, rows, strict=True):
            requests[place].ids = ids if requests[place].keep else self.prompts.require_fitting(ids)
        if sampling.max_tokens > 0:
            fitting = [request for request in requests if not self.fills_context(request)]
            shared = [
                (GenerationRequest(common, "", keep=True), group)
                for common, group in find_shared_prefixes(fitting)
            ]
            heads = [head for head, _ in shared]
            # A head needs no reply, but a prefill ends with the choice of one token.
            self.decoder.run(heads, Sampling(max_tokens=1))
            for head, group in shared:
                for request in group:
                    request.shared = head.slot
            self.decoder.run(fitting, sampling, follow_up)
            self.decoder.release_slots([head.slot for head in heads if head.slot is not None])
        return [self.build_completion(request, sampling) for request in requests]

    def conversations(self) -> Conversations:
        return CachedConversations(self, self.limits.tokens)

    def fork_processes(self, most: int) -> AbstractContextManager[Engine]:
        size = min(most, count_workers(self.model.network))
        return ForkedEngine(self, size) if size > 1 else nullcontext(self)

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """Return the text that the model reads for each chat."""
        return self.prompts.render(chats)

    @property
    def templated(self) -> bool:
        return self.prompts.templated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.prompts.close()
        self.decoder.forward.release_memory()

    def fills_context(self, request: GenerationRequest) -> bool:
        return len(request.ids) >= self.model.context

    def build_completion(self, request: GenerationRequest, sampling: Sampling) -> Completion:
        text = self.model.tokenizer.decode(request.reply, skip_special_tokens=True)
        assert isinstance(text, str)
        for stop in filter(None, sampling.stop):
            text = text.partition(stop)[0]
        return Completion(text, tokens=len(request.reply), full=self.fills_context(request))


# Several processes, each with one core, its own KV cache and its own conversations


class EngineShare:
    """What one of the processes does."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine
        self._conversations: dict[int, Conversations] = defaultdict(engine.conversations)

    def generate(self, chats: Sequence[Chat], places: Sequence[int], sampling: Sampling) -> list[Completion]:
        return self._engine.generate(chats, sampling, places)

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        return self._engine.logprobs(chats, continuations)

    def extend(self, number: int, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        return self._conversations[number].extend(turns, sampling)

    def drop(self, number: int, names: Iterable[str]) -> None:
        self._conversations[number].drop(names)


class ForkedEngine:
    """Deals chats out to several processes. Each conversation stays in one of them."""

    def __init__(self, engine: TransformersEngine, size: int) -> None:
        self.size = size
        self.templated = engine.templated
        self._model = engine.model
        self._limits = replace(engine.limits, tokens=max(1, engine.limits.tokens // size))
        self._workers = ForkedWorkers(size, self._open_share)
        self._numbers = count()

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        dealt = zip(deal_shares(chats, self.size), deal_shares(range(len(chats)), self.size), strict=True)
        return join_shares(self.run(EngineShare.generate, [(*share, sampling) for share in dealt]))

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        dealt = zip(deal_shares(chats, self.size), deal_shares(continuations, self.size), strict=True)
        return join_shares(self.run(EngineShare.logprobs, list(dealt)))

    def conversations(self) -> Conversations:
        return ForkedConversations(self, next(self._numbers))

    def run(self, method: Callable[..., Any], shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of each process's share with its own arguments."""
        return self._workers.run([(method, arguments) for arguments in shares])

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    @contextmanager
    def _open_share(self, _: int) -> Iterator[Callable[[Any], Any]]:
        # A new engine, because a chat template runs in a process that only one of these can talk to.
        with TransformersEngine(self._model, replace(self._limits)) as engine:
            share = EngineShare(engine)
            yield lambda request: request[0](share, *request[1])


class ForkedConversations:
    """Conversations that are dealt out to several processes: a new one goes where the fewest are."""

    def __init__(self, engine: ForkedEngine, number: int) -> None:
        self._engine = engine
        self._number = number
        self._names: list[set[str]] = [set() for _ in range(engine.size)]

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        for name in turns:
            if not any(name in names for names in self._names):
                min(self._names, key=len).add(name)
        shares = [{name: turns[name] for name in turns if name in names} for names in self._names]
        answers = self._engine.run(EngineShare.extend, [(self._number, share, sampling) for share in shares])
        replies = {name: reply for answer in answers for name, reply in answer.items()}
        return {name: replies[name] for name in turns}

    def drop(self, names: Iterable[str]) -> None:
        if dropped := set(names):
            self._engine.run(EngineShare.drop, [(self._number, dropped & own) for own in self._names])
            for own in self._names:
                own -= dropped


def open_engine(directory: Path) -> TransformersEngine:
    model = load_model(directory)
    return TransformersEngine(model, measure_batch_limits(model))


ENGINE: OpenEngine = open_engine
