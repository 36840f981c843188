"""Names, attributes and items that values are bound to."""

import ast

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.expressions import Expressions
from agent2rl.analysis.programs.values import (
    NOTHING,
    Class,
    Fields,
    Foreign,
    Instance,
    Module,
    Scope,
    Several,
    Value,
    constant,
    deep,
    join,
)


class Bindings(Expressions):
    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        match target:
            case ast.Name():
                value = self.judged(target.id, self.guarded(value))
                frame = self.frames[-1]
                holder = scope.holder(target.id) if target.id in frame.outer else scope
                holder.names[target.id] = value
                self._known(target.id, value, scope)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, scope)
            case ast.Starred():
                self.bind(target.value, value, scope)
            case ast.Attribute():
                owner = self.eval(target.value, scope)
                value = self.judged(target.attr, self.guarded(value))
                for one in owner.things:
                    if isinstance(one, Instance | Foreign):
                        self._put(one.attributes, target.attr, value)
                    elif isinstance(one, Fields):
                        self._put(one.known, target.attr, value)
                    elif isinstance(one, Class | Module):
                        self._put(one.scope.names, target.attr, value)
            case ast.Subscript():
                self._store(target, value, scope)

    def _put(self, names: dict[str, Value], name: str, value: Value) -> None:
        """In a branch that may not be taken, what was there before may stay."""
        names[name] = join([names.get(name, NOTHING), value]) if self.uncertain else value

    def _known(self, name: str, value: Value, scope: Scope) -> None:
        """For whoever looks for well-known names of hyperparameters."""

    def _unpack(self, targets: list[ast.expr], value: Value, scope: Scope) -> None:
        plain = not any(isinstance(each, ast.Starred) for each in targets)
        known = [
            one.elements
            for one in value.things
            if isinstance(one, Several) and one.elements is not None and len(one.elements) == len(targets)
        ]
        for number, target in enumerate(targets):
            if known and plain and len(known) == len(value.things):
                part = join(each[number] for each in known)
                part = Value(part.marks | value.marks, part.constant, part.things)
            else:
                part = self.item(value, constant(number))
            self.bind(target, part, scope)

    def _store(self, target: ast.Subscript, value: Value, scope: Scope) -> None:
        owner, index = self.eval(target.value, scope), self.eval(target.slice, scope)
        value = self.guarded(value)
        stored = False
        for one in owner.things:
            if isinstance(one, Fields):
                stored = True
                if index.known:
                    self._put(one.known, str(index.constant), value)
                else:
                    one.rest = join([one.rest, value])
            elif isinstance(one, Several):
                stored = True
                one.rest = join([one.rest, value])
        if not stored and isinstance(target.value, ast.Name | ast.Attribute):
            marks = owner.marks | deep(value) | (deep(index) - {m.JUDGED})
            self.bind(target.value, Value(marks, owner.constant, owner.things), scope)
