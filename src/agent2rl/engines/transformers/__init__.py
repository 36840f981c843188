"""Runs a model directory with transformers, on CPU (float32) or one GPU (bfloat16).

Greedy replies in float32 are the same whatever the batch. Nothing in the directory is executed: weights are
safetensors, remote code is never trusted, and the chat template runs in a sandbox (see `prompts`).
Not covered: several GPUs, quantised weights, and models that keep a state instead of keys and values.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from agent2rl.core.engine import Chat, Completion, Conversations, OpenEngine, Sampling
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.engines.transformers.conversations import CachedConversations
from agent2rl.engines.transformers.decoding import BatchDecoder, BatchLimits, GenerationRequest
from agent2rl.engines.transformers.loading import LoadedModel, load_model
from agent2rl.engines.transformers.scoring import LogprobScorer
from agent2rl.engines.transformers.shared_prefixes import find_shared_prefixes

CPU_BYTES = 1 << 30
"""Keys and values of the batch at work; conversations that wait may take as much again."""
CUDA_SHARE = 0.4
"""The same, of the GPU memory that is free once the model is loaded."""
MAX_ROWS = {"cpu": 256, "cuda": 512}
MAX_PREFILL_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens read at once: past this, more at a time is no faster."""


def measure_batch_limits(model: LoadedModel) -> BatchLimits:
    """What fits into this machine's memory."""
    kind = model.device.type
    memory = int(torch.cuda.mem_get_info()[0] * CUDA_SHARE) if kind == "cuda" else CPU_BYTES
    return BatchLimits(MAX_ROWS[kind], max(1, memory // model.token_bytes), MAX_PREFILL_TOKENS[kind])


class TransformersEngine:
    def __init__(self, model: LoadedModel, limits: BatchLimits) -> None:
        self.model = model
        self.limits = limits
        self._prompts = PromptEncoder(model.tokenizer, model.vocabulary, model.context, model.chat_format)
        self.decoder = BatchDecoder(model, limits)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        requests = [GenerationRequest([], f"{sampling.seed}:{index}") for index in range(len(chats))]
        return self.run_requests(chats, requests, sampling)

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        tokens = [self._prompts.encode_text(text) for text in continuations]
        return LogprobScorer(self.decoder).score_replies(self._prompts.encode_chats(chats), tokens)

    def run_requests(
        self, chats: Sequence[Chat], requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> list[Completion]:
        """Let each request, which has no tokens yet, be the chat's, and run it."""
        for request, ids in zip(requests, self._prompts.encode_chats_unbounded(chats), strict=True):
            request.ids = ids if request.keep else self._prompts.require_fitting(ids)
        if sampling.max_tokens > 0:
            fitting = [request for request in requests if not self._fills_context(request)]
            for common, group in find_shared_prefixes(fitting):
                head = GenerationRequest(common, "", keep=True)
                self.decoder.run([head], Sampling(max_tokens=1))
                for request in group:
                    request.prefix = head.prefix
            self.decoder.run(fitting, sampling)
        return [self._build_completion(request, sampling) for request in requests]

    def conversations(self) -> Conversations:
        return CachedConversations(self.run_requests, self.limits.tokens)

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """The text that the model reads for each chat."""
        return self._prompts.render(chats)

    @property
    def templated(self) -> bool:
        return self._prompts.templated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._prompts.close()
        self.decoder.forward.release_memory()

    def _fills_context(self, request: GenerationRequest) -> bool:
        return len(request.ids) >= self.model.context

    def _build_completion(self, request: GenerationRequest, sampling: Sampling) -> Completion:
        text = self.model.tokenizer.decode(request.reply, skip_special_tokens=True)
        assert isinstance(text, str)
        for stop in filter(None, sampling.stop):
            text = text.partition(stop)[0]
        return Completion(text, tokens=len(request.reply), full=self._fills_context(request))


def open_engine(directory: Path) -> TransformersEngine:
    model = load_model(directory)
    return TransformersEngine(model, measure_batch_limits(model))


ENGINE: OpenEngine = open_engine
