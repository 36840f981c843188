"""The generation loop: continuous batching of many requests, with one token per row and step.

Requests are sorted by their tokens left to prefill and join the batch in groups of similar length,
left-padded, as far as rows and tokens allow. When a quarter of the rows have ended, the rest and the next
requests are copied into a new batch. When memory runs out, all requests are queued again with their replies
so far, and the batch is half as large from then on.

The next token depends on the text alone and not on the batch: sampling adds Gumbel noise that is a function
of the request, the step and the token, and if the best two sums are closer than float32 rounding, the row is
run alone. bfloat16 rounds too coarsely for that and may differ across batches.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.forward_pass import (
    ForwardPass,
    build_out_of_memory_error,
    is_out_of_memory,
)
from agent2rl.engines.transformers.kv_cache import BatchKVCache, CachedPrefix
from agent2rl.engines.transformers.loading import LoadedModel

logger = logging.getLogger(__name__)
# Choosing the next token, independent of the batch

ROUNDING = 5e-5
"""Tolerance relative to the largest logit: over ten times the differences seen in float32."""
MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)
"""The shifts, factors and stride of SplitMix64, as signed numbers."""
FRACTION = 23
"""Bits of a uniform number: odd multiples of 2**-24, which float32 represents exactly and never 0 or 1."""


@dataclass(frozen=True)
class TokenChoice:
    tokens: list[int]
    doubtful: list[bool]


def choose_tokens(logits: Tensor, temperature: float, keys: list[int]) -> TokenChoice:
    """Choose one token for each row of logits."""
    if temperature <= 0:
        scores, scale = logits, 1.0
    else:
        noise = compute_gumbel_noise(torch.tensor(keys, device=logits.device), logits.shape[1])
        scores, scale = logits.float() / temperature + noise, 1 / temperature
    if logits.dtype == torch.float32:
        best = scores.topk(2)
        margin = ROUNDING * scale * logits.abs().amax(dim=1)
        doubtful = (best.values[:, 0] - best.values[:, 1] <= margin).tolist()
        top, tokens = best.values[:, 0], best.indices[:, 0]
    else:
        top, tokens = scores.max(dim=1)
        doubtful = [False] * len(tokens)
    if not bool(top.isfinite().all()):
        raise build_non_finite_error()
    return TokenChoice(tokens.tolist(), doubtful)


def build_non_finite_error() -> GradingError:
    return GradingError(
        "The model's output is not a number (NaN or infinity).",
        "Its weights contain such numbers or overflow. Train with a lower learning rate.",
    )


def derive_noise_key(seed: str, step: int) -> int:
    """Return the key of a step's noise: 64 bits as a signed number."""
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def compute_gumbel_noise(keys: Tensor, size: int) -> Tensor:
    """Return standard Gumbel noise, (keys, size)."""
    bits = keys[:, None] + torch.arange(1, size + 1, device=keys.device) * STRIDE
    for shift, factor in MIX:
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    uniform = ((bits & (1 << FRACTION) - 1).float() + 0.5) / (1 << FRACTION)
    return -(-uniform.log()).log()


# Batching

REFILL_SHARE = 0.75
"""A batch with a smaller share of live rows is rebuilt if requests are waiting."""
COMPACT_SHARE = 0.4
"""The same if no requests are waiting: copying a row costs as much as some of its steps."""
ALIKE_LENGTH_SHARE = 0.5
"""In a prefill group, the shortest text has at least this share of the longest."""
SHORT_TEXT_TOKENS = 32
"""Texts up to this length may always be grouped."""


@dataclass
class BatchLimits:
    """Maximum size of a batch; halved when memory runs out."""

    rows: int
    tokens: int
    """Rows times the maximum length of a text with its reply."""
    read: int
    """Rows times the longest text in one prefill."""

    def halve_limits(self) -> None:
        self.rows, self.tokens, self.read = (max(1, n // 2) for n in (self.rows, self.tokens, self.read))


@dataclass(eq=False)
class GenerationRequest:
    """A text to continue, and its reply so far."""

    ids: list[int]
    seed: str
    """Seed of its random numbers."""
    prefix: CachedPrefix | None = None
    """KV cache of an earlier request."""
    keep: bool = False
    """Whether to store the KV cache in `prefix` once the reply has ended."""
    reply: list[int] = field(default_factory=list)
    ended: bool = False

    def __len__(self) -> int:
        return len(self.ids) + len(self.reply)

    @property
    def text(self) -> list[int]:
        return self.ids + self.reply

    @property
    def kept(self) -> int:
        """Number of tokens that are in the cache already."""
        return self.prefix.count_shared_tokens(self.text) if self.prefix else 0


@dataclass
class DecodeBatch:
    """Requests and their rows, including ended ones; `alive` are the rows of those that have not ended."""

    requests: list[GenerationRequest]
    rows: BatchKVCache
    alive: list[int] = field(init=False)
    _left: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Ended requests to keep: row, end column (exclusive), tokens."""

    def __post_init__(self) -> None:
        self.alive = [row for row, request in enumerate(self.requests) if not request.ended]

    def finish_requests(self, ended: set[GenerationRequest]) -> None:
        for row in self.alive:
            request = self.requests[row]
            if request in ended:
                request.ended = True
                if request.keep:
                    self._left.append((row, self.rows.span.width, request.text[:-1]))
        self.alive = [row for row in self.alive if not self.requests[row].ended]

    def keep_prefixes(self) -> None:
        """Extract the caches of ended requests; the batch itself must not be used afterwards."""
        for (row, _, _), prefix in zip(self._left, self.rows.extract_prefixes(self._left), strict=True):
            self.requests[row].prefix = prefix
        self._left = []


class BatchDecoder:
    def __init__(self, model: LoadedModel, room: BatchLimits) -> None:
        self.model = model
        self.room = room
        self.forward = ForwardPass(model)

    @torch.inference_mode()
    def run(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Generate the reply of each request."""
        queue = deque(sorted(requests, key=lambda request: len(request) - request.kept, reverse=True))
        ending = StopCriteria(self.model, sampling)
        batch: DecodeBatch | None = None
        while queue or batch:
            try:
                share = REFILL_SHARE if queue else COMPACT_SHARE
                if batch is None or len(batch.alive) <= share * len(batch.requests):
                    batch = self._refill_batch(batch, queue, ending)
                if batch:
                    self._decode_step(batch, ending)
                fits = True
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # Recover outside this block: the error keeps the tensors of its stack frames alive.
                fits = False
            if not fits:
                queue.extendleft([batch.requests[row] for row in reversed(batch.alive)] if batch else [])
                batch = None
                self._halve_batch_limits()

    def _halve_batch_limits(self) -> None:
        if self.room.rows == 1:
            raise build_out_of_memory_error()
        self.room.halve_limits()
        logger.debug("Out of memory: continuing with batches of up to %d rows", self.room.rows)
        self.forward.release_memory()

    def _refill_batch(
        self, batch: DecodeBatch | None, queue: deque[GenerationRequest], ending: "StopCriteria"
    ) -> DecodeBatch | None:
        """Return a batch of the live rows and as many new requests as there is room for."""
        if batch:
            batch.keep_prefixes()
        parts = [(batch.rows, batch.alive)] if batch else []
        requests = [batch.requests[row] for row in batch.alive] if batch else []
        taken: list[GenerationRequest] = []
        try:
            for group in self._take_prefill_groups(queue, requests, ending.sampling):
                taken += group
                newcomers = self._prefill_group(group, ending)
                newcomers.keep_prefixes()
                parts.append((newcomers.rows, newcomers.alive))
                requests = requests + [group[row] for row in newcomers.alive]
            if len(parts) == 1 and len(requests) == len(parts[0][0].starts):
                return DecodeBatch(requests, parts[0][0])  # as they are
            return DecodeBatch(requests, BatchKVCache.concatenate_rows(parts)) if requests else None
        except BaseException:
            queue.extendleft(request for request in reversed(taken) if not request.ended)
            raise

    def _take_prefill_groups(
        self, queue: deque[GenerationRequest], present: list[GenerationRequest], sampling: Sampling
    ) -> Iterator[list[GenerationRequest]]:
        """Take new requests from the queue, in groups for one prefill each."""
        rows, longest = len(present), max(map(len, present), default=0)
        while queue:
            group: list[GenerationRequest] = []
            most = len(queue[0]) - queue[0].kept
            while queue:
                unread = len(queue[0]) - queue[0].kept
                longest = max(longest, len(queue[0]))
                columns = longest + sampling.max_tokens
                fits = rows < self.room.rows and (rows + 1) * columns <= self.room.tokens
                like = most <= SHORT_TEXT_TOKENS or unread >= ALIKE_LENGTH_SHARE * most
                readable = like and (len(group) + 1) * most <= self.room.read
                if (rows and not fits) or (group and not readable):
                    break
                group.append(queue.popleft())
                rows += 1
            if not group:
                return
            yield group

    def _prefill_group(self, group: list[GenerationRequest], ending: "StopCriteria") -> DecodeBatch:
        """Prefill the group's texts and choose the first token of each reply."""
        texts = [(request.prefix, request.kept, len(request) - request.kept) for request in group]
        rows, columns = BatchKVCache.from_prefixes(self.model.depth, self.model.device, texts)
        unread = [request.text[used:] for request, (_, used, _) in zip(group, texts, strict=True)]
        ids = torch.tensor([[0] * (columns - len(tokens)) + tokens for tokens in unread])
        logits = self.forward(rows, ids.to(self.model.device))
        batch = DecodeBatch(group, rows)
        self._append_tokens(batch, logits, ending)
        return batch

    def _decode_step(self, batch: DecodeBatch, ending: "StopCriteria") -> None:
        ids = torch.tensor([request.reply[-1:] for request in batch.requests])
        logits = self.forward.decode_step(batch.rows, ids.to(self.model.device))
        self._append_tokens(batch, logits, ending)

    def _append_tokens(self, batch: DecodeBatch, logits: Tensor, ending: "StopCriteria") -> None:
        sampling, requests = ending.sampling, batch.requests
        keys = (
            [derive_noise_key(request.seed, len(request.reply)) for request in requests]
            if sampling.temperature
            else []
        )
        choice = choose_tokens(logits, sampling.temperature, keys)
        tokens = {
            row: self._choose_token_alone(requests[row], sampling)
            if choice.doubtful[row]
            else choice.tokens[row]
            for row in batch.alive
        }
        for row, token in tokens.items():
            requests[row].reply.append(token)
        batch.finish_requests(ending.find_ended_requests([requests[row] for row in batch.alive]))

    def _choose_token_alone(self, request: GenerationRequest, sampling: Sampling) -> int:
        """Choose the next token in a batch of one, if rounding could change the choice."""
        rows, _ = BatchKVCache.from_prefixes(self.model.depth, self.model.device, [(None, 0, len(request))])
        logits = self.forward(rows, torch.tensor([request.text], device=self.model.device))
        return choose_tokens(
            logits, sampling.temperature, [derive_noise_key(request.seed, len(request.reply))]
        ).tokens[0]


class StopCriteria:
    """Decides when a reply has ended: an end token, a stop string, the token limit, or a full context."""

    def __init__(self, model: LoadedModel, sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.stops = tuple(filter(None, sampling.stop))
        # Enough tokens for any stop string that the newest token can complete: each has at least a byte.
        self.tail = max((len(stop.encode()) for stop in self.stops), default=0) + 4

    def find_ended_requests(self, requests: Sequence[GenerationRequest]) -> set[GenerationRequest]:
        ends, limit, context = self.model.ends, self.sampling.max_tokens, self.model.context
        found = {
            request
            for request in requests
            if request.reply[-1] in ends or len(request.reply) >= limit or len(request) >= context
        }
        if self.stops:
            tails = [request.reply[-self.tail :] for request in requests]
            texts = self.model.tokenizer.batch_decode(tails, skip_special_tokens=True)
            found |= {
                request
                for request, text in zip(requests, texts, strict=True)
                if any(stop in text for stop in self.stops)
            }
        return found
