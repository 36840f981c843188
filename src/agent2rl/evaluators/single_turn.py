"""One question, one answer, one score: the evaluator of every task without a second turn.

All questions go to the engine in one call, so that it can batch them. What a score means is the task's own
function; a function that raises, or returns what is no score, ends the grading and never becomes a number.
"""

import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

from agent2rl.core.engine import Chat, Engine, Message, Sampling
from agent2rl.core.errors import Agent2RLError, GradingError
from agent2rl.core.records import ExampleResult
from agent2rl.core.task import Example


@dataclass(frozen=True)
class SingleTurn:
    rule: str
    """Names what `score` does, and changes whenever the same output could score differently."""
    score: Callable[[str, Example], float]
    """What an output is worth, from 0 to 1."""
    instruction: str = ""
    """Follows the question, after an empty line."""
    sampling: Sampling = field(default_factory=Sampling)
    """How to sample; the seed is the evaluation's."""

    @property
    def version(self) -> str:
        settings = repr((self.instruction, self.sampling))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], seed: int) -> list[ExampleResult]:
        chats = [self.chat(example) for example in examples]
        completions = engine.generate(chats, replace(self.sampling, seed=seed))
        if len(completions) != len(examples):
            raise GradingError(f"The engine gave {len(completions)} answers to {len(examples)} questions.")
        return [
            ExampleResult(id=example.id, output=completion.text, score=self._score(completion.text, example))
            for example, completion in zip(examples, completions, strict=True)
        ]

    def chat(self, example: Example) -> Chat:
        """What the model is asked."""
        content = f"{example.prompt}\n\n{self.instruction}" if self.instruction else example.prompt
        return (Message("user", content),)

    def _score(self, output: str, example: Example) -> float:
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
