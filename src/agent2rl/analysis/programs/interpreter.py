"""Interpret one program. The agent's own functions are stepped into; library calls are known or guessed."""

import ast
from collections.abc import Callable, Mapping, Sequence

from agent2rl.analysis.programs import (
    array_calls,
    environment_calls,
    model_calls,
    program_settings,
    standard_library_calls,
    trainer_calls,
    value_operations,
)
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractObject,
    AbstractValue,
    BoundMethod,
    ClassValue,
    DictValue,
    FunctionValue,
    GradientFunction,
    InstanceValue,
    LibraryObject,
    LibrarySymbol,
    ListValue,
    ModuleValue,
    NameScope,
    PartialFunction,
    UnresolvedMethod,
    collect_marks,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.array_calls import RouteGuess
from agent2rl.analysis.programs.interpreter_core import (
    CHECK,
    DEEPEST,
    AbstractInterpreter,
    CallFrame,
    LibraryCall,
    ProgramTooLong,
    ProgramTrace,
)
from agent2rl.analysis.programs.source_files import AgentSourceFiles, PythonScript
from agent2rl.analysis.programs.statements import StatementInterpreter

# Library calls.

# In this order: the first that knows a call decides.
CALL_INTERPRETERS: tuple[Callable[[AbstractInterpreter, LibraryCall], AbstractValue | None], ...] = (
    standard_library_calls.interpret_builtin_call,
    program_settings.interpret_option_call,
    trainer_calls.interpret_trainer_call,
    environment_calls.interpret_environment_call,
    model_calls.interpret_model_call,
    trainer_calls.interpret_dataset_call,
    array_calls.interpret_array_call,
)
MAPPING = {
    "map", "imap", "imap_unordered", "starmap", "vmap", "tree_map", "apply", "thread_map", "process_map",
}  # fmt: skip


def interpret_library_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    program_settings.note_call(machine, call)
    for each in CALL_INTERPRETERS:
        result = each(machine, call)
        if result is not None:
            return result
    return guess_call(machine, call)


def interpret_object_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Interpret a call of an object that a library returned."""
    result = model_calls.call_model_object(machine, call)
    if result is None:
        result = array_calls.interpret_array_call(machine, call) if call.receiver else None
    return result if result is not None else guess_call(machine, call)


def guess_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    """Guess an unknown call: it passes on the marks of its arguments and calls functions among them."""
    given = [value for value in (call.receiver, *call.all) if value is not None]
    marks = frozenset[str]().union(*map(collect_marks, given))
    results = [
        result_of_callback
        for value in given
        if (result_of_callback := _call_callback(machine, call, value)) is not None
    ]
    result = join_values(results)
    things = (
        result.things
        if results
        else (LibraryObject(call.name, tuple(call.positional), dict(call.keywords), place=call.place),)
    )
    return AbstractValue(marks | collect_marks(result), UNKNOWN, things)


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
        # How many arguments it takes is not known.
        others = [
            AbstractValue(
                frozenset[str]().union(*(collect_marks(each) for each in call.all if each is not value))
            )
        ] * 3
    result = machine.call_value(make_value(functions[0]), others, {})
    return make_list([result]) if call.last in MAPPING else result


def copy_default(value: AbstractValue) -> AbstractValue:
    """Copy the default of a class field: each instance has its own list."""
    for one in value.things:
        if isinstance(one, ListValue) and one.elements is not None:
            return make_list(one.elements)
    return value


# Calls of the agent's own functions and classes.

DEEPEST_CALLS, AGAIN = 24, 2


class CallInterpreter(StatementInterpreter):
    def call_value(
        self,
        target: AbstractValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
        node: ast.Call | None = None,
        name: str = "",
    ) -> AbstractValue:
        self.count_step()
        if self.depth >= DEEPEST or len(self.frames) > DEEPEST_CALLS:
            return AbstractValue(_argument_marks(positional, keywords))
        self.depth += 1
        place = self.place
        try:
            results = [
                self._call_object(target, one, positional, keywords, node, name) for one in target.things
            ]
            if not target.things:
                call = LibraryCall(name or "?", positional, keywords, place, target, node)
                return self._mark_if_check(name, interpret_library_call(self, call), positional, keywords)
            return self._mark_if_check(name, join_values(results), positional, keywords)
        finally:
            self.depth -= 1
            self.place = place

    def _mark_if_check(
        self,
        name: str,
        value: AbstractValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
    ) -> AbstractValue:
        """Mark a result as judged if the function's name means check or reward and it is given samples."""
        if not CHECK.search(name.rpartition(".")[2].lower()):
            return value
        given, marks = _argument_marks(positional, keywords), collect_marks(value)
        texts = marks & {m.SAID} and not isinstance(value.constant, int | float)
        if not given & {m.SAID, m.TOKENS, m.WORLD} or marks & {*m.SCORES, m.LOGITS, m.FORWARD, m.DATA}:
            return value
        if value.things and texts and any(isinstance(one, ListValue | DictValue) for one in value.things):
            return value
        return AbstractValue(
            value.marks | {self.record_mark(m.JUDGED)} | (given & {m.WORLD}), value.constant, value.things
        )

    def _call_object(
        self,
        target: AbstractValue,
        one: AbstractObject,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
        node: ast.Call | None,
        name: str,
    ) -> AbstractValue:
        match one:
            case FunctionValue():
                return self._call_function(one, positional, keywords)
            case BoundMethod():
                return self._call_function(one.function, [one.receiver, *positional], keywords)
            case PartialFunction():
                given = {**one.keywords, **keywords}
                return self.call_value(one.target, [*one.positional, *positional], given, node, name)
            case ClassValue():
                return self._construct_instance(one, positional, keywords)
            case GradientFunction():
                return self._take_gradient(one, positional, keywords)
            case InstanceValue():
                for method in ("__call__", "forward"):
                    if one.of.find_member(method):
                        return self.call_value(
                            self.read_attribute(make_value(one, target.marks), method), positional, keywords
                        )
                base = next(iter(one.of.list_library_bases()), "?")
                call = LibraryCall(base, positional, keywords, self.place, target, node)
                return interpret_object_call(self, call)
            case UnresolvedMethod():
                return self._call_method(one, positional, keywords, node)
            case LibrarySymbol():
                call = LibraryCall(one.name, positional, keywords, self.place, None, node)
                return interpret_library_call(self, call)
            case LibraryObject():
                call = LibraryCall(one.name, positional, keywords, self.place, target, node)
                return interpret_object_call(self, call)
            case _:
                return AbstractValue(target.marks | _argument_marks(positional, keywords))

    def _call_method(
        self,
        method: UnresolvedMethod,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
        node: ast.Call | None,
    ) -> AbstractValue:
        receiver, owner = method.receiver, method.owner
        if isinstance(owner, ListValue | DictValue):
            result = value_operations.interpret_container_method(
                self, receiver, owner, method.name, positional, keywords
            )
            if result is not None:
                return result
        prefix = ""
        if isinstance(owner, LibraryObject):
            prefix = owner.name
        elif isinstance(owner, InstanceValue):
            prefix = next(iter(owner.of.list_library_bases()), owner.of.name)
        elif isinstance(owner, ClassValue):
            prefix = next(iter(owner.list_library_bases()), owner.name)
        elif isinstance(owner, UnresolvedMethod):
            prefix = owner.name
        call = LibraryCall(f"{prefix}.{method.name}", positional, keywords, self.place, receiver, node)
        return interpret_library_call(self, call)

    def _call_function(
        self,
        function: FunctionValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
    ) -> AbstractValue:
        if sum(frame.node is function.node for frame in self.frames) >= AGAIN:
            return AbstractValue(_argument_marks(positional, keywords))
        if function.options and not positional and not keywords:
            options = program_settings.bind_command_line(self, function)
            positional, keywords = ([options.pop("")], options) if "" in options else ([], options)
        scope = NameScope(self._bind_arguments(function, positional, keywords), function.scope)
        frame = CallFrame(function.node, entered=self.control)
        outside, lexical, loops = self.module, self.lexical, self.loops
        self.lexical = m.NONE
        self.frames.append(frame)
        try:
            if isinstance(function.node, ast.Lambda):
                self.module = function.module
                return self.eval_expression(function.node.body, scope)
            self.run_body(function.node.body, scope, function.module)
        finally:
            self.frames.pop()
            self.module, self.lexical, self.loops = outside, lexical, loops
        if frame.yields:
            return make_open_list(join_values(frame.yields))
        return join_values(frame.returns) if frame.returns else make_constant(None)

    def _bind_arguments(
        self,
        function: FunctionValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
    ) -> dict[str, AbstractValue]:
        arguments = function.node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        bound = dict(function.defaults)
        spread = keywords.get("**", NOTHING)
        for each in (*names, *(one.arg for one in arguments.kwonlyargs)):
            bound.setdefault(each, spread)
        bound |= dict(zip(names, positional, strict=False))
        extra = {name: value for name, value in keywords.items() if name not in bound and name != "**"}
        bound |= {name: value for name, value in keywords.items() if name in bound}
        if arguments.vararg:
            bound[arguments.vararg.arg] = make_list(positional[len(names) :])
        if arguments.kwarg:
            bound[arguments.kwarg.arg] = make_dict(extra, spread)
        return bound

    def _construct_instance(
        self, of: ClassValue, positional: Sequence[AbstractValue], keywords: Mapping[str, AbstractValue]
    ) -> AbstractValue:
        ancestors = of.list_library_bases()
        if (
            any(name.rpartition(".")[2] in ("Enum", "StrEnum", "IntEnum") for name in ancestors)
            and positional
        ):
            return positional[0]
        made = InstanceValue(of, positional=tuple(positional), keywords=dict(keywords))
        value = make_value(made)
        if init := of.find_member("__init__"):
            for one in init.things:
                if isinstance(one, FunctionValue):
                    self._call_function(one, [value, *positional], keywords)
        else:
            names = of.list_fields()
            made.attributes |= dict(zip(names, positional, strict=False))
            made.attributes |= {name: value for name, value in keywords.items() if name != "**"}
            if "**" in keywords:
                for name in names:
                    made.attributes.setdefault(name, keywords["**"])
            for one in (of.find_member("__post_init__") or NOTHING).things:
                if isinstance(one, FunctionValue):
                    self._call_function(one, [value], {})
        for name in names if not init else ():
            default = of.find_member(name)
            if default is not None and name not in made.attributes:
                made.attributes[name] = copy_default(default)
        trainer_calls.attach_trainer_model(self, made)
        program_settings.note_config_class(self, of, made.attributes, self.place)
        return value

    def _take_gradient(
        self,
        one: GradientFunction,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
    ) -> AbstractValue:
        loss = self.call_value(one.target, positional, keywords)
        first = next((each for each in loss.things if isinstance(each, ListValue)), None)
        if first and first.elements:
            loss = first.elements[0]
        given = positional[0] if positional else NOTHING
        if m.select_models(collect_marks(given)):
            loss = AbstractValue(loss.marks | m.select_models(collect_marks(given)))
        array_calls.record_training(self, loss, self.place)
        return make_open_list(AbstractValue(collect_marks(loss)))


def _argument_marks(positional: Sequence[AbstractValue], keywords: Mapping[str, AbstractValue]) -> m.Marks:
    return frozenset[str]().union(*map(collect_marks, positional), *map(collect_marks, keywords.values()))


# Whole programs.

ENVIRONMENT = {
    "WORKSPACE": ".",
    "OUTPUT_DIR": "output",
    "DATA_PATH": "data",
    "MODEL_PATH": "models/\0",
    "LOCAL_RANK": "0",
    "RANK": "0",
    "WORLD_SIZE": "1",
}
"""Environment variables that the harness sets for an agent's programs."""


class ProgramInterpreter(CallInterpreter):
    def _note_name(self, name: str, value: AbstractValue, scope: NameScope) -> None:  # noqa: ARG002
        program_settings.note_name(self, name, value)

    def record_weight_update(self, before: AbstractValue, change: AbstractValue) -> None:
        """Record training by manual updates along a manually computed gradient."""
        was, by = collect_marks(before), collect_marks(change)
        learnt = {m.DATA, m.SAID, m.TOKENS, m.WORLD, m.JUDGED, m.EXPERT}
        if m.WEIGHTS not in was or was & learnt or not by & learnt:
            return
        array_calls.add_stage(
            self, self._classify_manual_update(by), m.select_models(was) | (by & {m.WORLD}), self.place
        )

    def _classify_manual_update(self, by: m.Marks) -> RouteGuess:
        if m.NOISE in by and not by & {m.PROBS, m.LOGPROB, m.TOKENS}:
            return "other", 0.7, (m.NOISE,)
        if by & {m.WEIGHTED, m.JUDGED}:
            return array_calls.classify_policy_gradient(by, 0.8 if m.WEIGHTED in by else 0.6)
        return array_calls.classify_imitation(self, by, 0.75)


def interpret_program(
    script: PythonScript,
    files: AgentSourceFiles,
    trace: ProgramTrace,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Interpret a program and return the command lines that it starts."""
    machine = ProgramInterpreter(files, trace, argv, {**ENVIRONMENT, **environment})
    if script.tree is None:
        return []
    path = script.source.path
    scope = NameScope({"__name__": make_constant("__main__"), "__file__": make_constant(path)})
    module = ModuleValue("__main__", path, scope)
    machine.module = module
    try:
        machine.run_body(script.tree.body, scope, module)
    except ProgramTooLong:
        trace.cut = True
    return machine.launches
