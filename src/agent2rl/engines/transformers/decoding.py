"""The generation loop: continuous batching of many requests in the slots of one KV cache.

A request takes a slot, or has the one that an earlier turn of its conversation left, and its unread tokens
are prefilled, many requests in one packed pass. Then all running requests get one token per step. When a
quarter of the rows are free, waiting requests are admitted, among them the next turns of conversations. On a
GPU several steps run between two looks of the host. On a CPU requests are admitted at once, and prefilled in
the pass in which others decode. When memory runs out, the cache is emptied, all requests are queued again
with their replies so far, and the batch is half as large from then on.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.forward_pass import (
    DecodeRow,
    ForwardPass,
    build_out_of_memory_error,
    is_out_of_memory,
)
from agent2rl.engines.transformers.kv_cache import CacheSlot
from agent2rl.engines.transformers.loading import LoadedModel
from agent2rl.engines.transformers.token_choice import choose_tokens, derive_noise_key

logger = logging.getLogger(__name__)

REFILL_SHARE = 0.75
"""Waiting requests are admitted when no larger share of the rows that could be in use is in use."""
STEPS_PER_LOOK = 4
"""Steps on a GPU between two looks of the host; those after a row's end are wasted."""


def build_non_finite_error() -> GradingError:
    return GradingError(
        "The model's output is not a number (NaN or infinity).",
        "Its weights contain such numbers or overflow. Train with a lower learning rate.",
    )


@dataclass
class BatchLimits:
    """Maximum size of a batch; halved when memory runs out."""

    rows: int
    tokens: int
    """Slots of the cache times their columns."""
    read: int
    """Tokens in one prefill pass."""

    def halve_limits(self) -> None:
        self.rows, self.tokens, self.read = (max(1, n // 2) for n in (self.rows, self.tokens, self.read))


@dataclass(eq=False)
class GenerationRequest:
    """A text to continue, and its reply so far."""

    ids: list[int]
    seed: str
    """Seed of its random numbers."""
    slot: CacheSlot | None = None
    """Where its text, or an earlier part of it, is in the cache."""
    shared: CacheSlot | None = None
    """The slot of another text with the same beginning, which is copied."""
    keep: bool = False
    """Whether the request keeps its slot when the reply has ended."""
    reply: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """Of the reply's tokens at the temperature at which they were sampled."""
    ended: bool = False
    key: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = derive_noise_key(self.seed)

    def __len__(self) -> int:
        return len(self.ids) + len(self.reply)

    @property
    def text(self) -> list[int]:
        return self.ids + self.reply

    @property
    def has_slot(self) -> bool:
        return self.slot is not None and self.slot.index >= 0

    def count_unread_tokens(self) -> int:
        source = self.slot if self.has_slot else self.shared
        return len(self) - (source.count_shared_tokens(self.text) if source else 0)


FollowUp = Callable[[Sequence[GenerationRequest]], Sequence[GenerationRequest]]
"""Returns the requests that follow those that ended."""


class BatchDecoder:
    def __init__(self, model: LoadedModel, room: BatchLimits) -> None:
        self.model = model
        self.room = room
        self.forward = ForwardPass(model)
        self._idle: dict[CacheSlot, None] = {}
        """Slots that no running request uses and that may be taken, the least recently used first."""

    @torch.inference_mode()
    def run(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        follow_up: "FollowUp | None" = None,
    ) -> None:
        """Generate the reply of each request.

        `follow_up` is called with requests as they end, and returns further ones. So the next turn of a
        conversation begins while the replies of others are still generated.
        """
        queue: deque[GenerationRequest] = deque()
        unfinished: list[GenerationRequest] = []
        self._enqueue_requests(requests, queue, unfinished)
        criteria = StopCriteria(self.model, sampling)
        running: list[GenerationRequest] = []
        while queue or running:
            try:
                if self.forward.graphs is None:
                    self._run_mixed_pass(queue, running, criteria)
                else:
                    self._admit_requests(queue, running, criteria)
                    if running:
                        self._decode_on_device(running, criteria)
                fits = True
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # Recover outside this block: the error keeps the tensors of its stack frames alive.
                fits = False
            if not fits:
                queue.extendleft(reversed([request for request in running if not request.ended]))
                running.clear()
                self._halve_batch_limits()
            if follow_up and (ended := [request for request in unfinished if request.ended]):
                unfinished = [request for request in unfinished if not request.ended]
                self._enqueue_requests(follow_up(ended), queue, unfinished)

    def _enqueue_requests(
        self,
        requests: Sequence[GenerationRequest],
        queue: deque[GenerationRequest],
        unfinished: list[GenerationRequest],
    ) -> None:
        for request in requests:
            if request.slot is not None:
                self._idle.pop(request.slot, None)
        queue.extend(self._sort_requests(requests))
        unfinished.extend(requests)

    def release_slots(self, slots: Sequence[CacheSlot]) -> None:
        for slot in slots:
            self._idle.pop(slot, None)
            self.forward.cache.release_slot(slot)

    @staticmethod
    def _sort_requests(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """Sort by length, the longest first, so that no long one is left for last.

        Those with a slot come before those without, which may have to take theirs.
        """
        return sorted(
            requests, key=lambda request: (request.has_slot, request.count_unread_tokens()), reverse=True
        )

    def _halve_batch_limits(self) -> None:
        if self.room.rows == 1:
            raise build_out_of_memory_error()
        self.room.halve_limits()
        logger.debug("Out of memory: continuing with batches of up to %d rows", self.room.rows)
        self._idle.clear()
        self.forward.release_memory()

    # Prefill

    def _admit_requests(
        self, queue: deque[GenerationRequest], running: list[GenerationRequest], criteria: "StopCriteria"
    ) -> None:
        """Prefill as many waiting requests as there is room for, and choose the first token of each."""
        if not queue or len(running) > REFILL_SHARE * min(self.room.rows, len(running) + len(queue)):
            return
        admitted = self._take_fitting_requests(queue, running, criteria.sampling)
        try:
            self._copy_shared_prefixes(admitted)
            for group in self._group_for_prefill(admitted):
                self._prefill_group(group, criteria)
        finally:
            running += [request for request in admitted if not request.ended]

    def _take_fitting_requests(
        self, queue: deque[GenerationRequest], running: Sequence[GenerationRequest], sampling: Sampling
    ) -> list[GenerationRequest]:
        """Take requests from the queue as far as rows and memory allow, at least one, each with a slot."""
        cache = self.forward.cache
        if not cache.count_held_slots():
            longest = max(len(request.ids) for request in queue) + sampling.max_tokens + 1
            if not cache.has_room(min(len(queue), self.room.rows), longest):
                cache.clear()  # its shape belongs to other texts
        admitted: list[GenerationRequest] = []
        slots, columns = cache.count_held_slots(), 0
        while queue and len(running) + len(admitted) < self.room.rows:
            request = queue[0]
            needed = max(columns, len(request.ids) + sampling.max_tokens + 1)
            slots += not request.has_slot
            while cache.count_tokens(slots, needed) > self.room.tokens and self._idle:
                self.release_slots([next(iter(self._idle))])
                slots -= 1
            if cache.count_tokens(slots, needed) > self.room.tokens and (running or admitted):
                break
            columns = needed
            admitted.append(queue.popleft())
        cache.reserve(slots, columns, self.room.tokens)
        for request in admitted:
            if not request.has_slot:
                request.slot = cache.take_slot()
        return admitted

    def _copy_shared_prefixes(self, requests: Sequence[GenerationRequest]) -> None:
        targets: dict[tuple[CacheSlot, int], list[CacheSlot]] = {}
        for request in requests:
            slot, shared = request.slot, request.shared
            if slot is not None and not slot.tokens and shared is not None and shared.index >= 0:
                targets.setdefault((shared, shared.count_shared_tokens(request.text)), []).append(slot)
        for (source, count), slots in targets.items():
            if count:
                self.forward.cache.copy_prefix(source, slots, count)

    def _group_for_prefill(self, requests: Sequence[GenerationRequest]) -> Iterator[list[GenerationRequest]]:
        group: list[GenerationRequest] = []
        tokens = 0
        for request in requests:
            unread = request.count_unread_tokens()
            if group and tokens + unread > self.room.read:
                yield group
                group, tokens = [], 0
            group.append(request)
            tokens += unread
        if group:
            yield group

    def _prefill_group(self, group: list[GenerationRequest], criteria: "StopCriteria") -> None:
        group.sort(key=_get_slot_index)
        slots = [_require_slot(request) for request in group]
        unread = [_take_unread_tokens(request) for request in group]
        self._append_tokens(group, self.forward.feed_slots(slots, unread), criteria)

    def _run_mixed_pass(
        self, queue: deque[GenerationRequest], running: list[GenerationRequest], criteria: "StopCriteria"
    ) -> None:
        """Prefill waiting requests in the pass in which the running ones decode.

        Without recorded steps, what a pass costs besides its tokens is much of a small model's time.
        """
        admitted = self._take_fitting_requests(queue, running, criteria.sampling) if queue else []
        decoding = set(running)
        running += admitted
        self._copy_shared_prefixes(admitted)
        for group in self._group_for_prefill(list(running)):
            group.sort(key=_get_slot_index)
            unread = [
                request.reply[-1:] if request in decoding else _take_unread_tokens(request)
                for request in group
            ]
            logits = self.forward.feed_slots([_require_slot(request) for request in group], unread)
            self._append_tokens(group, logits, criteria)
        running[:] = [request for request in running if not request.ended]

    # Decode

    def _decode_on_device(self, running: list[GenerationRequest], criteria: "StopCriteria") -> None:
        """Run several recorded steps; remove the requests that have ended."""
        running.sort(key=_get_slot_index)
        assert self.forward.graphs is not None
        rows = [
            DecodeRow(_require_slot(request), request.reply[-1], request.key, len(request.reply))
            for request in running
        ]
        left = max(criteria.count_tokens_left(request) for request in running)
        tokens, log_probs = self.forward.graphs.decode_steps(
            rows, criteria.sampling.temperature, min(STEPS_PER_LOOK, left)
        )
        for chosen, chosen_log_probs in zip(tokens, log_probs, strict=True):
            for request, row, token, log_prob in zip(running, rows, chosen, chosen_log_probs, strict=True):
                if not request.ended:
                    # The step has written the token before into the cache, not the one that it
                    # chose.
                    row.slot.tokens.append(request.reply[-1])
                    self._append_token(request, token, log_prob)
                    request.ended = criteria.ends_by_token(request)
        self._finish_requests(running, criteria, len(tokens))
        running[:] = [request for request in running if not request.ended]

    def _append_tokens(
        self, requests: Sequence[GenerationRequest], logits: torch.Tensor, criteria: "StopCriteria"
    ) -> None:
        """Choose a token for each request and append it."""
        device = logits.device
        choice = choose_tokens(
            logits,
            criteria.sampling.temperature or None,
            torch.tensor([request.key for request in requests], device=device),
            torch.tensor([len(request.reply) for request in requests], device=device),
        )
        doubtful = choice.doubtful.tolist() if choice.doubtful is not None else [False] * len(requests)
        pairs = zip(choice.tokens.tolist(), choice.log_probs.tolist(), strict=True)
        for request, (token, log_prob), unsure in zip(requests, pairs, doubtful, strict=True):
            if unsure:
                token, log_prob = self._choose_token_alone(request, criteria.sampling)
            self._append_token(request, token, log_prob)
            request.ended = criteria.ends_by_token(request)
        self._finish_requests(requests, criteria, 1)

    @staticmethod
    def _append_token(request: GenerationRequest, token: int, log_prob: float) -> None:
        if not math.isfinite(log_prob):
            raise build_non_finite_error()
        request.reply.append(token)
        request.log_probs.append(log_prob)

    def _choose_token_alone(self, request: GenerationRequest, sampling: Sampling) -> tuple[int, float]:
        """Choose the next token in a pass of its own, if rounding could change the choice."""
        device = self.model.device
        text = request.text
        logits = self.forward.read_texts([text], torch.tensor([len(text) - 1], device=device))
        choice = choose_tokens(
            logits,
            sampling.temperature or None,
            torch.tensor([request.key], device=device),
            torch.tensor([len(request.reply)], device=device),
        )
        return int(choice.tokens[0]), float(choice.log_probs[0])

    def _finish_requests(
        self, requests: Sequence[GenerationRequest], criteria: "StopCriteria", newest: int
    ) -> None:
        """Cut replies at stop strings, and free the slots of requests that have ended."""
        criteria.cut_at_stop_strings(requests, newest)
        for request in requests:
            if request.ended:
                slot = _require_slot(request)
                if request.keep:
                    # The token that was chosen last was never fed, and steps after the end fed
                    # others.
                    del slot.tokens[len(request) - 1 :]
                    self._idle[slot] = None
                else:
                    self.release_slots([slot])


def _require_slot(request: GenerationRequest) -> CacheSlot:
    assert request.slot is not None
    return request.slot


def _take_unread_tokens(request: GenerationRequest) -> list[int]:
    """Return the tokens that are not in the request's slot, and remove those from it that differ."""
    slot, text = _require_slot(request), request.text
    used = slot.count_shared_tokens(text)
    del slot.tokens[used:]
    return text[used:]


def _get_slot_index(request: GenerationRequest) -> int:
    return _require_slot(request).index


class StopCriteria:
    """Decides when a reply has ended: an end token, a stop string, the token limit, or a full context."""

    def __init__(self, model: LoadedModel, sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.stops = tuple(filter(None, sampling.stop))
        # Enough tokens for any stop string that the newest token can complete: each has at least a byte.
        self.tail = max((len(stop.encode()) for stop in self.stops), default=0) + 4

    def count_tokens_left(self, request: GenerationRequest) -> int:
        return min(self.sampling.max_tokens - len(request.reply), self.model.context - len(request))

    def ends_by_token(self, request: GenerationRequest) -> bool:
        return request.reply[-1] in self.model.ends or self.count_tokens_left(request) <= 0

    def cut_at_stop_strings(self, requests: Sequence[GenerationRequest], newest: int) -> None:
        """End replies in whose newest tokens a stop string appears, with the token that completes it."""
        if not self.stops:
            return
        tails = [request.reply[-self.tail - newest + 1 :] for request in requests]
        texts = self.model.tokenizer.batch_decode(tails, skip_special_tokens=True)
        for request, tail, text in zip(requests, tails, texts, strict=True):
            if self._has_stop(text):
                kept = len(request.reply) - len(tail) + self._count_tokens_up_to_stop(tail, newest)
                del request.reply[kept:], request.log_probs[kept:]
                request.ended = True

    def _count_tokens_up_to_stop(self, tokens: Sequence[int], newest: int) -> int:
        """Return how many tokens it takes until a stop string is complete."""
        for count in range(max(1, len(tokens) - newest + 1), len(tokens)):
            text = self.model.tokenizer.decode(list(tokens[:count]), skip_special_tokens=True)
            if self._has_stop(str(text)):
                return count
        return len(tokens)

    def _has_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.stops)
