"""Samples answers online with the decoder that grades: one batch that is kept full, each prompt read once.
Rejection sampling keeps the right ones.

Conversations are sampled as they are graded, turn by turn, and their tokens are kept. The same call with the
same seed gives the same samples. On a GPU a copy of the weights in bfloat16 samples,
since that is twice as fast, so what it samples from is the trained policy up to rounding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, Completion, Sampling
from agent2rl.engines.transformers import CachedConversations, TransformersEngine, measure_batch_limits
from agent2rl.engines.transformers.decoding import GenerationRequest
from agent2rl.engines.transformers.loading import describe_model
from agent2rl.training.prompts import encode


@dataclass(frozen=True)
class SampleSettings:
    max_tokens: int = 256
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0


@dataclass(frozen=True)
class SampledAnswer:
    tokens: tuple[int, ...]
    """With the token that ended it."""
    text: str
    finished: bool
    """Whether it ended by itself."""


class PolicySampler:
    """Samples from a model that is being trained, as it is at each call."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._trained, self._tokenizer = model, tokenizer
        self._twin = _copy_in_bfloat16(model) if model.device.type == "cuda" else model
        described = describe_model(self._twin, tokenizer)
        self._ends = described.ends
        self._engine = TransformersEngine(described, measure_batch_limits(described))
        self._decoder = self._engine.decoder

    @property
    def templated(self) -> bool:
        return self._engine.templated

    def start_conversations(self) -> "SampledConversations":
        """Conversations with the model as it is now."""
        self._sync_weights()
        return SampledConversations(self._engine)

    def release_gpu_memory(self) -> None:
        """Leave the memory of a GPU to the update."""
        if self._twin is not self._trained:
            self._decoder.forward.release_memory()

    def close(self) -> None:
        """Give back what conversations needed."""
        self._engine.__exit__(None, None, None)

    def sample(
        self,
        prompts: Sequence[str],
        settings: SampleSettings,
        times: int = 1,
        places: Sequence[int] | None = None,
    ) -> list[list[SampledAnswer]]:
        """`times` answers to each prompt, in the order of the prompts. Where these are some of many, their
        `places` among those give them the answers that they would get among all."""
        self._sync_weights()
        asked = [
            GenerationRequest(ids, f"{settings.seed}:{place}", keep=True)
            for place, ids in zip(
                range(len(prompts)) if places is None else places,
                encode(self._tokenizer, prompts),
                strict=True,
            )
        ]
        if times > 1:
            self._decoder.run(asked, Sampling(max_tokens=1))  # for what is kept: the prompt, read
        answers = [
            [GenerationRequest(one.ids, f"{one.seed}:{time}", one.prefix) for time in range(times)]
            for one in asked
        ]
        sampling = Sampling(settings.max_tokens, settings.temperature)
        self._decoder.run([answer for group in answers for answer in group], sampling)
        self.release_gpu_memory()
        return [[self._build_sample(answer) for answer in group] for group in answers]

    def _sync_weights(self) -> None:
        if self._twin is self._trained:
            return
        with torch.no_grad():
            for own, trained in zip(self._twin.parameters(), self._trained.parameters(), strict=True):
                own.copy_(trained)

    def _build_sample(self, answer: GenerationRequest) -> SampledAnswer:
        text = self._tokenizer.decode(answer.reply, skip_special_tokens=True)
        return SampledAnswer(tuple(answer.reply), str(text), answer.reply[-1] in self._ends)


class SampledConversations:
    """Conversations as the engine has them in grading, with an ear for the tokens."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.turns: dict[str, list[tuple[list[int], list[int]]]] = {}
        """Of each conversation, turn by turn: all tokens that had been read by then, and the reply's."""
        self._engine = engine
        self._kept = CachedConversations(self._run_and_record, engine.limits.tokens)
        self._heard: Sequence[GenerationRequest] = ()

    def extend(self, turns: Mapping[str, Chat], sampling: Sampling) -> dict[str, Completion]:
        replies = self._kept.extend(turns, sampling)
        for name, request in zip(turns, self._heard, strict=True):
            if request.reply:
                self.turns.setdefault(name, []).append((request.ids, request.reply))
        return replies

    def drop(self, names: Iterable[str]) -> None:
        """Their keys and values; what was said in them stays."""
        self._kept.drop(names)

    def _run_and_record(
        self, chats: Sequence[Chat], requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> list[Completion]:
        self._heard = requests
        return self._engine.run_requests(chats, requests, sampling)


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    settings: SampleSettings,
    times: int = 1,
) -> list[list[SampledAnswer]]:
    """Sample once; who samples again and again keeps a `PolicySampler`."""
    return PolicySampler(model, tokenizer).sample(prompts, settings, times)


def _copy_in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with weights in bfloat16; buffers, which hold the frequencies of positions, stay as they are."""
    twin = deepcopy(model).requires_grad_(False)
    for weight in twin.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    return twin


# Rejection sampling: ask the model often, keep what it got right, and train on that.


def right_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    right: Callable[[int, str], bool],
    settings: SampleSettings,
    times: int = 8,
) -> list[tuple[str, str]]:
    """Pairs of prompt and answer for SFT: of `times` answers to each prompt, those that are `right(index,
    text)` and ended by themselves, each text once."""
    pairs = []
    for index, group in enumerate(sample(model, tokenizer, prompts, settings, times)):
        texts = dict.fromkeys(found.text for found in group if found.finished)
        pairs += [(prompts[index], text) for text in texts if right(index, text)]
    return pairs
