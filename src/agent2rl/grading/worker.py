"""The grading child: the only program that opens evaluation data and loads a submitted model.

It starts in its own sandbox, in a directory with `job.json`, `model/` and `examples.jsonl`, and writes
`result.json`. The answer has every example's result and no summary; the service computes the score.

The agent gets the text of an error only if it cannot contain examples: errors of loading the model, and
errors that an evaluator raises itself (the service removes their numbers). Anything else goes to the log,
which the agent does not see.
"""

import gc
import sys
import time
import traceback
from pathlib import Path

from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.engine import Engine, use_all_cores
from agent2rl.core.errors import Agent2RLError, EngineFailure, GradingError
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.records import PromptTemplates, Record
from agent2rl.core.task import Example, ModelEvaluator
from agent2rl.record.files import write_record

MIN_EXAMPLES_PER_PROCESS = 16
"""With fewer, starting a process takes longer than it saves."""

JOB, MODEL, EXAMPLES, RESULT = "job.json", "model", "examples.jsonl", "result.json"
ERROR_CHARACTERS = 600


class GradingJob(Record):
    """What to grade; the files are in the same directory."""

    task: str
    engine: str
    settings: EvalSettings
    prompts: PromptTemplates | None = None
    profile: str | None = None
    """The published profile that evaluates; None: the task's own evaluation."""
    processes: int = 1
    """The most processes that the engine may run in."""


class ExampleRow(Record):
    """An example in an evaluation file."""

    id: str
    prompt: str
    target: str
    meta: dict[str, JsonValue]

    @classmethod
    def from_example(cls, example: Example) -> "ExampleRow":
        return cls(id=example.id, prompt=example.prompt, target=example.target, meta=dict(example.meta))

    def to_example(self) -> Example:
        return Example(self.id, self.prompt, self.target, self.meta)


class GradingOutcome(Record):
    """The child's answer: results, or an error."""

    evaluation: EvalResult | None = None
    error: str | None = None
    examples_were_open: bool = False
    """Whether the error's text may depend on examples."""
    engine_failed: bool = False
    """Whether the engine itself failed before the examples were open: the end of the log says why."""


def run_job(here: Path) -> GradingOutcome:
    job = GradingJob.model_validate_json((here / JOB).read_bytes())
    task = registry.find_task(job.task).apply_profile(job.profile)
    evaluator = task.apply_prompts(job.prompts).evaluator
    if isinstance(evaluator, ModelEvaluator):
        return _grade_without_engine(evaluator, evaluator.version, here, job.settings)
    begin = time.monotonic()
    with _load_engine(job.engine, here / MODEL) as loaded_engine:
        # What loading made stays until the end, so the collector need not look at it again and
        # again.
        gc.freeze()
        gc.enable()
        loaded = time.monotonic()
        examples = _read_examples(here)
        print(f"model loaded in {loaded - begin:.1f} s; {len(examples)} examples", flush=True)
        try:
            processes = min(job.processes, len(examples) // MIN_EXAMPLES_PER_PROCESS)
            with use_all_cores(loaded_engine, max(1, processes)) as engine:
                evaluation = evaluator.evaluate(engine, examples, job.settings)
        except Agent2RLError as error:
            _log_engine_failure(error)
            return GradingOutcome(error=str(error), examples_were_open=True)
    done = time.monotonic()
    print(f"graded in {done - loaded:.1f} s", flush=True)
    how = {**evaluation.how, "evaluator": evaluator.version}
    return GradingOutcome(evaluation=evaluation.model_copy(update={"how": how}))


def _grade_without_engine(
    evaluator: ModelEvaluator, version: str, here: Path, settings: EvalSettings
) -> GradingOutcome:
    """Let an evaluator that loads the model itself grade it."""
    gc.enable()
    begin = time.monotonic()
    try:
        evaluation = evaluator.evaluate_model(here / MODEL, _read_examples(here), settings)
    except Agent2RLError as error:
        return GradingOutcome(error=str(error), examples_were_open=True)
    print(f"graded in {time.monotonic() - begin:.1f} s", flush=True)
    how = {**evaluation.how, "evaluator": version}
    return GradingOutcome(evaluation=evaluation.model_copy(update={"how": how}))


def _read_examples(here: Path) -> list[Example]:
    lines = (here / EXAMPLES).read_bytes().splitlines()
    return [ExampleRow.model_validate_json(line).to_example() for line in lines]


def _load_engine(engine: str, model: Path) -> Engine:
    open_engine = registry.find_engine(engine)
    try:
        return open_engine(model)
    except EngineFailure as error:
        _log_engine_failure(error)
        raise
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, Agent2RLError):  # has its own message
            raise
        said = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        raise GradingError(f"The model cannot be loaded: {said}") from error


def _log_engine_failure(error: Agent2RLError) -> None:
    """Print the engine's own error, without our frames: the message quotes the last lines of the log."""
    if isinstance(error, EngineFailure):
        traceback.print_exception(error.__cause__ or error)


def main() -> int:
    here = Path.cwd()
    # Loading a model library makes millions of objects that stay: looking for garbage among them is a sixth
    # of its time. The collector starts again once the model is loaded.
    gc.disable()
    try:
        outcome = run_job(here)
    except Agent2RLError as error:
        outcome = GradingOutcome(error=str(error), engine_failed=isinstance(error, EngineFailure))
    except Exception as error:
        traceback.print_exc()
        outcome = GradingOutcome(error=f"The evaluation crashed ({type(error).__name__}).")
    write_record(here / RESULT, outcome)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main())
