"""Evaluates tasks that ask each question once: the prompt, sampled answers, pass@k, and `SingleTurn`.

All questions go to the engine in one call, so that it can batch them. `SingleTurn` scores each answer with
the task's own function; one that raises, or returns no score, ends the grading and never becomes a number.
The prompt, the sampling and the metrics are shared with the other evaluators.
"""

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, SupportsFloat

from pydantic import JsonValue

from agent2rl.core.engine import Chat, ChatMessage, Engine, RecordedEngine, Sampling, has_chat_template
from agent2rl.core.errors import Agent2RLError, GradingError, UserError
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult, SampledAnswer
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example

# Says now and then in the log how far a long evaluation is.

EVERY_SECONDS = 10.0


class EvaluationProgress:
    def __init__(self, total: int, what: str) -> None:
        """`what` becomes of each: "episodes played"."""
        self._total, self._what = total, what
        self._next = time.monotonic() + EVERY_SECONDS

    def __call__(self, done: int) -> None:
        if time.monotonic() > self._next:
            print(f"{done} of {self._total} {self._what}", flush=True)
            self._next = time.monotonic() + EVERY_SECONDS


# What is put to the model, how its answers are drawn, and what several answers are worth together.

QUESTION = "{question}"
KS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)
"""The k of pass@k that are reported, as far as there are samples."""

Metrics = Callable[[Sequence[SampledAnswer]], dict[str, float]]
"""What several answers to one question are worth together."""


@dataclass(frozen=True)
class QuestionPrompt:
    """A question as the model reads it, and how it is answered."""

    chat: str = QUESTION
    """What a model with a chat template is told; `{question}` stands for the question."""
    plain: str | None = None
    """What a model without one goes on from; None: the same text."""
    shots: int = 0
    """Worked examples in the plain text, for the record."""
    stop: tuple[str, ...] = ()
    """What ends the text of a model without a chat template."""
    sampling: Sampling = field(default_factory=Sampling)
    """For one answer; the seed is the evaluation's."""
    temperature: float = 0.8
    """For several answers."""

    def build_prompt(self, example: Example, as_chat: bool) -> Chat:
        text = self.chat if as_chat or self.plain is None else self.plain
        return (ChatMessage("user", text.replace(QUESTION, example.prompt)),)

    def sample_answers(
        self, engine: Engine, examples: Sequence[Example], settings: EvalSettings
    ) -> "SampledAnswers":
        """All answers to all questions; an answer's seed depends on the seed and its place alone."""
        if isinstance(engine, RecordedEngine):
            return _collect_given_answers(engine, examples, settings.samples)
        as_chat = has_chat_template(engine)
        sampling = self._resolve_sampling(as_chat, settings)
        chats = [self.build_prompt(example, as_chat) for example in examples for _ in range(settings.samples)]
        completions = engine.generate(chats, sampling)
        if len(completions) != len(chats):
            raise GradingError(f"The engine gave {len(completions)} answers to {len(chats)} questions.")
        texts = [completion.text for completion in completions]
        n = settings.samples
        return SampledAnswers(
            examples=examples,
            texts=[texts[first : first + n] for first in range(0, len(texts), n)],
            how={
                "prompting": "chat" if as_chat else "plain",
                "shots": 0 if as_chat else self.shots,
                "samples": n,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
            },
        )

    def prompted(self, prompts: PromptTemplates) -> Self:
        """The same, in other words. Of worked examples in them nothing is known."""
        plain = self.plain if prompts.plain is None else prompts.plain
        chat = self.chat if prompts.chat is None else prompts.chat
        if isinstance(plain, dict):
            raise UserError(f"{prompts.name}: this task has one kind of example.", "Make `plain` one text.")
        for name, text in (("chat", chat), ("plain", plain)):
            if text is not None and QUESTION not in text:
                raise UserError(f"{prompts.name}: `{name}` does not say where the {QUESTION} goes.")
        return replace(self, chat=chat, plain=plain, shots=0 if prompts.plain else self.shots)

    def _resolve_sampling(self, as_chat: bool, settings: EvalSettings) -> Sampling:
        stop = () if as_chat else self.stop
        return resolve_sampling(self.sampling, settings, self.temperature, stop)


def resolve_sampling(
    usual: Sampling, settings: EvalSettings, several: float, stop: tuple[str, ...] = ()
) -> Sampling:
    """How a run's answers are drawn: `several` is the temperature where there are more than one."""
    own = usual.temperature if settings.samples == 1 else several
    temperature = own if settings.temperature is None else settings.temperature
    if settings.samples > 1 and temperature == 0:
        raise UserError("Several samples at temperature 0 are one sample several times.")
    return replace(usual, seed=settings.seed, temperature=temperature, stop=(*usual.stop, *stop))


@dataclass(frozen=True)
class SampledAnswers:
    """What the model said: to each example as many texts as were drawn."""

    examples: Sequence[Example]
    texts: Sequence[Sequence[str]]
    how: dict[str, JsonValue]

    def list_pairs(self) -> list[tuple[Example, str]]:
        """Every text with its example, in order."""
        asked = zip(self.examples, self.texts, strict=True)
        return [(example, text) for example, texts in asked for text in texts]

    def build_eval_result(
        self, attempts: Sequence[SampledAnswer], metrics: Metrics, **how: JsonValue
    ) -> EvalResult:
        """The result, given what each of the pairs is worth."""
        left = iter(attempts)
        asked = zip(self.examples, self.texts, strict=True)
        results = tuple(
            build_example_result(example, [next(left) for _ in texts], metrics) for example, texts in asked
        )
        return EvalResult(results=results, how={**self.how, **how})


def _collect_given_answers(
    engine: RecordedEngine, examples: Sequence[Example], samples: int
) -> SampledAnswers:
    """Each example's own; how they were asked for is not known."""
    texts = [engine.given(example.id) for example in examples]
    if any(len(found) != samples for found in texts):
        raise GradingError(f"There are not {samples} given answers to every question.")
    return SampledAnswers(examples, texts, how={"prompting": "given", "samples": samples})


def build_example_result(
    example: Example, attempts: Sequence[SampledAnswer], metrics: Metrics
) -> ExampleResult:
    first = attempts[0]
    if len(attempts) == 1:
        return ExampleResult(id=example.id, output=first.output, score=first.score, note=first.note)
    return ExampleResult(
        id=example.id,
        output=first.output,
        score=math.fsum(attempt.score for attempt in attempts) / len(attempts),
        note=first.note,
        attempts=tuple(attempts),
        metrics=metrics(attempts),
    )


def compute_pass_at_k(k: int, right: int, drawn: int) -> float:
    """The chance that at least one of k answers is right, unbiased, where `right` of `drawn` samples are."""
    return 1.0 - math.comb(drawn - right, k) / math.comb(drawn, k)


def compute_pass_metrics(attempts: Sequence[SampledAnswer]) -> dict[str, float]:
    """pass@k for the usual k, and for all samples; an answer passes with full score."""
    drawn, right = len(attempts), sum(attempt.score == 1 for attempt in attempts)
    ks = sorted({k for k in KS if k <= drawn} | {drawn})
    return {f"pass@{k}": compute_pass_at_k(k, right, drawn) for k in ks}


def score_majority_answer(
    attempts: Sequence[SampledAnswer], answer: Callable[[str], Hashable | None]
) -> float:
    """What the most common answer is worth, the first of equals; no answer is no vote."""
    votes: dict[Hashable, list[float]] = {}
    for attempt in attempts:
        if (given := answer(attempt.output)) is not None:
            votes.setdefault(given, []).append(attempt.score)
    return max(votes.values(), key=len)[0] if votes else 0.0


@dataclass(frozen=True)
class SingleTurn:
    rule: str
    """Names what `score` and `answer` do, and changes whenever the same output could score differently."""
    score: Callable[[str, Example], float]
    """What an output is worth, from 0 to 1."""
    asking: QuestionPrompt = field(default_factory=QuestionPrompt)
    answer: Callable[[str], Hashable | None] | None = None
    """The answer that an output comes to, for majority votes; None where it comes to none."""

    @property
    def version(self) -> str:
        return f"{self.rule}+{hashlib.sha256(repr(self.asking).encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        answers = self.asking.sample_answers(engine, examples, settings)
        attempts = [
            SampledAnswer(output=text, score=self._score_output(text, one))
            for one, text in answers.list_pairs()
        ]
        return answers.build_eval_result(attempts, self._compute_metrics)

    def chat(self, example: Example, templated: bool) -> Chat:
        """What the model is asked."""
        return self.asking.build_prompt(example, templated)

    def prompted(self, prompts: PromptTemplates) -> Self:
        return replace(self, asking=self.asking.prompted(prompts))

    def _compute_metrics(self, attempts: Sequence[SampledAnswer]) -> dict[str, float]:
        voted = (
            {}
            if self.answer is None
            else {f"maj@{len(attempts)}": score_majority_answer(attempts, self.answer)}
        )
        return {**compute_pass_metrics(attempts), **voted}

    def _score_output(self, output: str, example: Example) -> float:
        try:
            score: object = self.score(output, example)
        except Agent2RLError:
            raise
        except Exception as error:
            traceback.print_exc()  # for the log alone: the text can quote the example
            raise GradingError(
                f"The scorer failed on example {example.id} ({type(error).__name__}).",
                "This is the task's fault: its scoring function must be mended.",
            ) from error
        if not isinstance(score, SupportsFloat) or not 0 <= float(score) <= 1:
            print(f"example {example.id}: score {score!r}", flush=True)
            raise GradingError(
                f"The scorer returned no number from 0 to 1 for example {example.id}.",
                "This is the task's fault: its scoring function must be mended.",
            )
        return float(score)
