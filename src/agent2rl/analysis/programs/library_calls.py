"""What calls of libraries do, and what is guessed of those that nobody here knows."""

from collections.abc import Callable

from agent2rl.analysis.programs import (
    array_calls,
    builtin_calls,
    command_line_options,
    dataset_calls,
    environment_calls,
    hyperparameter_notes,
    loss_routes,
    model_calls,
    trainer_calls,
)
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractValue,
    BoundMethod,
    FunctionValue,
    LibraryObject,
    ListValue,
    PartialFunction,
    collect_marks,
    join_values,
    make_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall

CALL_INTERPRETERS: tuple[Callable[[AbstractInterpreter, LibraryCall], AbstractValue | None], ...] = (
    builtin_calls.interpret_builtin_call,
    command_line_options.interpret_option_call,
    trainer_calls.interpret_trainer_call,
    environment_calls.interpret_environment_call,
    model_calls.interpret_model_call,
    dataset_calls.interpret_dataset_call,
    array_calls.interpret_array_call,
)
MAPPING = {
    "map", "imap", "imap_unordered", "starmap", "vmap", "tree_map", "apply", "thread_map", "process_map",
}  # fmt: skip
record_training = loss_routes.record_training


def interpret_library_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    hyperparameter_notes.note_call(machine, call)
    for each in CALL_INTERPRETERS:
        found = each(machine, call)
        if found is not None:
            return found
    return guess_call(machine, call)


def interpret_object_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Something that a library made is called itself."""
    found = model_calls.call_model_object(machine, call)
    if found is None:
        found = array_calls.interpret_array_call(machine, call) if call.receiver else None
    return found if found is not None else guess_call(machine, call)


def guess_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """A call passes on the marks of what it is given; functions that it is given are called."""
    given = [value for value in (call.receiver, *call.all) if value is not None]
    marks = frozenset[str]().union(*map(collect_marks, given))
    results = [found for value in given if (found := _call_callback(machine, call, value)) is not None]
    result = join_values(results)
    kept = (
        result.things
        if results
        else (LibraryObject(call.name, tuple(call.positional), dict(call.keywords), place=call.place),)
    )
    return AbstractValue(marks | collect_marks(result), UNKNOWN, kept)


def _call_callback(
    machine: AbstractInterpreter, call: LibraryCall, value: AbstractValue
) -> AbstractValue | None:
    functions = [
        one for one in value.things if isinstance(one, FunctionValue | BoundMethod | PartialFunction)
    ]
    if not functions or value is call.receiver:
        return None
    others = [each for each in call.positional if each is not value]
    for each in (call.get_argument("args"), call.get_argument("kwargs")):
        for one in (each or NOTHING).things:
            if isinstance(one, ListValue):
                others = list(one.elements or [one.join_elements()])
    if call.last in MAPPING:
        others = [machine.read_element(each) for each in others] or [
            machine.read_element(call.receiver or NOTHING)
        ]
    if not others:
        others = [
            AbstractValue(
                frozenset[str]().union(*(collect_marks(each) for each in call.all if each is not value))
            )
        ] * 3
    found = machine.call_value(make_value(functions[0]), others, {})
    return make_list([found]) if call.last in MAPPING else found


def copy_default(machine: AbstractInterpreter, value: AbstractValue) -> AbstractValue:  # noqa: ARG001
    """A default of a class's field: each object has its own list."""
    for one in value.things:
        if isinstance(one, ListValue) and one.elements is not None:
            return make_list(one.elements)
    return value
