"""Call a published evaluator class on a model, in the grading child.

The class loads the model itself and returns one score. The child gives it a writable copy of its folder and a
workspace with `data/`. What it prints goes to the grading log.
"""

import dataclasses
import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from agent2rl.core.engine import Engine
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult
from agent2rl.core.task import Example, require_evaluator_folder
from agent2rl.evaluators.published.answer_scorer import TESTED_ON_TRAINING_DATA
from agent2rl.evaluators.published.contract import (
    BENCHMARKS,
    BaseEvaluator,
    BenchmarkConfig,
    install_contract,
)
from agent2rl.evaluators.published.folder_files import TRAIN, copy_folder_files, is_training_row

HOME = "published"
"""Directory in the child's workspace for the copy of the folder and the evaluator's own workspace."""
DATA = "data"
"""Name of the evaluator folder with the task's data."""
EVALUATOR_HOME = ".home"
"""Directory of the data whose files appear in the evaluator's home, such as `.home/.cache/NAME`."""
ROWS = "rows"
"""Key of an example's meta: the rows that replace train.jsonl."""
COUNTS = ("total", "total_count", "num_samples", "num_examples", "n", "count")
"""Keys of accuracy_summary that count the scored problems, in this order."""
ERROR_CHARACTERS, OUTPUT_CHARACTERS = 400, 4000
FIX = "This is a fault of the task: fix its evaluator."
OWN_TEST_SET = (
    "The evaluator has its own test set, which agent2rl cannot split: feedback and held-out scores are "
    "measured on the same problems."
)
READ_TRAINING_DATA = (
    "The evaluator read train.jsonl, which the agent has: the model may be tested on its training data."
)


@dataclass(frozen=True)
class PublishedModelEvaluator:
    """Scores a model with the evaluator class of a published folder."""

    folder: Path
    files: tuple[Path, ...]
    config: BenchmarkConfig
    digest: str
    """Hash of the folder's files."""

    @property
    def version(self) -> str:
        settings = json.dumps(self.config.eval_config, sort_keys=True, default=str)
        return f"run_eval-{self.digest[:32]}+{settings}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        del engine, examples, settings
        raise GradingError(f"The evaluator of {self.config.id!r} scores models, not recorded answers.")

    def evaluate_model(self, model: Path, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        (example,) = examples
        if settings.samples > 1 or settings.temperature is not None:
            raise GradingError(
                f"The evaluator of {self.config.id!r} samples by its own settings.",
                "Leave out --samples and --temperature.",
            )
        home = Path.cwd() / HOME
        train = _prepare_workspace(home / "workspace", example)
        evaluator = self._open_evaluator(home / "autorl_bench" / "benchmarks" / self.folder.name)
        opened = _watch_file(train)
        result = self._call_evaluator(evaluator, model.resolve(), home / "workspace")
        score, summary = read_score(result), result.get("accuracy_summary")
        count = _read_count(summary if isinstance(summary, Mapping) else {})
        how: dict[str, JsonValue] = {"prompting": "the evaluator's own", "samples": 1}
        if warning := _describe_test_data(example, bool(opened)):
            how["warning"] = warning
        output = json.dumps(_select_details(result), ensure_ascii=False, default=str)[:OUTPUT_CHARACTERS]
        scored = ExampleResult(id=example.id, output=output, score=score / 100, averaged=count)
        return EvalResult(results=(scored,), how=how)

    def _open_evaluator(self, copy: Path) -> BaseEvaluator:
        """Load the class from a copy of its folder: some evaluators write logs beside their code."""
        copy_folder_files(self.folder, self.files, copy)
        config = dataclasses.replace(self.config, bench_dir=str(copy))
        install_contract(config, copy)
        try:
            module = importlib.import_module(f"{BENCHMARKS}.{copy.name}.eval")
            return self._find_class(vars(module), module.__name__)(config)
        except GradingError:
            raise
        except (Exception, SystemExit) as error:
            raise _describe_failure("cannot be loaded", error) from error

    def _find_class(self, values: Mapping[str, Any], module: str) -> type[BaseEvaluator]:
        classes = {
            name: value
            for name, value in values.items()
            if isinstance(value, type) and issubclass(value, BaseEvaluator) and value is not BaseEvaluator
        }
        named = self.config.evaluator_class.rpartition(".")[2]
        own = [value for value in classes.values() if value.__module__ == module]
        if named in classes:
            return classes[named]
        if len(own) == 1:
            return own[0]
        raise GradingError(
            f"eval.py defines {len(own)} subclasses of BaseEvaluator.",
            "Define one, or name it in BenchmarkConfig(evaluator_class=…).",
        )

    def _call_evaluator(self, evaluator: BaseEvaluator, model: Path, workspace: Path) -> Mapping[str, Any]:
        test_range = (self.config.eval_config or {}).get("test_range", "[:]")
        try:
            result: object = evaluator.run_eval(
                model_path=str(model),
                workspace_path=str(workspace),
                model_name="",
                gpu_count=max(1, _count_visible_gpus()),
                test_range=test_range,
            )
        except (Exception, SystemExit) as error:
            raise _describe_failure("failed", error) from error
        if not isinstance(result, Mapping):
            raise GradingError(f"The evaluator returned {type(result).__name__}, not a dictionary.", FIX)
        return result


def _describe_failure(what: str, error: BaseException) -> GradingError:
    """Return the error for the agent, without the text, which can quote test data. The log has it all."""
    traceback.print_exc()
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install {error.name} beside agent2rl, or fix the task's evaluator."
        return GradingError(f"The evaluator {what}: it imports {error.name}, which is not installed.", hint)
    return GradingError(f"The evaluator {what}: {type(error).__name__}.", FIX)


def _prepare_home(data: Path, home: Path) -> None:
    """Show the evaluator the files of the data's `.home` in its home directory, which stays writable."""
    for path in sorted(data.glob(f"{EVALUATOR_HOME}/*")):
        if path.is_dir():
            (home / path.name).mkdir(parents=True, exist_ok=True)
            for entry in path.iterdir():
                (home / path.name / entry.name).symlink_to(entry)
        else:
            (home / path.name).symlink_to(path)


def _prepare_workspace(workspace: Path, example: Example) -> Path:
    """Build the evaluator's workspace and return the path of its train.jsonl."""
    data = workspace / "data"
    data.mkdir(parents=True)
    train, rows = data / TRAIN, example.meta.get(ROWS)
    source = require_evaluator_folder(DATA).resolve()
    for path in sorted(source.iterdir()):
        if path.name != EVALUATOR_HOME and (path.name != TRAIN or rows is None):
            (data / path.name).symlink_to(path)
    _prepare_home(source, Path.home())
    if isinstance(rows, list):
        train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return train


def _watch_file(path: Path) -> list[str]:
    """Return a list that gets an entry whenever this process opens the file."""
    opened: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(f"/data/{path.name}"):
            opened.append(arguments[0])

    # Such a hook can never be removed, but this process grades one model and ends.
    sys.addaudithook(note)
    return opened


def _describe_test_data(example: Example, opened: bool) -> str:
    """Return what is wrong with the test data; empty if they are rows that the agent does not have."""
    if ROWS not in example.meta:
        return f"{OWN_TEST_SET} {READ_TRAINING_DATA}" if opened else OWN_TEST_SET
    return TESTED_ON_TRAINING_DATA if is_training_row(example) else ""


def read_score(result: Mapping[str, Any]) -> float:
    """Return the score of a result; raise GradingError if it has an error or no score."""
    if error := result.get("error"):
        text = " ".join(str(error).split())[:ERROR_CHARACTERS]
        raise GradingError(f"The evaluator reported an error: {text}")
    score = result.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise GradingError(f"The evaluator returned no finite score ({type(score).__name__}).", FIX)
    if not 0 <= score <= 100:
        raise GradingError("The evaluator returned a score outside 0 to 100.", FIX)
    return float(score)


def _read_count(summary: Mapping[str, Any]) -> int:
    """Return how many problems the score averages over; 0 if the summary does not say."""
    counts = (summary.get(name) for name in COUNTS)
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)


def _select_details(result: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("eval_type", "accuracy_summary", "raw_output")
    return {key: result[key] for key in keys if key in result}


def _count_visible_gpus() -> int:
    return len([each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()])
