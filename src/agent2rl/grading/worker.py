"""The grading child: the one program that opens evaluation data and loads a submitted model.

Started in a sandbox of its own, in a directory with `job.json`, `model/` and `examples.jsonl`; leaves
`result.json`. It answers with every example's result and never with a summary: the service adds up.

The agent hears the text of an error only where no example can be in it (loading the model, and errors that
an evaluator words itself, without their numbers: a length or a count could spell an example). Anything else
goes to the log, which the agent does not see.
"""

import re
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.engine import Engine
from agent2rl.core.errors import Agent2RLError, GradingError, UserError
from agent2rl.core.records import EvalResult, EvalSettings, Prompts, Record
from agent2rl.core.task import Example, Prompted, Task
from agent2rl.store.files import write_record

JOB, MODEL, EXAMPLES, RESULT = "job.json", "model", "examples.jsonl", "result.json"
ERROR_CHARACTERS = 600


class Job(Record):
    """What to grade; the files lie beside it."""

    task: str
    engine: str
    settings: EvalSettings
    prompts: Prompts | None = None


class ExampleRow(Record):
    """An example as the evaluation files hold it."""

    id: str
    prompt: str
    target: str
    meta: dict[str, JsonValue]

    @classmethod
    def of(cls, example: Example) -> "ExampleRow":
        return cls(id=example.id, prompt=example.prompt, target=example.target, meta=dict(example.meta))

    def example(self) -> Example:
        return Example(self.id, self.prompt, self.target, self.meta)


class Outcome(Record):
    """What the child says: results, or why there are none."""

    evaluation: EvalResult | None = None
    error: str | None = None


def grade(here: Path) -> Outcome:
    job = Job.model_validate_json((here / JOB).read_bytes())
    evaluator = prompted(registry.task(job.task), job.prompts).evaluator
    begin = time.monotonic()
    with _load(job.engine, here / MODEL) as engine:
        loaded = time.monotonic()
        lines = (here / EXAMPLES).read_bytes().splitlines()
        examples = [ExampleRow.model_validate_json(line).example() for line in lines]
        print(f"model loaded in {loaded - begin:.1f} s; {len(examples)} examples", flush=True)
        try:
            evaluation = evaluator.evaluate(engine, examples, job.settings)
        except Agent2RLError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            raise type(error)(hide_numbers(error.message), error.mend) from error
    done = time.monotonic()
    print(f"graded in {done - loaded:.1f} s", flush=True)
    how = {**evaluation.how, "evaluator": evaluator.version}
    return Outcome(evaluation=evaluation.model_copy(update={"how": how}))


def prompted(task: Task, prompts: Prompts | None) -> Task:
    """The task, asking in a user's words where there are any."""
    if prompts is None:
        return task
    if not isinstance(task.evaluator, Prompted):
        raise UserError(f"The task {task.id!r} cannot ask in other words.", "Leave out --prompts.")
    return replace(task, evaluator=task.evaluator.prompted(prompts))


def hide_numbers(text: str) -> str:
    """An error's text with every number as N: what is counted may depend on the examples."""
    return re.sub(r"\d[\d.,_]*(?<=\d)|\d", "N", text)


def _load(engine: str, model: Path) -> Engine:
    open_engine = registry.engine(engine)
    try:
        return open_engine(model)
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, Agent2RLError):  # says it itself
            raise
        said = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        raise GradingError(f"The model cannot be loaded: {said}") from error


def main() -> int:
    here = Path.cwd()
    try:
        outcome = grade(here)
    except Agent2RLError as error:
        outcome = Outcome(error=str(error))
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(error=f"The evaluation crashed ({type(error).__name__}).")
    write_record(here / RESULT, outcome)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main())
