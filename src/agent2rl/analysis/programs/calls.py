"""Calls: the agent's own functions are stepped into, those of libraries are known or guessed."""

import ast
from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs import (
    command_line_options,
    container_methods,
    hyperparameter_notes,
    library_calls,
    trainer_calls,
)
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
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
from agent2rl.analysis.programs.interpreter_core import CHECK, DEEPEST, CallFrame, LibraryCall
from agent2rl.analysis.programs.statements import StatementInterpreter

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
            found = [
                self._call_object(target, one, positional, keywords, node, name) for one in target.things
            ]
            if not target.things:
                call = LibraryCall(name or "?", positional, keywords, place, target, node)
                return self._mark_if_check(
                    name, library_calls.interpret_library_call(self, call), positional, keywords
                )
            return self._mark_if_check(name, join_values(found), positional, keywords)
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
        """What a function that is called a reward says of samples is one."""
        if not CHECK.search(name.rpartition(".")[2].lower()):
            return value
        given, marks = _argument_marks(positional, keywords), collect_marks(value)
        texts = marks & {m.SAID} and not any(isinstance(v.constant, int | float) for v in [value])
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
                return library_calls.interpret_object_call(self, call)
            case UnresolvedMethod():
                return self._call_method(one, positional, keywords, node)
            case LibrarySymbol():
                call = LibraryCall(one.name, positional, keywords, self.place, None, node)
                return library_calls.interpret_library_call(self, call)
            case LibraryObject():
                call = LibraryCall(one.name, positional, keywords, self.place, target, node)
                return library_calls.interpret_object_call(self, call)
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
            found = container_methods.interpret_container_method(
                self, receiver, owner, method.name, positional, keywords
            )
            if found is not None:
                return found
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
        return library_calls.interpret_library_call(self, call)

    def _call_function(
        self,
        function: FunctionValue,
        positional: Sequence[AbstractValue],
        keywords: Mapping[str, AbstractValue],
    ) -> AbstractValue:
        if sum(frame.node is function.node for frame in self.frames) >= AGAIN:
            return AbstractValue(_argument_marks(positional, keywords))
        if function.options and not positional and not keywords:
            told = command_line_options.bind_command_line(self, function)
            positional, keywords = ([told.pop("")], told) if "" in told else ([], told)
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
            found = of.find_member(name)
            if found is not None and name not in made.attributes:
                made.attributes[name] = library_calls.copy_default(self, found)
        trainer_calls.attach_trainer_model(self, made)
        hyperparameter_notes.note_config_class(self, of, made.attributes, self.place)
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
        library_calls.record_training(self, loss, self.place)
        return make_open_list(AbstractValue(collect_marks(loss)))


def _argument_marks(positional: Sequence[AbstractValue], keywords: Mapping[str, AbstractValue]) -> m.Marks:
    return frozenset[str]().union(*map(collect_marks, positional), *map(collect_marks, keywords.values()))
