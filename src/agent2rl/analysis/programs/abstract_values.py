"""Abstract values: what is known of a value without running the program."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from agent2rl.analysis.programs.marks import NONE, Marks
from agent2rl.analysis.workspace_paths import HOLE

MOST_THINGS, MOST_DEPTH, MOST_FIELDS, MOST_SEEN = 6, 4, 200, 300
LONGEST_TEXT = 10_000


class UnknownConstant(Enum):
    UNKNOWN = 0


UNKNOWN = UnknownConstant.UNKNOWN
Constant = str | int | float | bool | None | UnknownConstant


@dataclass(frozen=True)
class CodeLocation:
    """A line of the agent's code."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class AbstractValue:
    marks: Marks = NONE
    constant: Constant = UNKNOWN
    things: tuple["AbstractObject", ...] = ()
    """The objects that it may be."""

    def with_marks(self, *marks: str) -> "AbstractValue":
        return AbstractValue(self.marks | frozenset(marks), self.constant, self.things)

    @property
    def known(self) -> bool:
        return self.constant is not UNKNOWN and not (isinstance(self.constant, str) and HOLE in self.constant)

    @property
    def text(self) -> str | None:
        """The text, which may have holes."""
        return self.constant if isinstance(self.constant, str) else None

    @property
    def truth(self) -> bool | None:
        return bool(self.constant) if self.known else None


NOTHING = AbstractValue()


@dataclass(eq=False)
class NameScope:
    names: dict[str, AbstractValue]
    parent: Union["NameScope", None] = None

    def look_up(self, name: str) -> AbstractValue | None:
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def find_outer_scope(self, name: str) -> "NameScope":
        """Return the enclosing scope that has a name, else the outermost."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
            if name in scope.names:
                return scope
        return scope


@dataclass(eq=False)
class ModuleValue:
    name: str
    path: str
    scope: NameScope


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class FunctionValue:
    node: Definition
    scope: NameScope
    module: ModuleValue
    defaults: dict[str, AbstractValue]
    options: dict[str, AbstractValue] = field(default_factory=dict)
    """Command-line options that its decorators declare."""

    @property
    def name(self) -> str:
        return "" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(eq=False)
class ClassValue:
    name: str
    module: ModuleValue
    scope: NameScope
    bases: tuple[AbstractValue, ...]
    fields: tuple[str, ...]
    """Annotated names, in order: the parameters of a dataclass."""

    def find_member(self, name: str, depth: int = 0) -> AbstractValue | None:
        if name in self.scope.names:
            return self.scope.names[name]
        for base in self.bases if depth < MOST_DEPTH else ():
            for thing in base.things:
                if isinstance(thing, ClassValue) and (member := thing.find_member(name, depth + 1)):
                    return member
        return None

    def list_fields(self, depth: int = 0) -> tuple[str, ...]:
        above = [
            name
            for base in self.bases
            for thing in base.things
            if isinstance(thing, ClassValue) and depth < MOST_DEPTH
            for name in thing.list_fields(depth + 1)
        ]
        return tuple(dict.fromkeys([*above, *self.fields]))

    def list_library_bases(self, depth: int = 0) -> list[str]:
        """Return the names of library classes that it derives from."""
        names = []
        for base in self.bases if depth < MOST_DEPTH else ():
            for thing in base.things:
                if isinstance(thing, LibrarySymbol):
                    names.append(thing.name)
                elif isinstance(thing, ClassValue):
                    names += thing.list_library_bases(depth + 1)
        return names


@dataclass(eq=False)
class InstanceValue:
    of: ClassValue
    attributes: dict[str, AbstractValue] = field(default_factory=dict)
    positional: tuple[AbstractValue, ...] = ()
    keywords: dict[str, AbstractValue] = field(default_factory=dict)


@dataclass(eq=False)
class ListValue:
    """A list, tuple, set or iterator."""

    elements: list[AbstractValue] | None
    """None if the length is not known. Then `rest` is any of them."""
    rest: AbstractValue = NOTHING

    def join_elements(self) -> AbstractValue:
        return join_values([*(self.elements or ()), self.rest])


@dataclass(eq=False)
class DictValue:
    """A dictionary or a namespace."""

    known: dict[str, AbstractValue]
    rest: AbstractValue = NOTHING

    def join_elements(self) -> AbstractValue:
        return join_values([*self.known.values(), self.rest])


@dataclass(eq=False)
class LibrarySymbol:
    """A function, class or module of a library."""

    name: str


@dataclass(eq=False)
class LibraryObject:
    """The result of a library call."""

    name: str
    positional: tuple[AbstractValue, ...] = ()
    keywords: dict[str, AbstractValue] = field(default_factory=dict)
    attributes: dict[str, AbstractValue] = field(default_factory=dict)
    place: CodeLocation | None = None

    def get_argument(self, name: str, position: int | None = None) -> AbstractValue | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None


@dataclass(eq=False)
class UnresolvedMethod:
    """An attribute of unknown kind, which may be called."""

    receiver: AbstractValue
    owner: Union["AbstractObject", None]
    name: str


@dataclass(eq=False)
class BoundMethod:
    function: FunctionValue
    receiver: AbstractValue


@dataclass(eq=False)
class PartialFunction:
    target: AbstractValue
    positional: tuple[AbstractValue, ...]
    keywords: dict[str, AbstractValue]


@dataclass(eq=False)
class GradientFunction:
    """A function that returns the gradient of another one."""

    target: AbstractValue


AbstractObject = (
    ModuleValue
    | FunctionValue
    | ClassValue
    | InstanceValue
    | ListValue
    | DictValue
    | LibrarySymbol
    | LibraryObject
    | UnresolvedMethod
    | BoundMethod
    | PartialFunction
    | GradientFunction
)


def make_constant(value: Constant, marks: Marks = NONE) -> AbstractValue:
    return AbstractValue(marks, value)


def make_value(thing: AbstractObject, marks: Marks = NONE) -> AbstractValue:
    return AbstractValue(marks, UNKNOWN, (thing,))


def make_list(elements: Iterable[AbstractValue]) -> AbstractValue:
    items = list(elements)
    if len(items) > MOST_FIELDS:
        return make_value(ListValue(None, join_values(items)))
    return make_value(ListValue(items))


def make_open_list(element: AbstractValue) -> AbstractValue:
    """Make a list of unknown length."""
    return make_value(ListValue(None, element))


def make_dict(known: Mapping[str, AbstractValue], rest: AbstractValue = NOTHING) -> AbstractValue:
    return make_value(DictValue(dict(known), rest))


def join_values(values: Iterable[AbstractValue]) -> AbstractValue:
    """Return a value that may be any of these."""
    parts = [value for value in values if value is not NOTHING]
    if not parts:
        return NOTHING
    if len(parts) == 1:
        return parts[0]
    marks = frozenset().union(*(value.marks for value in parts))
    things = tuple(dict.fromkeys(thing for value in parts for thing in value.things))[:MOST_THINGS]
    return AbstractValue(marks, _join_constants([value.constant for value in parts]), things)


def _join_constants(constants: list[Constant]) -> Constant:
    not_none = [each for each in constants if each is not None]
    if not not_none:
        return None
    first = not_none[0]
    if all(type(each) is type(first) and each == first for each in not_none):
        return first
    texts = [each for each in not_none if isinstance(each, str)]
    if len(texts) < len(not_none):
        return UNKNOWN
    shared = 0
    while all(len(text) > shared and text[shared] == texts[0][shared] for text in texts):
        shared += 1
    # Of `output/step-1` and `output/step-2`, `output/step-` is known.
    return texts[0][:shared] + HOLE


def collect_marks(value: AbstractValue | None) -> Marks:
    """Return the marks of a value and of everything in it."""
    if value is None:
        return NONE
    # Bounded, since hostile code can nest values without end.
    marks, seen, budget = value.marks, set[int](), MOST_SEEN
    waiting = [(each, MOST_DEPTH) for each in value.things]
    while waiting and budget > 0:
        each, depth = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for inner in _list_contents(each)[:budget]:
            budget -= 1
            marks |= inner.marks
            if depth and inner.things:
                waiting += [(further, depth - 1) for further in inner.things]
        budget -= 1
    return marks


def _list_contents(thing: AbstractObject) -> list[AbstractValue]:
    match thing:
        case ListValue():
            return [thing.rest, *(thing.elements or ())]
        case DictValue():
            return [thing.rest, *thing.known.values()]
        case InstanceValue():
            return [value for value in thing.attributes.values() if value.marks or value.things]
        case LibraryObject() if "rows" in thing.attributes:
            return [thing.attributes["rows"]]
        case PartialFunction():
            return [*thing.positional, *thing.keywords.values()]
        case _:
            return []
