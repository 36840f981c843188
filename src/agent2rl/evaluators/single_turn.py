"""One question, one answer, one score: the evaluator of every task that a function of the answer scores.

What a score means is the task's own function; a function that raises, or returns what is no score, ends the
grading and never becomes a number.
"""

import hashlib
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, SupportsFloat

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import Agent2RLError, GradingError
from agent2rl.core.records import EvalResult, EvalSettings, PromptTemplates, SampledAnswer
from agent2rl.core.task import Example
from agent2rl.evaluators.answer_sampling import QuestionPrompt, compute_pass_metrics, score_majority_answer


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
