"""Samples answers online with the decoder that grades: one batch that is kept full, each prompt read once.

Conversations are sampled as they are graded, turn by turn, and their tokens are kept. The same call with the
same seed gives the same samples. On a GPU a copy of the weights in bfloat16 samples,
since that is twice as fast, so what it samples from is the trained policy up to rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, Completion, Sampling
from agent2rl.engines.transformers import Transformers, room
from agent2rl.engines.transformers.conversations import KeptConversations
from agent2rl.engines.transformers.decoding import Request
from agent2rl.engines.transformers.loading import describe
from agent2rl.training.prompts import encode


@dataclass(frozen=True)
class SampleSettings:
    max_tokens: int = 256
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    tokens: tuple[int, ...]
    """With the token that ended it."""
    text: str
    finished: bool
    """Whether it ended by itself."""


class Sampler:
    """Samples from a model that is being trained, as it is at each call."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._trained, self._tokenizer = model, tokenizer
        self._twin = _half(model) if model.device.type == "cuda" else model
        described = describe(self._twin, tokenizer)
        self._ends = described.ends
        self._engine = Transformers(described, room(described))
        self._decoder = self._engine.decoder

    @property
    def templated(self) -> bool:
        return self._engine.templated

    def talk(self) -> "Talk":
        """Conversations with the model as it is now."""
        self._catch_up()
        return Talk(self._engine)

    def rest(self) -> None:
        """Leave the memory of a GPU to the update."""
        if self._twin is not self._trained:
            self._decoder.forward.forget()

    def close(self) -> None:
        """Give back what conversations needed."""
        self._engine.__exit__(None, None, None)

    def sample(
        self,
        prompts: Sequence[str],
        settings: SampleSettings,
        times: int = 1,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """`times` answers to each prompt, in the order of the prompts. Where these are some of many, their
        `places` among those give them the answers that they would get among all."""
        self._catch_up()
        asked = [
            Request(ids, f"{settings.seed}:{place}", keep=True)
            for place, ids in zip(
                range(len(prompts)) if places is None else places,
                encode(self._tokenizer, prompts),
                strict=True,
            )
        ]
        if times > 1:
            self._decoder.run(asked, Sampling(max_tokens=1))  # for what is kept: the prompt, read
        answers = [
            [Request(one.ids, f"{one.seed}:{time}", one.prefix) for time in range(times)] for one in asked
        ]
        sampling = Sampling(settings.max_tokens, settings.temperature)
        self._decoder.run([answer for group in answers for answer in group], sampling)
        self.rest()
        return [[self._sample(answer) for answer in group] for group in answers]

    def _catch_up(self) -> None:
        if self._twin is self._trained:
            return
        with torch.no_grad():
            for own, trained in zip(self._twin.parameters(), self._trained.parameters(), strict=True):
                own.copy_(trained)

    def _sample(self, answer: Request) -> Sample:
        text = self._tokenizer.decode(answer.reply, skip_special_tokens=True)
        return Sample(tuple(answer.reply), str(text), answer.reply[-1] in self._ends)


class Talk:
    """Conversations as the engine has them in grading, with an ear for the tokens."""

    def __init__(self, engine: Transformers) -> None:
        self.turns: dict[str, list[tuple[list[int], list[int]]]] = {}
        """Of each conversation, turn by turn: all tokens that had been read by then, and the reply's."""
        self._engine = engine
        self._kept = KeptConversations(self._reply, engine.limits.tokens)
        self._heard: Sequence[Request] = ()

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        replies = self._kept.extend(turns, sampling)
        for name, request in zip(turns, self._heard, strict=True):
            if request.reply:
                self.turns.setdefault(name, []).append((request.ids, request.reply))
        return replies

    def drop(self, names: Iterable[str]) -> None:
        """Their keys and values; what was said in them stays."""
        self._kept.drop(names)

    def _reply(
        self, chats: Sequence[Chat], requests: Sequence[Request], sampling: Sampling
    ) -> list[Completion]:
        self._heard = requests
        return self._engine.reply(chats, requests, sampling)


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    settings: SampleSettings,
    times: int = 1,
) -> list[list[Sample]]:
    """Sample once; who samples again and again keeps a `Sampler`."""
    return Sampler(model, tokenizer).sample(prompts, settings, times)


def _half(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with weights in bfloat16; buffers, which hold the frequencies of positions, stay as they are."""
    twin = deepcopy(model).requires_grad_(False)
    for weight in twin.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    return twin
