"""What the parts of the machine share: its state, and the names of what each part does."""

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    AbstractValue,
    CodeLocation,
    Definition,
    ModuleValue,
    NameScope,
    collect_marks,
)
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.program_trace import ProgramTrace
from agent2rl.analysis.programs.source_files import AgentSourceFiles

STEPS, ALL_STEPS = 40_000, 200_000
"""Of a program, and of all of an attempt; what is longer is not stepped through to its end."""
DEEPEST = 220
"""Of the machine's own calls, so that Python's own limit is never met."""
REWARD = re.compile(
    r"reward|advantage|(?:^|_)advs?(?:_|$)|(?:^|_)(?:returns?|rets?|payoff)$|score|correct|passed|success|(?:^|_)won$|verdict"
    r"|grade|(?:^|_)rs?$|(?:^|_)rew"
)
CHECK = re.compile(rf"{REWARD.pattern}|verif|check|judge|evaluate|equiv|match|(?:^|_)is_|accept|valid|solves")


class ProgramTooLong(Exception):
    """The program is too long."""


@dataclass
class CallFrame:
    """A function that is being stepped through."""

    node: Definition | None
    returns: list[AbstractValue] = field(default_factory=list)
    yields: list[AbstractValue] = field(default_factory=list)
    entered: Marks = m.NONE
    """What its caller depends on."""
    outer: set[str] = field(default_factory=set)
    """Names that belong to the scope around it."""


@dataclass(frozen=True)
class LibraryCall:
    """A call of something that the agent's code does not define."""

    name: str
    """With the library's, where that is known: `trl.SFTTrainer`, `.backward`."""
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
        """What it depends on whether the present line is reached."""
        self.lexical: Marks = m.NONE
        """The same, by what stands around the line in its own function."""
        self.loops = self.uncertain = 0
        self.place = CodeLocation("", 0)
        self.first: dict[str, CodeLocation] = {}
        """Where a mark was first made."""
        self.launches: list[str] = []
        """Command lines that the program starts itself."""
        self.steps = self.depth = 0

    def count_step(self) -> None:
        self.steps += 1
        self.trace.steps += 1
        if self.steps > STEPS or self.trace.steps > ALL_STEPS:
            raise ProgramTooLong

    def record_mark(self, mark: str) -> str:
        """Remember where a mark comes from."""
        self.first.setdefault(mark, self.place)
        return mark

    @property
    def judging(self) -> bool:
        return bool(self.control & {m.JUDGED, m.SAID})

    def mark_filtered(self, value: AbstractValue, marks: Marks | None = None) -> AbstractValue:
        """A value as it is where it depends on a judgement of samples that there is this one."""
        if not (self.control if marks is None else marks) & {m.JUDGED, m.SAID}:
            return value
        if collect_marks(value) & m.OWN:
            return value.with_marks(self.record_mark(m.FILTERED))
        return value

    def mark_reward(self, name: str, value: AbstractValue) -> AbstractValue:
        """What is called a reward and comes from samples or from the world is one."""
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
