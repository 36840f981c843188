"""Grades outputs that are given, without a model, as submissions are graded: in a sandboxed child."""

import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agent2rl import registry
from agent2rl.core.errors import GradingError
from agent2rl.core.records import EvalResult, EvalSettings
from agent2rl.core.task import Example, Splits, Task
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.program_sandboxes import count_program_sandboxes
from agent2rl.runner import machine
from agent2rl.runner.assets import prepare_beside_folders, write_split_file
from agent2rl.runner.grading_proxy_setup import OpenedGradingProxy
from agent2rl.runner.private_places import PrivateSandbox, find_private_places
from agent2rl.runner.settings import Settings

ENGINE = "agent2rl.engines.replay:open_engine"
OUTPUTS = "outputs.jsonl"
NOTES = ("model loaded in ", "graded in ", "peak memory ")
"""What every grading's log says, whatever becomes of it."""


def make_replay_child(
    task: Task,
    name: str,
    loaded: Splits,
    settings: Settings,
    sandbox: str,
    seconds: float,
    desk: OpenedGradingProxy,
) -> GradingChild:
    return GradingChild(
        desk=desk.socket,
        offer=desk.offer,
        sandbox=PrivateSandbox(registry.find_sandbox(sandbox), find_private_places(settings)),
        task=name,
        engine=ENGINE,
        settings=EvalSettings(),
        splits={},
        beside=prepare_beside_folders(loaded, settings.cache / "tasks" / task.id),
        limits=machine.resolve_limits(settings.runs),
        seconds=seconds,
        code=task.code,
        programs=count_program_sandboxes(task),
        python_path=settings.python_path,
    )


def grade_outputs(
    child: GradingChild, examples: Sequence[Example], outputs: Mapping[str, Sequence[str]]
) -> EvalResult:
    """What each example's outputs are worth. All have as many as the first."""
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
            settings=EvalSettings(samples=samples),
            splits={"feedback": write_split_file(examples, home / "examples")},
        )
        try:
            return ready.grade_model(model, "feedback", home / "log", home / "scratch", threading.Event())
        except GradingError as error:
            raise GradingError(error.message, _read_last_line(home / "log") or error.hint) from error


def _read_last_line(log: Path) -> str:
    """The user's own task may say more to its user than to an agent."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = [line for line in lines if line.strip() and not line.startswith(NOTES)]
    return said[-1][:300] if said else ""
