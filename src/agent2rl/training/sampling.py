"""Sample answers from the model that is being trained, with the decoder that grades.

The decoder keeps one batch full and reads each prompt once. Conversations are sampled as in grading, turn by
turn, and their tokens are kept. The same call with the same seed gives the same samples. On a GPU, a copy of
the weights in bfloat16 samples, which is twice as fast; it equals the trained policy up to rounding.
Rejection sampling keeps the right answers.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Sampling
from agent2rl.engines.transformers import CachedConversations, TransformersEngine, measure_batch_limits
from agent2rl.engines.transformers.decoding import GenerationRequest
from agent2rl.engines.transformers.forked_workers import SMALL_MODEL_WEIGHTS
from agent2rl.engines.transformers.loading import describe_model
from agent2rl.engines.transformers.token_choice import choose_tokens
from agent2rl.training.fusion import compile_function, fuse_small_operations
from agent2rl.training.prompts import encode


@dataclass(frozen=True)
class SampleSettings:
    max_tokens: int = 256
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0


@dataclass(frozen=True)
class PolicySample:
    tokens: tuple[int, ...]
    """Includes the end token."""
    log_probs: tuple[float, ...]
    """How likely the tokens were at this temperature."""
    text: str
    finished: bool
    """Whether it ended with an end token, and not at the length limit."""


class PolicySampler:
    """Samples from a model that is being trained, with its current weights at each call."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, fused: bool = False
    ) -> None:
        """`fused` compiles the small operations of a large model on a GPU, here and in training."""
        self._trained, self._tokenizer = model, tokenizer
        fused = fused and model.device.type == "cuda" and model.num_parameters() > SMALL_MODEL_WEIGHTS
        if fused:
            fuse_small_operations(model)
        self._sampling_model = _copy_in_bfloat16(model) if model.device.type == "cuda" else model
        described = describe_model(self._sampling_model, tokenizer)
        self._ends = described.ends
        self._engine = TransformersEngine(described, measure_batch_limits(described))
        self._decoder = self._engine.decoder
        if fused:
            self._decoder.forward.choose_tokens = compile_function(choose_tokens)

    @property
    def templated(self) -> bool:
        return self._engine.templated

    def start_conversations(self) -> "SampledConversations":
        """Start conversations with the current weights."""
        self._sync_weights()
        return SampledConversations(self._engine)

    def release_gpu_memory(self) -> None:
        """Free GPU memory for the update."""
        if self._sampling_model is not self._trained:
            self._decoder.forward.release_large_cache()

    def close(self) -> None:
        """Free the resources of conversations."""
        self._engine.__exit__(None, None, None)

    def sample(
        self,
        prompts: Sequence[str],
        settings: SampleSettings,
        times: int = 1,
        places: Sequence[int] | None = None,
    ) -> list[list[PolicySample]]:
        """Sample `times` answers to each prompt, in the order of the prompts.

        If these are some of many prompts, `places` are their positions among all: then they get the same
        answers as they would get among all.
        """
        self._sync_weights()
        requests = [
            GenerationRequest(ids, f"{settings.seed}:{place}", keep=True)
            for place, ids in zip(
                range(len(prompts)) if places is None else places,
                encode(self._tokenizer, prompts),
                strict=True,
            )
        ]
        if times > 1:
            self._decoder.run(requests, Sampling(max_tokens=1))  # prefills the prompts, which are kept
        answers = [
            [
                GenerationRequest(request.ids, f"{request.seed}:{time}", shared=request.slot)
                for time in range(times)
            ]
            for request in requests
        ]
        sampling = Sampling(settings.max_tokens, settings.temperature)
        self._decoder.run([answer for group in answers for answer in group], sampling)
        self._decoder.release_slots([request.slot for request in requests if request.slot is not None])
        self.release_gpu_memory()
        return [[self._build_sample(answer) for answer in group] for group in answers]

    def _sync_weights(self) -> None:
        if self._sampling_model is self._trained:
            return
        with torch.no_grad():
            for own, trained in zip(
                self._sampling_model.parameters(), self._trained.parameters(), strict=True
            ):
                own.copy_(trained)

    def _build_sample(self, answer: GenerationRequest) -> PolicySample:
        text = self._tokenizer.decode(answer.reply, skip_special_tokens=True)
        return PolicySample(
            tuple(answer.reply), tuple(answer.log_probs), str(text), answer.reply[-1] in self._ends
        )


@dataclass(frozen=True)
class SampledTurn:
    """A turn of a conversation: all tokens read so far, the reply, and how likely its tokens were."""

    read: list[int]
    reply: list[int]
    log_probs: list[float]


class SampledConversations(CachedConversations):
    """Conversations as in grading that also record their tokens."""

    def __init__(self, engine: TransformersEngine) -> None:
        super().__init__(engine, engine.limits.tokens)
        self.turns: dict[str, list[SampledTurn]] = {}

    def record_turn(self, requests: Mapping[str, GenerationRequest]) -> None:
        for name, request in requests.items():
            if request.reply:
                turn = SampledTurn(request.ids, request.reply, request.log_probs)
                self.turns.setdefault(name, []).append(turn)


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    settings: SampleSettings,
    times: int = 1,
) -> list[list[PolicySample]]:
    """Sample once. To sample repeatedly, keep a `PolicySampler`."""
    return PolicySampler(model, tokenizer).sample(prompts, settings, times)


def _copy_in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model with weights in bfloat16. Buffers with position frequencies keep their precision."""
    twin = deepcopy(model).requires_grad_(False)
    for weight in twin.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    return twin


# Rejection sampling: sample several answers, keep the right ones, and train on them


def right_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    right: Callable[[int, str], bool],
    settings: SampleSettings,
    times: int = 8,
) -> list[tuple[str, str]]:
    """Return pairs of prompt and answer for SFT.

    Of `times` answers to each prompt, keeps those that ended by themselves and for which `right(index, text)`
    is true, each text once.
    """
    pairs = []
    for index, group in enumerate(sample(model, tokenizer, prompts, settings, times)):
        texts = dict.fromkeys(answer.text for answer in group if answer.finished)
        pairs += [(prompts[index], text) for text in texts if right(index, text)]
    return pairs
