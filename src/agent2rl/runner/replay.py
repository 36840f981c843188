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
from agent2rl.grading.child import Child
from agent2rl.grading.programs import program_sandboxes
from agent2rl.runner import machine
from agent2rl.runner.assets import beside_folders, split_file
from agent2rl.runner.desks import Opened
from agent2rl.runner.private_places import PrivateSandbox, find_private_places
from agent2rl.runner.settings import Settings

ENGINE = "agent2rl.engines.replay:open_engine"
OUTPUTS = "outputs.jsonl"
NOTES = ("model loaded in ", "graded in ", "peak memory ")
"""What every grading's log says, whatever becomes of it."""


def replaying(
    task: Task, name: str, loaded: Splits, settings: Settings, sandbox: str, seconds: float, desk: Opened
) -> Child:
    return Child(
        desk=desk.socket,
        offer=desk.offer,
        sandbox=PrivateSandbox(registry.sandbox(sandbox), find_private_places(settings)),
        task=name,
        engine=ENGINE,
        settings=EvalSettings(),
        splits={},
        beside=beside_folders(loaded, settings.cache / "tasks" / task.id),
        limits=machine.limits(settings.runs),
        seconds=seconds,
        code=task.code,
        programs=program_sandboxes(task),
        python_path=settings.python_path,
    )


def grade(child: Child, examples: Sequence[Example], outputs: Mapping[str, Sequence[str]]) -> EvalResult:
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
            splits={"feedback": split_file(examples, home / "examples")},
        )
        try:
            return ready.grade(model, "feedback", home / "log", home / "scratch", threading.Event())
        except GradingError as error:
            raise GradingError(error.message, _last_line(home / "log") or error.mend) from error


def _last_line(log: Path) -> str:
    """The user's own task may say more to its user than to an agent."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = [line for line in lines if line.strip() and not line.startswith(NOTES)]
    return said[-1][:300] if said else ""
