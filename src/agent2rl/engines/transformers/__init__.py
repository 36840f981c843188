"""Runs a model directory with transformers, on CPU (float32) or one GPU (bfloat16).

Greedy replies in float32 are the same whatever the batch. Nothing in the directory is executed: weights are
safetensors, remote code is never trusted, and the chat template runs in a sandbox (see `templates`).
Not covered: several GPUs, quantised weights, and models that keep a state instead of keys and values.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from agent2rl.core.engine import Chat, Completion, Conversations, OpenEngine, Sampling
from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.conversations import KeptConversations
from agent2rl.engines.transformers.decoding import Decoder, Request, Room
from agent2rl.engines.transformers.loading import Model, load
from agent2rl.engines.transformers.scoring import Scorer
from agent2rl.engines.transformers.templates import Templates

CPU_BYTES = 1 << 30
"""Keys and values of the batch at work; conversations that wait may take as much again."""
CUDA_SHARE = 0.4
"""The same, of the GPU memory that is free once the model is loaded."""
ROWS = {"cpu": 64, "cuda": 512}
READ = {"cpu": 4096, "cuda": 32768}
"""Tokens read at once: past this, more at a time is no faster."""


def room(model: Model) -> Room:
    """What fits into this machine's memory."""
    kind = model.device.type
    memory = int(torch.cuda.mem_get_info()[0] * CUDA_SHARE) if kind == "cuda" else CPU_BYTES
    return Room(ROWS[kind], max(1, memory // model.token_bytes), READ[kind])


class Transformers:
    def __init__(self, model: Model, limits: Room) -> None:
        self.model = model
        self.limits = limits
        template = model.tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        tokens = {name: str(token) for name, token in model.tokenizer.special_tokens_map.items()}
        self._templates = Templates(template, tokens)
        self._decoder = Decoder(model, limits)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        requests = [Request([], f"{sampling.seed}:{index}") for index in range(len(chats))]
        return self._reply(chats, requests, sampling)

    def logprobs(self, chats: Sequence[Chat], continuations: Sequence[str]) -> list[float]:
        tokens = [self._encode(text, special=False) for text in continuations]
        return Scorer(self._decoder).logprobs(self._prompts(chats), tokens)

    def conversations(self) -> Conversations:
        return KeptConversations(self._reply, self.limits.tokens)

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """The text that the model reads for each chat."""
        return self._templates.render(chats)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._templates.close()
        self._decoder.forward.forget()

    def _reply(
        self, chats: Sequence[Chat], requests: Sequence[Request], sampling: Sampling
    ) -> list[Completion]:
        for request, ids in zip(requests, self._prompts(chats), strict=True):
            request.ids = ids
        if sampling.max_tokens > 0:
            self._decoder.run(requests, sampling)
        return [self._completion(request, sampling) for request in requests]

    def _prompts(self, chats: Sequence[Chat]) -> list[list[int]]:
        # A template writes the special tokens itself.
        special = self._templates.template is None
        return [self._prompt(text, special) for text in self.render(chats)]

    def _prompt(self, text: str, special: bool) -> list[int]:
        ids = self._encode(text, special)
        if not ids:
            raise GradingError("A chat without any token cannot be continued.", "Mend the chat template.")
        if len(ids) >= self.model.context:
            raise GradingError(
                f"A chat has {len(ids)} tokens; the model's context has {self.model.context}.",
                "Train for a longer context, or keep the base model's max_position_embeddings.",
            )
        return ids

    def _encode(self, text: str, special: bool) -> list[int]:
        try:
            ids: list[int] = self.model.tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:
            raise GradingError(f"The tokenizer fails on a text: {type(error).__name__}.") from error
        if ids and not 0 <= min(ids) <= max(ids) < self.model.vocabulary:
            raise GradingError(
                f"The tokenizer has a token {max(ids)}; the model knows {self.model.vocabulary}.",
                "Submit the tokenizer that belongs to the model.",
            )
        return ids

    def _completion(self, request: Request, sampling: Sampling) -> Completion:
        text = self.model.tokenizer.decode(request.reply, skip_special_tokens=True)
        assert isinstance(text, str)
        for stop in filter(None, sampling.stop):
            text = text.partition(stop)[0]
        return Completion(text, tokens=len(request.reply))


def open_engine(directory: Path) -> Transformers:
    model = load(directory)
    return Transformers(model, room(model))


ENGINE: OpenEngine = open_engine
