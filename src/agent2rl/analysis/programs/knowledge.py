"""What calls of libraries do, and what is guessed of those that nobody here knows."""

from collections.abc import Callable

from agent2rl.analysis.programs import (
    arrays,
    datasets,
    language,
    losses,
    noting,
    options,
    python,
    trainers,
    worlds,
)
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.values import (
    NOTHING,
    UNKNOWN,
    Bound,
    Foreign,
    Function,
    Partial,
    Several,
    Value,
    deep,
    join,
    several,
    thing,
)

KNOWING: tuple[Callable[[Core, Call], Value | None], ...] = (
    python.known,
    options.known,
    trainers.known,
    worlds.known,
    language.known,
    datasets.known,
    arrays.known,
)
MAPPING = {
    "map", "imap", "imap_unordered", "starmap", "vmap", "tree_map", "apply", "thread_map", "process_map",
}  # fmt: skip
trained = losses.trained


def known(machine: Core, call: Call) -> Value:
    noting.observed(machine, call)
    for each in KNOWING:
        found = each(machine, call)
        if found is not None:
            return found
    return guessed(machine, call)


def called(machine: Core, call: Call) -> Value:
    """Something that a library made is called itself."""
    found = language.called(machine, call)
    if found is None:
        found = arrays.known(machine, call) if call.receiver else None
    return found if found is not None else guessed(machine, call)


def guessed(machine: Core, call: Call) -> Value:
    """A call passes on the marks of what it is given; functions that it is given are called."""
    given = [value for value in (call.receiver, *call.all) if value is not None]
    marks = frozenset[str]().union(*map(deep, given))
    results = [found for value in given if (found := _callback(machine, call, value)) is not None]
    result = join(results)
    kept = (
        result.things
        if results
        else (Foreign(call.name, tuple(call.positional), dict(call.keywords), place=call.place),)
    )
    return Value(marks | deep(result), UNKNOWN, kept)


def _callback(machine: Core, call: Call, value: Value) -> Value | None:
    functions = [one for one in value.things if isinstance(one, Function | Bound | Partial)]
    if not functions or value is call.receiver:
        return None
    others = [each for each in call.positional if each is not value]
    for each in (call.argument("args"), call.argument("kwargs")):
        for one in (each or NOTHING).things:
            if isinstance(one, Several):
                others = list(one.elements or [one.any()])
    if call.last in MAPPING:
        others = [machine.element(each) for each in others] or [machine.element(call.receiver or NOTHING)]
    if not others:
        others = [Value(frozenset[str]().union(*(deep(each) for each in call.all if each is not value)))] * 3
    found = machine.call(thing(functions[0]), others, {})
    return several([found]) if call.last in MAPPING else found


def fresh(machine: Core, value: Value) -> Value:  # noqa: ARG001
    """A default of a class's field: each object has its own list."""
    for one in value.things:
        if isinstance(one, Several) and one.elements is not None:
            return several(one.elements)
    return value
