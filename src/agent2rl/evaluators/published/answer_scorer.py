"""Score answers with a folder's `evaluate`, in the grading child."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from agent2rl.core.engine import Engine
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example
from agent2rl.evaluators.published.folder_files import is_training_row
from agent2rl.evaluators.single_turn import SingleTurn

TESTED_ON_TRAINING_DATA = (
    "The model is tested on its training data: the folder has no other, and the paper's protocol scores on "
    "it. The score says how well the model remembers, not how well it generalizes."
)


@dataclass(frozen=True)
class EvalFile:
    """Score an example with the user's `evaluate`."""

    path: Path
    positional: bool = False
    """Whether question, answer and reference are passed by position, as the published code does."""

    def __call__(self, output: str, example: Example) -> float:
        row = dict(example.meta)
        question = row.pop("question", example.prompt)
        reference = row.pop("answer", example.target)
        evaluate = _load_evaluate(self.path)
        try:
            if self.positional:
                return evaluate(question, output, reference, **row)
            return evaluate(question=question, model_answer=output, reference_answer=reference, **row)
        except SystemExit as error:
            raise GradingError(f"The scorer exited on example {example.id}.", "Fix eval.py.") from error


@dataclass(frozen=True)
class PublishedSingleTurn(SingleTurn):
    """One question per row, and a warning if the rows are the agent's training data."""

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        evaluation = super().evaluate(engine, examples, settings)
        if not any(is_training_row(example) for example in examples):
            return evaluation
        return evaluation.model_copy(update={"how": {**evaluation.how, "warning": TESTED_ON_TRAINING_DATA}})


@cache
def _load_evaluate(path: Path) -> Callable[..., float]:
    """Run eval.py once and return its `evaluate`, without leaving compiled files in the user's folder."""
    module = ModuleType("agent2rl_task_eval")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{path} does not run: {type(error).__name__}: {error}.") from error
    if not callable(getattr(module, "evaluate", None)):
        raise UserError(f"{path} defines no function evaluate.", "Define evaluate(…) -> float.")
    evaluate: Callable[..., float] = module.evaluate
    return evaluate
