"""A task is a value made of parts: examples, a description, an evaluator. A new task is a new value.

Data too large to travel with each example lies in folders that a task names in `Splits.beside`. A grading
child finds them here, read-only; the agent never sees them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import JsonValue

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult, WinRates
from agent2rl.core.records import PromptTemplates


@dataclass(frozen=True)
class Example:
    """One problem: what the model is asked, and what a right answer looks like."""

    id: str
    prompt: str
    target: str
    meta: Mapping[str, JsonValue] = field(default_factory=dict)


DataFolder = Path | Callable[[Path], None]
"""A directory that is shown as it is, or what writes one."""


@dataclass(frozen=True)
class Splits:
    """`train` goes to the agent; `feedback` answers submissions; `heldout` is opened once, at the end."""

    train: tuple[Example, ...]
    feedback: tuple[Example, ...]
    heldout: tuple[Example, ...]
    test: tuple[Example, ...] | None = None
    """What the paper's protocol scores; None: feedback and held-out together."""
    folders: Mapping[str, DataFolder] = field(default_factory=dict)
    """Further training data: name below the agent's `data/` → folder."""
    beside: Mapping[str, DataFolder] = field(default_factory=dict)
    """What the evaluator reads beside feedback and held-out examples: name (`core.beside`) → folder.

    Only grading children see them.
    """


class Evaluator(Protocol):
    """Scores a model on examples. `version` changes whenever the same outputs could score differently."""

    @property
    def version(self) -> str: ...

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult: ...


@runtime_checkable
class ChatEvaluator(Protocol):
    """An evaluator that puts one chat to the model for each example; for training data the agent sees it."""

    def chat(self, example: Example, templated: bool) -> Chat:
        """For a model with a chat template, or to be continued by one without."""
        ...


@runtime_checkable
class PromptableEvaluator(Protocol):
    """An evaluator that can put its questions in a user's words."""

    def prompted(self, prompts: PromptTemplates) -> Self: ...


@runtime_checkable
class ExportableEvaluator(Protocol):
    """An evaluator that can be written down: the agent gets the program as `eval.py`."""

    def program(self) -> str: ...


@runtime_checkable
class JointEvaluator(Protocol):
    """An evaluator where an example's score depends on which others are graded with it."""

    def alone(self, result: ExampleResult) -> float:
        """What was seen of this example, whatever the others are."""
        ...


@runtime_checkable
class ProgramEvaluator(Protocol):
    """An evaluator that runs what the model wrote, in sandboxes that are made for it beside its own."""

    @property
    def program_workers(self) -> int:
        """How many sandboxes it wants, at most."""
        ...


@dataclass(frozen=True)
class JudgePreference:
    """A preference of the benchmark's own judge: for an output (1) or for the example's reference (0)."""

    example: Example
    output: str
    share: float


class PublishedPreferences(Protocol):
    """Preferences as a benchmark publishes them. `data_dir` is the task's data, where the user names it."""

    def win_rates(self, file: Path, data_dir: Path | None) -> WinRates:
        """What a file of preferences comes to."""
        ...

    def preferences(self, data_dir: Path | None) -> Sequence[JudgePreference]:
        """All that there are, to measure another judge by."""
        ...


@dataclass(frozen=True)
class Task:
    id: str
    level: Literal[1, 2, 3]
    description: str
    """Markdown for the agent: what the model must learn, the data's format, how it is scored."""
    load: Callable[[Path | None], Splits]
    """All examples, from a directory the user names, or from the task's own source."""
    evaluator: Evaluator
    world: str | None = None
    """The environment that the agent may train in: a name that the registry knows."""
    desk: frozenset[Literal["search", "judge"]] = frozenset()
    """What its evaluation may ask the harness for: the user names it; without a judge a rule decides."""
    judged: bool = False
    """Whether no rule can: then the user has to name a judge."""
    published: PublishedPreferences | None = None
    """The preferences of the benchmark's own judge, where there are any."""
    withhold: Callable[[Splits], Splits] | None = None
    """Takes out of the training data what shows how it is done; None: nobody shows it."""
    exposes: Mapping[str, Path] = field(default_factory=dict)
    """Further files for the agent: name in the workspace → file."""
    code: tuple[Path, ...] = ()
    """Files outside the package that the grading child needs to build this value again."""


# Where an evaluator finds what lies beside the examples: data too large to travel with each of them.

MOUNT_NAME = "beside"
"""Where the child sees the folders, in its workspace."""
FOLDER_VARIABLE = "AGENT2RL_BESIDE"
"""Names that place to whoever grades."""


def require_evaluator_folder(name: str) -> Path:
    """The folder of this name. A relative place is one below the current directory."""
    if not os.environ.get(FOLDER_VARIABLE):
        raise GradingError(f"There is no folder {name!r} here: only a grading has what lies beside examples.")
    found = find_evaluator_folder(name)
    if found is None:
        raise GradingError(f"The task's data has no folder {name!r}.")
    return found


def find_evaluator_folder(name: str) -> Path | None:
    """The same; None where there is no such folder."""
    place = os.environ.get(FOLDER_VARIABLE)
    found = Path(place).absolute() / name if place else None
    return found if found and found.is_dir() else None
