"""How likely given texts are as replies: one pass over prompt and reply, no sampling.

A sum over the reply's tokens, each as the model would have chosen it at temperature 1. The end of the reply
is not part of it.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from agent2rl.engines.transformers.decoding import BatchDecoder
from agent2rl.engines.transformers.forward_pass import build_out_of_memory_error, is_out_of_memory
from agent2rl.engines.transformers.kv_cache import BatchKVCache
from agent2rl.engines.transformers.token_choice import build_non_finite_error

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
        found = [0.0] * len(pairs)
        for group in self._group_by_length([index for index in order if pairs[index][1]], pairs):
            for index, value in zip(group, self._score_group([pairs[index] for index in group]), strict=True):
                found[index] = value
        return found

    def _group_by_length(
        self, order: list[int], pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[list[int]]:
        group: list[int] = []
        for index in order:
            tried = [*group, index]
            read = max(sum(map(len, pairs[one])) for one in tried) * len(tried)
            logits = max(len(pairs[one][1]) + 1 for one in tried) * len(tried) * self.model.vocabulary
            if group and (read > self.decoder.room.read or logits > MAX_BATCH_LOGITS):
                yield group
                tried = [index]
            group = tried
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
        rows, columns = BatchKVCache.from_prefixes(
            self.model.depth, self.model.device, [(None, 0, len(text)) for text in texts]
        )
        ids = torch.tensor([[0] * (columns - len(text)) + text for text in texts], device=self.model.device)
        keep = max(len(reply) for _, reply in pairs) + 1
        logits = self.decoder.forward(rows, ids, keep=keep)[:, :-1].float()
        # The logits before a token are those that chose it.
        tokens = ids[:, -logits.shape[1] :]
        chosen = logits.gather(2, tokens[:, :, None])[:, :, 0] - logits.logsumexp(dim=2)
        sums = [float(chosen[row, -len(reply) :].double().sum()) for row, (_, reply) in enumerate(pairs)]
        if not all(map(math.isfinite, sums)):
            raise build_non_finite_error()
        return sums
