"""A task is a value made of parts: examples, a description, an evaluator. A new task is a new value.

Data that is too large to be copied with each example is in folders that a task names in
`Splits.evaluator_folders`. `require_evaluator_folder` finds them in a grading child, read-only; the agent
never sees them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import JsonValue

from agent2rl.core.engine import Chat, Engine
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult, WinRates
from agent2rl.core.records import ExpertHelp, PromptTemplates


@dataclass(frozen=True)
class Example:
    """One problem: the prompt and the reference answer."""

    id: str
    prompt: str
    target: str
    meta: Mapping[str, JsonValue] = field(default_factory=dict)


DataFolder = Path | Callable[[Path], None]
"""A directory that is shown as it is, or a function that writes one."""


@dataclass(frozen=True)
class Splits:
    """`train` goes to the agent; `feedback` scores submissions; `heldout` is used once, at the end."""

    train: tuple[Example, ...]
    feedback: tuple[Example, ...]
    heldout: tuple[Example, ...]
    test: tuple[Example, ...] | None = None
    """The split of the paper's protocol; None: feedback and held-out together."""
    folders: Mapping[str, DataFolder] = field(default_factory=dict)
    """Further training data: name below the agent's `data/` → folder. A function named `.` writes files into
    `data/` itself."""
    evaluator_folders: Mapping[str, DataFolder] = field(default_factory=dict)
    """Data that the evaluator reads in addition to examples: name → folder (`require_evaluator_folder`).

    Only grading children see them.
    """

    def map_examples(self, change: Callable[[Example], Example]) -> "Splits":
        """Return the same splits with every example changed."""
        return replace(
            self,
            train=tuple(map(change, self.train)),
            feedback=tuple(map(change, self.feedback)),
            heldout=tuple(map(change, self.heldout)),
            test=None if self.test is None else tuple(map(change, self.test)),
        )


class Evaluator(Protocol):
    """Scores a model on examples. `version` changes whenever the same outputs could score differently."""

    @property
    def version(self) -> str: ...

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult: ...


@runtime_checkable
class ModelEvaluator(Protocol):
    """An evaluator that loads the model itself. The grading child then opens no engine."""

    def evaluate_model(
        self, model: Path, examples: Sequence[Example], settings: EvalSettings
    ) -> EvalResult: ...


@runtime_checkable
class ChatEvaluator(Protocol):
    """An evaluator that asks one chat per example; for training data, the agent sees the chats."""

    def chat(self, example: Example, templated: bool) -> Chat:
        """Return the chat for a model with a chat template, or the text that one without continues."""
        ...


@runtime_checkable
class PromptableEvaluator(Protocol):
    """An evaluator that accepts the user's prompt templates."""

    def with_prompts(self, prompts: PromptTemplates) -> Self: ...


@runtime_checkable
class ExportableEvaluator(Protocol):
    """An evaluator that can be exported as a program: the agent gets it as `eval.py`."""

    def export_program(self) -> str: ...


@runtime_checkable
class JointEvaluator(Protocol):
    """An evaluator where an example's score depends on the other examples graded with it."""

    def score_alone(self, result: ExampleResult) -> float:
        """Return the observed score of this example, independent of the others."""
        ...


@runtime_checkable
class ProgramEvaluator(Protocol):
    """An evaluator that runs the programs the model wrote, in sandboxes separate from its own."""

    @property
    def program_workers(self) -> int:
        """Maximum number of these sandboxes."""
        ...


@dataclass(frozen=True)
class JudgePreference:
    """A preference of the benchmark's judge: for an output (1) or for the example's reference (0)."""

    example: Example
    output: str
    share: float


class PublishedPreferences(Protocol):
    """Preferences published by a benchmark. `data_dir` is the task's data directory, if the user names it."""

    def win_rates(self, file: Path, data_dir: Path | None) -> WinRates:
        """Compute the win rates of a file of preferences."""
        ...

    def preferences(self, data_dir: Path | None) -> Sequence[JudgePreference]:
        """Return all preferences, for calibrating another judge."""
        ...


@dataclass(frozen=True)
class DataScript:
    """A program of a task folder that writes the task's data. It is the user's code: it runs in a sandbox."""

    argv: tuple[str, ...]
    """Runs in a copy of the folder."""
    folder: Path
    files: tuple[Path, ...]
    """The files of the folder that are copied."""
    sha256: str
    """Hash of these files: the data are kept until it changes."""
    output: str
    """The directory that the program fills, relative to the copy."""
    name: str
    """The script's name in the folder, for messages."""


@dataclass(frozen=True)
class PublishedProfile:
    """The published form of a task's evaluation, which `--protocol paper` selects."""

    name: str
    version: int
    """Changes whenever the same model could get another score."""
    evaluator: Evaluator
    scoring: str
    """Markdown for the agent, in place of `REPLACED_SECTIONS` of the task's description."""
    load: Callable[[Path | None], Splits] | None = None
    """Loads the examples; None: as the task does."""
    adapt: Callable[[Splits], Splits] | None = None
    """Changes the examples once they are loaded."""
    exposes: Mapping[str, Path] | None = None
    """Further files for the agent; None: those of the task."""

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"

    def load_splits(self, load: Callable[[Path | None], Splits], data_dir: Path | None) -> Splits:
        """Load the examples; `load` is the task's own function."""
        splits = (self.load or load)(data_dir)
        return self.adapt(splits) if self.adapt else splits

    def describe(self, description: str) -> str:
        """Return the task's description with this profile's scoring in place of its own."""
        head, *sections = description.split("\n## ")
        kept = [text for text in sections if text.partition("\n")[0] not in REPLACED_SECTIONS]
        parts = (head, *(f"## {text}" for text in kept), self.scoring)
        return "\n\n".join(part.strip() for part in parts) + "\n"


REPLACED_SECTIONS = ("What the model is asked", "How it is scored")


def make_split_profile(evaluator: Evaluator) -> PublishedProfile:
    """Return the profile of a task without a published form: its own evaluation, on the whole test set."""
    return PublishedProfile("paper-split", 1, evaluator, scoring="")


@dataclass(frozen=True)
class Task:
    id: str
    level: Literal[1, 2, 3]
    description: str
    """Markdown for the agent: what the model must learn, the data's format, how it is scored."""
    load: Callable[[Path | None], Splits]
    """Loads all examples from a directory that the user names, or from the task's own source."""
    evaluator: Evaluator
    world: str | None = None
    """The environment that the agent may train in, by its registry name."""
    proxy_services: frozenset[Literal["search", "judge"]] = frozenset()
    """Services of the harness that the evaluation may use; the user names them. Without a judge, a rule
    scores the answers."""
    judged: bool = False
    """Whether no rule can score the answers, so that the user must name a judge."""
    published: PublishedPreferences | None = None
    """The preferences of the benchmark's own judge, if there are any."""
    withhold: Callable[[Splits], Splits] | None = None
    """Removes expert demonstrations from the training data; None if the task has no expert."""
    default_expert: ExpertHelp = "full"
    """The expert help of a run unless the user chooses another level."""
    default_network: str = "none"
    """The network policy of a run unless the user chooses another one."""
    exposes: Mapping[str, Path] = field(default_factory=dict)
    """Further files for the agent: name in the workspace → file."""
    code: tuple[Path, ...] = ()
    """Files outside the package that the grading child needs to rebuild this value."""
    data_script: DataScript | None = None
    """Writes the directory that `load` gets if the user names none; None if the task needs no script."""
    paper: PublishedProfile | None = None
    """The profile of the paper's protocol; None if the task has none."""

    def apply_profile(self, label: str | None) -> Self:
        """Return the task as a published profile evaluates it; None is the task itself."""
        if label is None:
            return self
        if self.paper is None or self.paper.label != label:
            known = f"It has {self.paper.label}." if self.paper else "It has none."
            raise UserError(f"The task {self.id!r} has no published profile {label!r}.", known)
        profile = self.paper
        return replace(
            self,
            evaluator=profile.evaluator,
            description=profile.describe(self.description) if profile.scoring else self.description,
            load=partial(profile.load_splits, self.load),
            exposes=self.exposes if profile.exposes is None else profile.exposes,
        )

    def apply_prompts(self, prompts: PromptTemplates | None) -> Self:
        """Return the task with the user's prompt templates; None is the task itself."""
        if prompts is None:
            return self
        if not isinstance(self.evaluator, PromptableEvaluator):
            raise UserError(f"The task {self.id!r} does not support other prompts.", "Leave out --prompts.")
        return replace(self, evaluator=self.evaluator.with_prompts(prompts))


# Evaluator folders: data that is too large to be copied with each example

MOUNT_NAME = "evaluator-folders"
"""Directory of these folders in the grading child's workspace."""
FOLDER_VARIABLE = "AGENT2RL_EVALUATOR_FOLDERS"
"""Environment variable with the path of that directory."""


def require_evaluator_folder(name: str) -> Path:
    """Return the folder of this name; raise GradingError if it does not exist."""
    if not os.environ.get(FOLDER_VARIABLE):
        raise GradingError(f"There is no folder {name!r} here: evaluator folders exist only during grading.")
    folder = find_evaluator_folder(name)
    if folder is None:
        raise GradingError(f"The task's data has no folder {name!r}.")
    return folder


def find_evaluator_folder(name: str) -> Path | None:
    """Return the folder of this name, or None. A relative variable is below the current directory."""
    root = os.environ.get(FOLDER_VARIABLE)
    folder = Path(root).absolute() / name if root else None
    return folder if folder and folder.is_dir() else None
