"""What is known of a value without running anything."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from agent2rl.analysis.programs.marks import NONE, Marks

HOLE = "\0"
"""Stands in a text for a part that is not known."""
MOST_THINGS, MOST_DEPTH, MOST_FIELDS, MOST_SEEN = 6, 4, 200, 300
LONGEST_TEXT = 10_000


class Unknown(Enum):
    UNKNOWN = 0


UNKNOWN = Unknown.UNKNOWN
Constant = str | int | float | bool | None | Unknown


@dataclass(frozen=True)
class Place:
    """A line of the agent's code."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Value:
    marks: Marks = NONE
    constant: Constant = UNKNOWN
    things: tuple["Thing", ...] = ()
    """What it may be."""

    def marked(self, *marks: str) -> "Value":
        return Value(self.marks | frozenset(marks), self.constant, self.things)

    @property
    def known(self) -> bool:
        return self.constant is not UNKNOWN and not (isinstance(self.constant, str) and HOLE in self.constant)

    @property
    def text(self) -> str | None:
        """Perhaps with holes."""
        return self.constant if isinstance(self.constant, str) else None

    @property
    def truth(self) -> bool | None:
        return bool(self.constant) if self.known else None


NOTHING = Value()


@dataclass(eq=False)
class Scope:
    names: dict[str, Value]
    parent: Union["Scope", None] = None

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def holder(self, name: str) -> "Scope":
        """The scope around this one that has a name, else the outermost."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
            if name in scope.names:
                return scope
        return scope


@dataclass(eq=False)
class Module:
    name: str
    path: str
    scope: Scope


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class Function:
    node: Definition
    scope: Scope
    module: Module
    defaults: dict[str, Value]
    options: dict[str, Value] = field(default_factory=dict)
    """What its decorators say of its command line."""
    owner: Union["Class", None] = None

    @property
    def name(self) -> str:
        return "" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(eq=False)
class Class:
    name: str
    module: Module
    scope: Scope
    bases: tuple[Value, ...]
    fields: tuple[str, ...]
    """Annotated names, in order: a dataclass's parameters."""

    def find(self, name: str, depth: int = 0) -> Value | None:
        if name in self.scope.names:
            return self.scope.names[name]
        for base in self.bases if depth < MOST_DEPTH else ():
            for thing in base.things:
                if isinstance(thing, Class) and (found := thing.find(name, depth + 1)):
                    return found
        return None

    def all_fields(self, depth: int = 0) -> tuple[str, ...]:
        above = [
            name
            for base in self.bases
            for thing in base.things
            if isinstance(thing, Class) and depth < MOST_DEPTH
            for name in thing.all_fields(depth + 1)
        ]
        return tuple(dict.fromkeys([*above, *self.fields]))

    def ancestors(self, depth: int = 0) -> list[str]:
        """Names of the library's classes that it comes from."""
        found = []
        for base in self.bases if depth < MOST_DEPTH else ():
            for thing in base.things:
                if isinstance(thing, External):
                    found.append(thing.name)
                elif isinstance(thing, Class):
                    found += thing.ancestors(depth + 1)
        return found


@dataclass(eq=False)
class Instance:
    of: Class
    attributes: dict[str, Value] = field(default_factory=dict)
    positional: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Several:
    """A list, a tuple, a set, an iterator."""

    elements: list[Value] | None
    """None where it is not known how many there are; then `rest` is any of them."""
    rest: Value = NOTHING

    def any(self) -> Value:
        return join([*(self.elements or ()), self.rest])


@dataclass(eq=False)
class Fields:
    """A dictionary, or a name space."""

    known: dict[str, Value]
    rest: Value = NOTHING

    def any(self) -> Value:
        return join([*self.known.values(), self.rest])


@dataclass(eq=False)
class External:
    """Something of a library."""

    name: str


@dataclass(eq=False)
class Foreign:
    """What a call into a library gave."""

    name: str
    positional: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    place: Place | None = None

    def argument(self, name: str, position: int | None = None) -> Value | None:
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None


@dataclass(eq=False)
class Method:
    """An attribute of something, which may be called."""

    receiver: Value
    owner: Union["Thing", None]
    name: str


@dataclass(eq=False)
class Bound:
    function: Function
    receiver: Value


@dataclass(eq=False)
class Partial:
    target: Value
    positional: tuple[Value, ...]
    keywords: dict[str, Value]


@dataclass(eq=False)
class Gradient:
    """A function that gives the gradient of another one."""

    target: Value


Thing = (
    Module
    | Function
    | Class
    | Instance
    | Several
    | Fields
    | External
    | Foreign
    | Method
    | Bound
    | Partial
    | Gradient
)


def constant(value: Constant, marks: Marks = NONE) -> Value:
    return Value(marks, value)


def thing(thing: Thing, marks: Marks = NONE) -> Value:
    return Value(marks, UNKNOWN, (thing,))


def several(elements: Iterable[Value]) -> Value:
    found = list(elements)
    if len(found) > MOST_FIELDS:
        return thing(Several(None, join(found)))
    return thing(Several(found))


def some(element: Value) -> Value:
    """A list of nobody knows how many."""
    return thing(Several(None, element))


def fields(known: Mapping[str, Value], rest: Value = NOTHING) -> Value:
    return thing(Fields(dict(known), rest))


def join(values: Iterable[Value]) -> Value:
    """What it may be when it is one of these."""
    found = [value for value in values if value is not NOTHING]
    if not found:
        return NOTHING
    if len(found) == 1:
        return found[0]
    marks = frozenset().union(*(value.marks for value in found))
    things = tuple(dict.fromkeys(thing for value in found for thing in value.things))[:MOST_THINGS]
    return Value(marks, _joined([value.constant for value in found]), things)


def _joined(constants: list[Constant]) -> Constant:
    said = [each for each in constants if each is not None]
    if not said:
        return None
    first = said[0]
    if all(type(each) is type(first) and each == first for each in said):
        return first
    texts = [each for each in said if isinstance(each, str)]
    if len(texts) < len(said):
        return UNKNOWN
    shared = 0
    while all(len(text) > shared and text[shared] == texts[0][shared] for text in texts):
        shared += 1
    return texts[0][:shared] + HOLE


def deep(value: Value | None) -> Marks:
    """The marks of a value and of what is in it."""
    if value is None:
        return NONE
    marks, seen, left = value.marks, set[int](), MOST_SEEN
    waiting = [(each, MOST_DEPTH) for each in value.things]
    while waiting and left > 0:
        each, depth = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for inner in _inside(each)[:left]:
            left -= 1
            marks |= inner.marks
            if depth and inner.things:
                waiting += [(further, depth - 1) for further in inner.things]
        left -= 1
    return marks


def _inside(thing: Thing) -> list[Value]:
    match thing:
        case Several():
            return [thing.rest, *(thing.elements or ())]
        case Fields():
            return [thing.rest, *thing.known.values()]
        case Instance():
            return [value for value in thing.attributes.values() if value.marks or value.things]
        case Foreign() if "rows" in thing.attributes:
            return [thing.attributes["rows"]]
        case Partial():
            return [*thing.positional, *thing.keywords.values()]
        case _:
            return []
