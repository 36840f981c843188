"""What the parts of the machine share: its state, and the names of what each part does."""

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.sources import Files
from agent2rl.analysis.programs.trace import Trace
from agent2rl.analysis.programs.values import Definition, Module, Place, Scope, Value, deep

STEPS, ALL_STEPS = 40_000, 200_000
"""Of a program, and of all of an attempt; what is longer is not stepped through to its end."""
DEEPEST = 220
"""Of the machine's own calls, so that Python's own limit is never met."""
REWARD = re.compile(
    r"reward|advantage|(?:^|_)advs?(?:_|$)|(?:^|_)(?:returns?|rets?|payoff)$|score|correct|passed|success|(?:^|_)won$|verdict"
    r"|grade|(?:^|_)rs?$|(?:^|_)rew"
)
CHECK = re.compile(rf"{REWARD.pattern}|verif|check|judge|evaluate|equiv|match|(?:^|_)is_|accept|valid|solves")


class Spent(Exception):
    """The program is too long."""


@dataclass
class Frame:
    """A function that is being stepped through."""

    node: Definition | None
    returns: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    entered: Marks = m.NONE
    """What its caller depends on."""
    outer: set[str] = field(default_factory=set)
    """Names that belong to the scope around it."""


@dataclass(frozen=True)
class Call:
    """A call of something that the agent's code does not define."""

    name: str
    """With the library's, where that is known: `trl.SFTTrainer`, `.backward`."""
    positional: Sequence[Value]
    keywords: Mapping[str, Value]
    place: Place
    receiver: Value | None = None
    node: ast.Call | None = None

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def argument(self, name: str, position: int | None = None) -> Value | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    @property
    def all(self) -> list[Value]:
        return [*self.positional, *self.keywords.values()]


class Core(ABC):
    def __init__(self, files: Files, trace: Trace, argv: Sequence[str], environment: Mapping[str, str]):
        self.files, self.trace, self.argv, self.environment = files, trace, list(argv), environment
        self.modules: dict[str, Module] = {}
        self.frames: list[Frame] = [Frame(None)]
        self.control: Marks = m.NONE
        """What it depends on whether the present line is reached."""
        self.lexical: Marks = m.NONE
        """The same, by what stands around the line in its own function."""
        self.loops = self.uncertain = 0
        self.place = Place("", 0)
        self.first: dict[str, Place] = {}
        """Where a mark was first made."""
        self.launches: list[str] = []
        """Command lines that the program starts itself."""
        self.steps = self.depth = 0

    def tick(self) -> None:
        self.steps += 1
        self.trace.steps += 1
        if self.steps > STEPS or self.trace.steps > ALL_STEPS:
            raise Spent

    def made(self, mark: str) -> str:
        """Remember where a mark comes from."""
        self.first.setdefault(mark, self.place)
        return mark

    @property
    def judging(self) -> bool:
        return bool(self.control & {m.JUDGED, m.SAID})

    def guarded(self, value: Value, marks: Marks | None = None) -> Value:
        """A value as it is where it depends on a judgement of samples that there is this one."""
        if not (self.control if marks is None else marks) & {m.JUDGED, m.SAID}:
            return value
        if deep(value) & m.OWN:
            return value.marked(self.made(m.FILTERED))
        return value

    def judged(self, name: str, value: Value) -> Value:
        """What is called a reward and comes from samples or from the world is one."""
        if not REWARD.search(name.lower()):
            return value
        marks = deep(value)
        if isinstance(value.constant, int | float) and self.lexical & {m.JUDGED, m.SAID, m.WORLD, m.TOKENS}:
            return value.marked(self.made(m.JUDGED), *(self.lexical & {m.WORLD}))
        if marks & {m.SAID, m.TOKENS, m.WORLD} and not marks & {*m.SCORES, m.LOGITS, m.FORWARD, m.WEIGHTS}:
            return value.marked(self.made(m.JUDGED))
        return value

    @abstractmethod
    def eval(self, node: ast.expr | None, scope: Scope) -> Value: ...

    @abstractmethod
    def run(self, body: Sequence[ast.stmt], scope: Scope, module: Module) -> bool: ...

    @abstractmethod
    def call(
        self,
        target: Value,
        positional: Sequence[Value],
        keywords: Mapping[str, Value],
        node: ast.Call | None = None,
        name: str = "",
    ) -> Value: ...

    @abstractmethod
    def attribute(self, value: Value, name: str) -> Value: ...

    @abstractmethod
    def element(self, value: Value) -> Value: ...

    @abstractmethod
    def item(self, value: Value, index: Value) -> Value: ...

    @abstractmethod
    def load(self, name: str, near: str) -> Module | None: ...

    @abstractmethod
    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None: ...
