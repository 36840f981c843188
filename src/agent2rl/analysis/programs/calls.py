"""Calls: the agent's own functions are stepped into, those of libraries are known or guessed."""

import ast
from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs import containers, knowledge, noting, options, trainers
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import CHECK, DEEPEST, Call, Frame
from agent2rl.analysis.programs.statements import Statements
from agent2rl.analysis.programs.values import (
    NOTHING,
    Bound,
    Class,
    External,
    Fields,
    Foreign,
    Function,
    Gradient,
    Instance,
    Method,
    Partial,
    Scope,
    Several,
    Thing,
    Value,
    constant,
    deep,
    fields,
    join,
    several,
    some,
    thing,
)

DEEPEST_CALLS, AGAIN = 24, 2


class Calls(Statements):
    def call(
        self,
        target: Value,
        positional: Sequence[Value],
        keywords: Mapping[str, Value],
        node: ast.Call | None = None,
        name: str = "",
    ) -> Value:
        self.tick()
        if self.depth >= DEEPEST or len(self.frames) > DEEPEST_CALLS:
            return Value(_all(positional, keywords))
        self.depth += 1
        place = self.place
        try:
            found = [self._one(target, one, positional, keywords, node, name) for one in target.things]
            if not target.things:
                call = Call(name or "?", positional, keywords, place, target, node)
                return self._checked(name, knowledge.known(self, call), positional, keywords)
            return self._checked(name, join(found), positional, keywords)
        finally:
            self.depth -= 1
            self.place = place

    def _checked(
        self, name: str, value: Value, positional: Sequence[Value], keywords: Mapping[str, Value]
    ) -> Value:
        """What a function that is called a reward says of samples is one."""
        if not CHECK.search(name.rpartition(".")[2].lower()):
            return value
        given, marks = _all(positional, keywords), deep(value)
        texts = marks & {m.SAID} and not any(isinstance(v.constant, int | float) for v in [value])
        if not given & {m.SAID, m.TOKENS, m.WORLD} or marks & {*m.SCORES, m.LOGITS, m.FORWARD, m.DATA}:
            return value
        if value.things and texts and any(isinstance(one, Several | Fields) for one in value.things):
            return value
        return Value(value.marks | {self.made(m.JUDGED)} | (given & {m.WORLD}), value.constant, value.things)

    def _one(
        self,
        target: Value,
        one: Thing,
        positional: Sequence[Value],
        keywords: Mapping[str, Value],
        node: ast.Call | None,
        name: str,
    ) -> Value:
        match one:
            case Function():
                return self._function(one, positional, keywords)
            case Bound():
                return self._function(one.function, [one.receiver, *positional], keywords)
            case Partial():
                given = {**one.keywords, **keywords}
                return self.call(one.target, [*one.positional, *positional], given, node, name)
            case Class():
                return self._construct(one, positional, keywords)
            case Gradient():
                return self._gradient(one, positional, keywords)
            case Instance():
                for method in ("__call__", "forward"):
                    if one.of.find(method):
                        return self.call(
                            self.attribute(thing(one, target.marks), method), positional, keywords
                        )
                base = next(iter(one.of.ancestors()), "?")
                call = Call(base, positional, keywords, self.place, target, node)
                return knowledge.called(self, call)
            case Method():
                return self._method(one, positional, keywords, node)
            case External():
                call = Call(one.name, positional, keywords, self.place, None, node)
                return knowledge.known(self, call)
            case Foreign():
                call = Call(one.name, positional, keywords, self.place, target, node)
                return knowledge.called(self, call)
            case _:
                return Value(target.marks | _all(positional, keywords))

    def _method(
        self,
        method: Method,
        positional: Sequence[Value],
        keywords: Mapping[str, Value],
        node: ast.Call | None,
    ) -> Value:
        receiver, owner = method.receiver, method.owner
        if isinstance(owner, Several | Fields):
            found = containers.method(self, receiver, owner, method.name, positional, keywords)
            if found is not None:
                return found
        prefix = ""
        if isinstance(owner, Foreign):
            prefix = owner.name
        elif isinstance(owner, Instance):
            prefix = next(iter(owner.of.ancestors()), owner.of.name)
        elif isinstance(owner, Class):
            prefix = next(iter(owner.ancestors()), owner.name)
        elif isinstance(owner, Method):
            prefix = owner.name
        call = Call(f"{prefix}.{method.name}", positional, keywords, self.place, receiver, node)
        return knowledge.known(self, call)

    def _function(
        self, function: Function, positional: Sequence[Value], keywords: Mapping[str, Value]
    ) -> Value:
        if sum(frame.node is function.node for frame in self.frames) >= AGAIN:
            return Value(_all(positional, keywords))
        if function.options and not positional and not keywords:
            told = options.entered(self, function)
            positional, keywords = ([told.pop("")], told) if "" in told else ([], told)
        scope = Scope(self._bound(function, positional, keywords), function.scope)
        frame = Frame(function.node, entered=self.control)
        outside, lexical, loops = self.module, self.lexical, self.loops
        self.lexical = m.NONE
        self.frames.append(frame)
        try:
            if isinstance(function.node, ast.Lambda):
                self.module = function.module
                return self.eval(function.node.body, scope)
            self.run(function.node.body, scope, function.module)
        finally:
            self.frames.pop()
            self.module, self.lexical, self.loops = outside, lexical, loops
        if frame.yields:
            return some(join(frame.yields))
        return join(frame.returns) if frame.returns else constant(None)

    def _bound(
        self, function: Function, positional: Sequence[Value], keywords: Mapping[str, Value]
    ) -> dict[str, Value]:
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
            bound[arguments.vararg.arg] = several(positional[len(names) :])
        if arguments.kwarg:
            bound[arguments.kwarg.arg] = fields(extra, spread)
        return bound

    def _construct(self, of: Class, positional: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        ancestors = of.ancestors()
        if (
            any(name.rpartition(".")[2] in ("Enum", "StrEnum", "IntEnum") for name in ancestors)
            and positional
        ):
            return positional[0]
        made = Instance(of, positional=tuple(positional), keywords=dict(keywords))
        value = thing(made)
        if init := of.find("__init__"):
            for one in init.things:
                if isinstance(one, Function):
                    self._function(one, [value, *positional], keywords)
        else:
            names = of.all_fields()
            made.attributes |= dict(zip(names, positional, strict=False))
            made.attributes |= {name: value for name, value in keywords.items() if name != "**"}
            if "**" in keywords:
                for name in names:
                    made.attributes.setdefault(name, keywords["**"])
            for one in (of.find("__post_init__") or NOTHING).things:
                if isinstance(one, Function):
                    self._function(one, [value], {})
        for name in names if not init else ():
            found = of.find(name)
            if found is not None and name not in made.attributes:
                made.attributes[name] = knowledge.fresh(self, found)
        trainers.constructed(self, made)
        noting.made(self, of, made.attributes, self.place)
        return value

    def _gradient(self, one: Gradient, positional: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        loss = self.call(one.target, positional, keywords)
        first = next((each for each in loss.things if isinstance(each, Several)), None)
        if first and first.elements:
            loss = first.elements[0]
        given = positional[0] if positional else NOTHING
        if m.models(deep(given)):
            loss = Value(loss.marks | m.models(deep(given)))
        knowledge.trained(self, loss, self.place)
        return some(Value(deep(loss)))


def _all(positional: Sequence[Value], keywords: Mapping[str, Value]) -> m.Marks:
    return frozenset[str]().union(*map(deep, positional), *map(deep, keywords.values()))
