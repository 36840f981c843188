"""Evaluate tasks with one question per example: the prompt, sampled answers, pass@k, and `SingleTurn`.

All questions go to the engine in one call, so that it can batch them. `SingleTurn` scores each answer with
the task's own function. If that raises or returns no valid score, the grading fails; it never becomes a
number. The prompt, the sampling and the metrics are shared with the other evaluators.
"""

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, SupportsFloat

from pydantic import JsonValue

from agent2rl.core.engine import Chat, ChatMessage, Engine, RecordedEngine, Sampling, has_chat_template
from agent2rl.core.errors import Agent2RLError, GradingError, UserError
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult, SampledAnswer
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example

# Progress of a long evaluation, in the grading log

EVERY_SECONDS = 10.0


class EvaluationProgress:
    def __init__(self, total: int, what: str) -> None:
        """`what` is a noun and a participle, e.g. "episodes played"."""
        self._total, self._what = total, what
        self._next = time.monotonic() + EVERY_SECONDS

    def __call__(self, done: int) -> None:
        if time.monotonic() > self._next:
            print(f"{done} of {self._total} {self._what}", flush=True)
            self._next = time.monotonic() + EVERY_SECONDS


# Prompts, sampling, and metrics over several answers

QUESTION = "{question}"
KS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)
"""The values of k for pass@k, up to the number of samples."""

Metrics = Callable[[Sequence[SampledAnswer]], dict[str, float]]
"""Computes metrics over several answers to one question."""


@dataclass(frozen=True)
class QuestionPrompt:
    """The prompt of a question, and how answers are sampled."""

    chat: str = QUESTION
    """The prompt for a model with a chat template; `{question}` is replaced by the question."""
    plain: str | None = None
    """The text that a model without one continues. None: the same text."""
    shots: int = 0
    """Number of worked examples in the plain text. Recorded with the result."""
    stop: tuple[str, ...] = ()
    """Stop strings for a model without a chat template."""
    sampling: Sampling = field(default_factory=Sampling)
    """Used for one answer; the seed comes from the evaluation."""
    temperature: float = 0.8
    """Used for several answers."""

    def build_prompt(self, example: Example, as_chat: bool) -> Chat:
        text = self.chat if (as_chat and not self.sampling.plain) or self.plain is None else self.plain
        return (ChatMessage("user", text.replace(QUESTION, example.prompt)),)

    def sample_answers(
        self, engine: Engine, examples: Sequence[Example], settings: EvalSettings
    ) -> "SampledAnswers":
        """Sample all answers to all questions. An answer's seed depends only on the seed and its index."""
        if isinstance(engine, RecordedEngine):
            return _collect_given_answers(engine, examples, settings.samples)
        as_chat = has_chat_template(engine) and not self.sampling.plain
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
                "shots": self._count_shots(as_chat),
                "samples": n,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
            },
        )

    def with_prompts(self, prompts: PromptTemplates) -> Self:
        """Return a copy with these prompt texts. Their number of worked examples is unknown, so 0."""
        plain = self.plain if prompts.plain is None else prompts.plain
        chat = self.chat if prompts.chat is None else prompts.chat
        if isinstance(plain, dict):
            raise UserError(f"{prompts.name}: this task has one kind of example.", "Make `plain` a string.")
        for name, text in (("chat", chat), ("plain", plain)):
            if text is not None and QUESTION not in text:
                raise UserError(f"{prompts.name}: `{name}` has no placeholder {QUESTION}.", "Add it.")
        return replace(self, chat=chat, plain=plain, shots=0 if prompts.plain else self.shots)

    def _count_shots(self, as_chat: bool) -> int:
        return 0 if as_chat else self.shots

    def _resolve_sampling(self, as_chat: bool, settings: EvalSettings) -> Sampling:
        stop = () if as_chat else self.stop
        return resolve_sampling(self.sampling, settings, self.temperature, stop)


@dataclass(frozen=True)
class FewShotPrompt(QuestionPrompt):
    """A prompt with worked examples as turns of the chat. A model without a chat template reads one text."""

    turns: tuple[tuple[str, str], ...] = ()
    """Questions and their answers."""

    def build_prompt(self, example: Example, as_chat: bool) -> Chat:
        asked = [self.chat.replace(QUESTION, question) for question, _ in self.turns]
        last = self.chat.replace(QUESTION, example.prompt)
        answers = [answer for _, answer in self.turns]
        if not as_chat:
            shots = "".join(f"{question} {answer}\n" for question, answer in zip(asked, answers, strict=True))
            return (ChatMessage("user", shots + last),)
        shown = [
            message
            for question, answer in zip(asked, answers, strict=True)
            for message in (ChatMessage("user", question), ChatMessage("assistant", answer))
        ]
        return (*shown, ChatMessage("user", last))

    def _count_shots(self, as_chat: bool) -> int:
        del as_chat
        return len(self.turns)


def resolve_sampling(
    usual: Sampling, settings: EvalSettings, several: float, stop: tuple[str, ...] = ()
) -> Sampling:
    """Return the sampling of an evaluation: `several` is the temperature for more than one sample."""
    own = usual.temperature if settings.samples == 1 else several
    temperature = own if settings.temperature is None else settings.temperature
    if settings.samples > 1 and temperature == 0:
        raise UserError("At temperature 0, all samples are identical.")
    return replace(usual, seed=settings.seed, temperature=temperature, stop=(*usual.stop, *stop))


@dataclass(frozen=True)
class SampledAnswers:
    """The model's answers: for each example, one text per sample."""

    examples: Sequence[Example]
    texts: Sequence[Sequence[str]]
    how: dict[str, JsonValue]

    def list_pairs(self) -> list[tuple[Example, str]]:
        """Return every text with its example, in order."""
        pairs = zip(self.examples, self.texts, strict=True)
        return [(example, text) for example, texts in pairs for text in texts]

    def build_eval_result(
        self, attempts: Sequence[SampledAnswer], metrics: Metrics, **how: JsonValue
    ) -> EvalResult:
        """Build the result from the scored answers, in the order of `list_pairs`."""
        remaining = iter(attempts)
        pairs = zip(self.examples, self.texts, strict=True)
        results = tuple(
            build_example_result(example, [next(remaining) for _ in texts], metrics)
            for example, texts in pairs
        )
        return EvalResult(results=results, how={**self.how, **how})


def _collect_given_answers(
    engine: RecordedEngine, examples: Sequence[Example], samples: int
) -> SampledAnswers:
    """Return the recorded answers of each example; their prompts are unknown."""
    texts = [engine.get_outputs(example.id) for example in examples]
    if any(len(answers) != samples for answers in texts):
        raise GradingError(f"Some questions do not have {samples} answers.")
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
    """Return the unbiased chance that at least one of k answers is right, if `right` of `drawn` are."""
    return 1.0 - math.comb(drawn - right, k) / math.comb(drawn, k)


def compute_pass_metrics(attempts: Sequence[SampledAnswer]) -> dict[str, float]:
    """Return pass@k for the usual k and for all samples. An answer passes with a full score."""
    drawn, right = len(attempts), sum(attempt.score == 1 for attempt in attempts)
    ks = sorted({k for k in KS if k <= drawn} | {drawn})
    return {f"pass@{k}": compute_pass_at_k(k, right, drawn) for k in ks}


def score_majority_answer(
    attempts: Sequence[SampledAnswer], answer: Callable[[str], Hashable | None]
) -> float:
    """Return the score of the most common answer, or of the first of equally common ones.

    Outputs without an answer do not count.
    """
    votes: dict[Hashable, list[float]] = {}
    for attempt in attempts:
        if (vote := answer(attempt.output)) is not None:
            votes.setdefault(vote, []).append(attempt.score)
    return max(votes.values(), key=len)[0] if votes else 0.0


@dataclass(frozen=True)
class SingleTurn:
    rule: str
    """Names what `score` and `answer` do. Must change whenever the same output could score differently."""
    score: Callable[[str, Example], float]
    """Scores an output from 0 to 1."""
    prompt: QuestionPrompt = field(default_factory=QuestionPrompt)
    answer: Callable[[str], Hashable | None] | None = None
    """Extracts the answer from an output, for majority votes; returns None if there is none."""
    metrics: Mapping[str, Callable[[str, Example], float]] = field(default_factory=dict)
    """Other ways to score an output, by name. They are reported and do not rank."""

    @property
    def version(self) -> str:
        return f"{self.rule}+{hashlib.sha256(repr(self.prompt).encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        answers = self.prompt.sample_answers(engine, examples, settings)
        attempts = [
            SampledAnswer(output=text, score=self._score_output(self.score, text, example))
            for example, text in answers.list_pairs()
        ]
        evaluation = answers.build_eval_result(attempts, self._compute_metrics)
        if not self.metrics:
            return evaluation
        asked = zip(evaluation.results, examples, answers.texts, strict=True)
        results = tuple(self._add_metrics(result, example, texts) for result, example, texts in asked)
        return evaluation.model_copy(update={"results": results})

    def chat(self, example: Example, templated: bool) -> Chat:
        """Return the prompt of an example."""
        return self.prompt.build_prompt(example, templated)

    def with_prompts(self, prompts: PromptTemplates) -> Self:
        return replace(self, prompt=self.prompt.with_prompts(prompts))

    def _compute_metrics(self, attempts: Sequence[SampledAnswer]) -> dict[str, float]:
        voted = (
            {}
            if self.answer is None
            else {f"maj@{len(attempts)}": score_majority_answer(attempts, self.answer)}
        )
        return {**compute_pass_metrics(attempts), **voted}

    def _add_metrics(self, result: ExampleResult, example: Example, texts: Sequence[str]) -> ExampleResult:
        means = {
            name: math.fsum(self._score_output(score, text, example) for text in texts) / len(texts)
            for name, score in self.metrics.items()
        }
        return result.model_copy(update={"metrics": {**means, **result.metrics}})

    def _score_output(
        self, score_function: Callable[[str, Example], float], output: str, example: Example
    ) -> float:
        try:
            score: object = score_function(output, example)
        except Agent2RLError:
            raise
        except Exception as error:
            traceback.print_exc()  # only for the grading log: the text can quote the example
            raise GradingError(
                f"The scorer failed on example {example.id} ({type(error).__name__}).",
                "This is a fault of the task: fix its scoring function.",
            ) from error
        if not isinstance(score, SupportsFloat) or not 0 <= float(score) <= 1:
            print(f"example {example.id}: score {score!r}", flush=True)
            raise GradingError(
                f"The scorer returned no number from 0 to 1 for example {example.id}.",
                "This is a fault of the task: fix its scoring function.",
            )
        return float(score)
