"""Score given outputs without a model, in a sandboxed child like submissions.

The outputs are a file of JSON lines, `{"id": …, "output": …}`; `task_id` and `completion` are understood too.
Several lines with one id are several samples. Examples without an output do not count, and the result says
how many there are.
"""

import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalResult, EvalScore, EvalSettings, ExampleResult, Part, WinRates
from agent2rl.core.records import Isolation, Record
from agent2rl.core.sandbox import Sandbox
from agent2rl.core.task import ChatEvaluator, Example, JointEvaluator, Splits, Task
from agent2rl.evaluators.win_rates import is_compressed
from agent2rl.grading.grading_child import GradingChild, count_program_sandboxes
from agent2rl.run import grading_proxy_setup, machine
from agent2rl.run.assets import prepare_evaluator_folders, test_set, write_split_file
from agent2rl.run.grading_proxy_setup import OpenedGradingProxy
from agent2rl.run.private_places import find_private_places
from agent2rl.run.sandbox_choice import open_sandbox
from agent2rl.run.settings import Settings
from agent2rl.run.task_data import load_task_data

# Grading in a sandboxed child.

ENGINE = "agent2rl.engines.replay:open_engine"
OUTPUTS = "outputs.jsonl"
NOTES = ("model loaded in ", "graded in ", "peak memory ")
"""Lines that every grading log has."""


def make_replay_child(
    task: Task,
    name: str,
    loaded: Splits,
    settings: Settings,
    sandbox: Sandbox,
    seconds: float,
    proxy: OpenedGradingProxy,
) -> GradingChild:
    return GradingChild(
        proxy_socket=proxy.socket,
        proxy_description=proxy.description,
        sandbox=sandbox,
        task=name,
        engine=ENGINE,
        settings=EvalSettings(),
        splits={},
        evaluator_folders=prepare_evaluator_folders(loaded, settings.cache / "tasks" / task.id),
        limits=machine.resolve_limits(settings.runs),
        seconds=seconds,
        code=task.code,
        programs=count_program_sandboxes(task),
        python_path=settings.python_path,
    )


def grade_outputs(
    child: GradingChild, examples: Sequence[Example], outputs: Mapping[str, Sequence[str]]
) -> EvalResult:
    """Grade each example's outputs. All examples have the same number of outputs."""
    samples = len(outputs[examples[0].id])
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as directory:
        home = Path(directory)
        model = home / "model"
        model.mkdir()
        with (model / OUTPUTS).open("w", encoding="utf-8") as file:
            for example in examples:
                rows = [{"id": example.id, "output": output} for output in outputs[example.id]]
                file.writelines(json.dumps(row) + "\n" for row in rows)
        ready = replace(
            child,
            settings=child.settings.model_copy(update={"samples": samples}),
            splits={"feedback": write_split_file(examples, home / "examples")},
        )
        try:
            return ready.grade_model(model, "feedback", home / "log", home / "scratch", threading.Event())
        except GradingError as error:
            raise GradingError(error.message, _read_last_line(home / "log") or error.hint) from error


def _read_last_line(log: Path) -> str:
    """Return the last line of the log: the user may see more of a task's errors than an agent."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    messages = [line for line in lines if line.strip() and not line.startswith(NOTES)]
    return messages[-1][:300] if messages else ""


SECONDS = 3600
NO_PROXY = grading_proxy_setup.GradingProxyOptions()
KEYS = {"id": ("id", "task_id"), "output": ("output", "completion")}
FORMAT = 'Each line is {"id": …, "output": …}; more lines with the same id are further samples.'


class PartScore(Record):
    """The score of the outputs on one part of the examples."""

    of: int
    """Number of examples of the part; `score_outputs.n` of them have outputs."""
    score: EvalScore
    missing: tuple[str, ...]
    """The first few examples without outputs."""


class OutputScores(Record):
    task: str
    evaluator: str
    """Version of the evaluator; only scores of the same version are comparable."""
    parts: tuple[PartScore, ...]
    isolation: Isolation | None = None
    """The sandbox in which they were graded."""


def score_outputs(
    name: str,
    file: Path,
    data_dir: Path | None,
    settings: Settings,
    sandbox: str,
    proxy_options: grading_proxy_setup.GradingProxyOptions = NO_PROXY,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[OutputScores, tuple[ExampleResult, ...]]:
    task = registry.find_task(name)
    if not isinstance(task.evaluator, ChatEvaluator) and task.world is None:
        raise UserError(
            f"The task {task.id!r} cannot be graded from outputs: its evaluator queries the model itself.",
            "Submit a model in a run instead.",
        )
    opened = open_sandbox(sandbox, find_private_places(settings))
    tell(opened.description)
    splits = load_task_data(task, data_dir, settings.cache, opened.sandbox)
    outputs = read_outputs(file, splits)
    parts = _list_parts(splits)
    answered = {part: [each for each in examples if each.id in outputs] for part, examples in parts.items()}
    with grading_proxy_setup.open_grading_proxy(proxy_options, task, settings, needed=False) as proxy:
        child = make_replay_child(task, name, splits, settings, opened.sandbox, SECONDS, proxy)

        def grade_examples(examples: Sequence[Example]) -> EvalResult:
            return grade_outputs(child, examples, outputs)

        if isinstance(task.evaluator, JointEvaluator):  # a run grades each part separately
            by_part = {part: grade_examples(examples) for part, examples in answered.items() if examples}
        else:
            all_results = grade_examples([each for each in _list_all_examples(splits) if each.id in outputs])
            by_part = {
                part: _select_results(all_results, examples)
                for part, examples in answered.items()
                if examples
            }
    scores = tuple(
        _score_part(part, parts[part], result) for part, result in by_part.items() if result.results
    )
    # Backwards, so that an example of several parts has its result from the first of them.
    by_id = {each.id: each for part in reversed(by_part.values()) for each in part.results}
    results = tuple(by_id[each.id] for each in _list_all_examples(splits) if each.id in by_id)
    version = task.evaluator.version
    return OutputScores(task=task.id, evaluator=version, parts=scores, isolation=opened.isolation), results


def compute_win_rates(name: str, file: Path, data_dir: Path | None) -> WinRates | None:
    """Return the win rates in a file of judge preferences; None if it or the task has no such format."""
    task = registry.find_task(name)
    if task.published is None or not _is_list(file):
        return None
    return task.published.win_rates(file, data_dir)


def _is_list(file: Path) -> bool:
    """Return whether the file is a JSON list or compressed; files of outputs have an object per line."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(1 << 12)
            return is_compressed(begin) or begin.lstrip()[:1] == b"["
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from error


def read_outputs(file: Path, splits: Splits) -> dict[str, list[str]]:
    """Read the outputs of each example. All listed examples must have the same number."""
    example_ids = {example.id for example in _list_all_examples(splits)}
    outputs: dict[str, list[str]] = {}
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    name, output = _parse_output_row(line, f"{file}, line {number}")
                    if name not in example_ids:
                        raise _make_unknown_id_error(name, f"{file}, line {number}", splits)
                    outputs.setdefault(name, []).append(output)
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from error
    if not outputs:
        raise UserError(f"{file} contains no outputs.", FORMAT)
    shortest, longest = (
        min(outputs, key=lambda name: len(outputs[name])),
        max(outputs, key=lambda name: len(outputs[name])),
    )
    if len(outputs[shortest]) != len(outputs[longest]):
        raise UserError(
            f"{file} has {_format_line_count(len(outputs[shortest]))} for {shortest!r} "
            f"and {_format_line_count(len(outputs[longest]))} for {longest!r}.",
            "Several lines with one id are several samples: give every id the same number.",
        )
    return outputs


def _parse_output_row(line: bytes, location: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location} is not JSON: {error}.", FORMAT) from error
    if not isinstance(row, dict):
        raise UserError(f"{location} is not an object with an id and an output.", FORMAT)
    return _read_text_field(row, "id", location), _join_episode_actions(row) or _read_text_field(
        row, "output", location
    )


def _join_episode_actions(row: dict[str, Any]) -> str:
    """Return the actions of an episode in a run's results, one per line."""
    turns = row.get("trajectory")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return ""
    return join_actions([str(turn.get("action")) for turn in turns])


def join_actions(actions: Sequence[str]) -> str:
    """Return the actions of an episode, one per line. The first turn of a trajectory has none."""
    return "\n".join(actions[1:])


def _read_text_field(row: dict[str, Any], what: str, location: str) -> str:
    key = next((key for key in KEYS[what] if key in row), None)
    if key is None:
        raise UserError(f"{location} has no {what}.", FORMAT)
    if not isinstance(row[key], str):
        raise UserError(f"{location}: {key} is a {type(row[key]).__name__}, not text.", FORMAT)
    text: str = row[key]
    # A lone surrogate cannot be encoded as UTF-8, and no model produces one.
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _make_unknown_id_error(name: str, location: str, splits: Splits) -> UserError:
    sets = (splits.train, splits.feedback, splits.heldout)
    looks = ", ".join(dict.fromkeys(examples[0].id for examples in sets if examples))
    return UserError(f"{location}: there is no example {name!r}.", f"The task's ids look like {looks}.")


def _format_line_count(number: int) -> str:
    return f"{number} line{'s' if number > 1 else ''}"


def _list_all_examples(splits: Splits) -> tuple[Example, ...]:
    return (*splits.train, *splits.feedback, *splits.heldout)


def _list_parts(splits: Splits) -> dict[Part, Sequence[Example]]:
    return {
        "train": splits.train,
        "feedback": splits.feedback,
        "heldout": splits.heldout,
        "test": test_set(splits),
    }


def _select_results(evaluation: EvalResult, examples: Sequence[Example]) -> EvalResult:
    """Return the part of a result that is about these examples."""
    results = {result.id: result for result in evaluation.results}
    return EvalResult(
        results=tuple(results[each.id] for each in examples if each.id in results),
        missing={each.id: evaluation.missing[each.id] for each in examples if each.id in evaluation.missing},
        how=evaluation.how,
    )


def _score_part(part: Part, examples: Sequence[Example], evaluation: EvalResult) -> PartScore:
    answered = {result.id for result in evaluation.results} | {*evaluation.missing}
    missing = [example.id for example in examples if example.id not in answered]
    return PartScore(
        of=len(examples), score=statistics.score_evaluation(evaluation, part), missing=tuple(missing[:5])
    )
