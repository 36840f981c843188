"""State, limits and interface of the interpreter, and the trace that it records."""

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    CodeLocation,
    Definition,
    ModuleValue,
    NameScope,
    collect_marks,
    join_values,
)
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.source_files import AgentSourceFiles
from agent2rl.analysis.workspace_paths import HOLE, normalise_path, path_covers

# The trace.

MOST_STAGES, MOST_NOTED = 12, 500


@dataclass(frozen=True)
class DetectedStage:
    """A training that a program performs."""

    route: Route
    confidence: float
    places: tuple[CodeLocation, ...]
    """Where it happens, then the lines that determine its route."""
    world: bool = False
    """Whether it learns from the task's environment."""
    launch: int = 0
    """Index of the launch that performs it."""


@dataclass(frozen=True)
class WeightsHistory:
    """How weights were produced."""

    stages: tuple[DetectedStage, ...] = ()
    origins: tuple[str, ...] = ()
    """Paths of weights that training started from and that no program here made."""
    launch: int = 0


@dataclass(frozen=True)
class NotedSetting:
    """A hyperparameter or a data set that a program uses."""

    name: str
    value: JsonValue
    place: CodeLocation | None
    launch: int
    weight: int = 1
    """Of two values in a program, the one with more weight counts."""
    on_command_line: bool = False


@dataclass
class ProgramTrace:
    """What programs do. Shared by the programs of an attempt, which see each other's files."""

    stages: list[DetectedStage] = field(default_factory=list)
    weights: dict[str, WeightsHistory] = field(default_factory=dict)
    """By path, which may have holes; the last saved is last."""
    files: dict[str, AbstractValue] = field(default_factory=dict)
    """Values written to data files, by path."""
    models: dict[str, WeightsHistory] = field(default_factory=dict)
    """History of each loaded model, by mark."""
    noted: dict[tuple[str, str, int], NotedSetting] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    launch: int = 0
    steps: int = 0
    """Number of steps taken so far."""
    cut: bool = False
    """Some program exceeded the step limit."""

    def load_weights(self, paths: Iterable[str]) -> str:
        """Record that a model is loaded; return its mark."""
        histories = [
            self.find_weights(path) or WeightsHistory(origins=(path,)) for path in dict.fromkeys(paths)
        ]
        self.loads += [path for made in histories for path in made.origins]
        mark = f"{m.MODEL}{len(self.models)}"
        self.models[mark] = merge_histories(histories)
        return mark

    def add_stage(self, stage: DetectedStage, models: Marks) -> None:
        """Record a training. A line counts once, however often it is reached."""
        stage = replace(stage, launch=self.launch)
        before = [each for each in self.stages if _is_same_stage(each, stage)]
        if before and before[0].confidence >= stage.confidence:
            stage = before[0]
        self.stages = _replace_stage(self.stages, stage)
        # If it is not known which model is trained, it may be any that was loaded.
        for mark in models or frozenset(self.models):
            made = self.models.get(mark, WeightsHistory())
            self.models[mark] = WeightsHistory(
                tuple(_replace_stage(made.stages, stage)), made.origins, self.launch
            )

    def save_weights(self, path: str | None, models: Marks, stage: DetectedStage | None = None) -> None:
        """Record that weights are saved. `stage` is a change outside of any training, such as a merge."""
        sought = [self.models[mark] for mark in sorted(models) if mark in self.models]
        if not sought:
            sought = [WeightsHistory(tuple(self.stages[-MOST_STAGES:]), ())] if self.stages else []
        made = merge_histories(sought)
        if stage:
            self.stages.append(replace(stage, launch=self.launch))
            made = WeightsHistory((*made.stages, self.stages[-1]), made.origins)
        key = normalise_path(path) if path else HOLE
        # Removed first, so that it moves to the end: the weights that were saved last count.
        self.weights.pop(key, None)
        self.weights[key] = WeightsHistory(made.stages, made.origins, self.launch)

    def find_weights(self, path: str) -> WeightsHistory | None:
        return find_weights(self.weights, path)

    def copy_weights(self, source: str, target: str) -> None:
        made = self.find_weights(source) or WeightsHistory(origins=(source,))
        if HOLE not in target or made.stages:
            self.weights.pop(normalise_path(target), None)
            self.weights[normalise_path(target)] = WeightsHistory(made.stages, made.origins, self.launch)

    def write_file(self, path: str | None, value: AbstractValue) -> None:
        key = normalise_path(path) if path else HOLE
        self.files[key] = join_values([self.files.get(key, NOTHING), value])

    def read_file(self, path: str | None) -> AbstractValue:
        """Return what programs wrote to a path. A path with holes matches all files that fit."""
        if path is None:
            return NOTHING
        pattern = normalise_path(path)
        if pattern in self.files:
            return self.files[pattern]
        if HOLE not in pattern:
            matches = [
                value for key, value in self.files.items() if HOLE in key and path_covers(key, pattern)
            ]
            return join_values(matches)
        return join_values(value for key, value in self.files.items() if path_covers(pattern, key))

    def note_setting(
        self,
        name: str,
        value: JsonValue,
        place: CodeLocation | None,
        weight: int = 1,
        on_command_line: bool = False,
    ) -> None:
        setting = NotedSetting(name, value, place, self.launch, weight, on_command_line)
        if len(self.noted) < MOST_NOTED:
            self.noted[name, str(place), self.launch] = setting


def _is_same_stage(one: DetectedStage, other: DetectedStage) -> bool:
    return one.places[:1] == other.places[:1] and one.launch == other.launch


def _replace_stage(stages: Sequence[DetectedStage], new: DetectedStage) -> list[DetectedStage]:
    """Replace an equal stage, or append."""
    if any(_is_same_stage(each, new) for each in stages):
        return [new if _is_same_stage(each, new) else each for each in stages]
    return [*stages, new][:MOST_STAGES]


def find_weights(weights: Mapping[str, WeightsHistory], path: str) -> WeightsHistory | None:
    """Return the history of the newest weights at a path, or in a folder that contains it."""
    matching = [key for key in weights if path_covers(key, normalise_path(path))]
    exact = [key for key in matching if key == normalise_path(path)]
    return weights[(exact or matching)[-1]] if matching else None


def merge_histories(histories: Iterable[WeightsHistory]) -> WeightsHistory:
    parts = list(histories)
    stages = tuple(dict.fromkeys(stage for made in parts for stage in made.stages))
    origins = tuple(dict.fromkeys(path for made in parts for path in made.origins))
    return WeightsHistory(stages[-MOST_STAGES:], origins, max((made.launch for made in parts), default=0))


# The interpreter.

STEPS, ALL_STEPS = 40_000, 200_000
"""Step limits for a program and for all programs of an attempt."""
DEEPEST = 220
"""Limit on nested calls of the interpreter itself, below Python's recursion limit."""
REWARD = re.compile(
    r"reward|advantage|(?:^|_)advs?(?:_|$)|(?:^|_)(?:returns?|rets?|payoff)$|score|correct|passed|success|(?:^|_)won$|verdict"
    r"|grade|(?:^|_)rs?$|(?:^|_)rew"
)
CHECK = re.compile(rf"{REWARD.pattern}|verif|check|judge|evaluate|equiv|match|(?:^|_)is_|accept|valid|solves")


class ProgramTooLong(Exception):
    """The program exceeded the step limit."""


@dataclass
class CallFrame:
    """A function that is being interpreted."""

    node: Definition | None
    returns: list[AbstractValue] = field(default_factory=list)
    yields: list[AbstractValue] = field(default_factory=list)
    entered: Marks = m.NONE
    """Marks that the call depends on."""
    outer: set[str] = field(default_factory=set)
    """Names declared global or nonlocal."""


@dataclass(frozen=True)
class LibraryCall:
    """A call to something that the agent's code does not define."""

    name: str
    """With the library, if known: `trl.SFTTrainer`, `.backward`."""
    positional: Sequence[AbstractValue]
    keywords: Mapping[str, AbstractValue]
    place: CodeLocation
    receiver: AbstractValue | None = None
    node: ast.Call | None = None

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def get_argument(self, name: str, position: int | None = None) -> AbstractValue | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    @property
    def all(self) -> list[AbstractValue]:
        return [*self.positional, *self.keywords.values()]


class AbstractInterpreter(ABC):
    def __init__(
        self,
        files: AgentSourceFiles,
        trace: ProgramTrace,
        argv: Sequence[str],
        environment: Mapping[str, str],
    ):
        self.files, self.trace, self.argv, self.environment = files, trace, list(argv), environment
        self.modules: dict[str, ModuleValue] = {}
        self.frames: list[CallFrame] = [CallFrame(None)]
        self.control: Marks = m.NONE
        """Marks of the conditions under which the current line is reached."""
        self.lexical: Marks = m.NONE
        """The same, for conditions within the current function."""
        self.loops = self.uncertain = 0
        self.place = CodeLocation("", 0)
        self.first: dict[str, CodeLocation] = {}
        """Where each mark first appeared."""
        self.launches: list[str] = []
        """Command lines that the program starts."""
        self.steps = self.depth = 0

    def count_step(self) -> None:
        self.steps += 1
        self.trace.steps += 1
        if self.steps > STEPS or self.trace.steps > ALL_STEPS:
            raise ProgramTooLong

    def record_mark(self, mark: str) -> str:
        """Remember where a mark first appeared, and return it."""
        self.first.setdefault(mark, self.place)
        return mark

    @property
    def judging(self) -> bool:
        return bool(self.control & {m.JUDGED, m.SAID})

    def mark_filtered(self, value: AbstractValue, marks: Marks | None = None) -> AbstractValue:
        """Mark samples that exist only because of a judgement."""
        if not (self.control if marks is None else marks) & {m.JUDGED, m.SAID}:
            return value
        if collect_marks(value) & m.OWN:
            return value.with_marks(self.record_mark(m.FILTERED))
        return value

    def mark_reward(self, name: str, value: AbstractValue) -> AbstractValue:
        """Mark a value as judged if its name means reward and it comes from samples or the environment."""
        if not REWARD.search(name.lower()):
            return value
        marks = collect_marks(value)
        if isinstance(value.constant, int | float) and self.lexical & {m.JUDGED, m.SAID, m.WORLD, m.TOKENS}:
            return value.with_marks(self.record_mark(m.JUDGED), *(self.lexical & {m.WORLD}))
        if marks & {m.SAID, m.TOKENS, m.WORLD} and not marks & {*m.SCORES, m.LOGITS, m.FORWARD, m.WEIGHTS}:
            return value.with_marks(self.record_mark(m.JUDGED))
        return value

    @abstractmethod
    def eval_expression(self, node: ast.expr | None, scope: NameScope) -> AbstractValue: ...

    @abstractmethod
    def run_body(self, body: Sequence[ast.stmt], scope: NameScope, module: ModuleValue) -> bool: ...

    @abstractmethod
    def call_value(
        self,
        target: AbstractValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
        node: ast.Call | None = None,
        name: str = "",
    ) -> AbstractValue: ...

    @abstractmethod
    def read_attribute(self, value: AbstractValue, name: str) -> AbstractValue: ...

    @abstractmethod
    def read_element(self, value: AbstractValue) -> AbstractValue: ...

    @abstractmethod
    def read_item(self, value: AbstractValue, index: AbstractValue) -> AbstractValue: ...

    @abstractmethod
    def load_module(self, name: str, near: str) -> ModuleValue | None: ...

    @abstractmethod
    def bind_target(self, target: ast.expr, value: AbstractValue, scope: NameScope) -> None: ...
