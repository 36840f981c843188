"""Names, attributes and items that values are bound to."""

import ast

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    ClassValue,
    DictValue,
    InstanceValue,
    LibraryObject,
    ListValue,
    ModuleValue,
    NameScope,
    collect_marks,
    join_values,
    make_constant,
)
from agent2rl.analysis.programs.expressions import ExpressionInterpreter


class BindingInterpreter(ExpressionInterpreter):
    def bind_target(self, target: ast.expr, value: AbstractValue, scope: NameScope) -> None:
        match target:
            case ast.Name():
                value = self.mark_reward(target.id, self.mark_filtered(value))
                frame = self.frames[-1]
                holder = scope.find_outer_scope(target.id) if target.id in frame.outer else scope
                holder.names[target.id] = value
                self._note_name(target.id, value, scope)
            case ast.Tuple() | ast.List():
                self._unpack_targets(target.elts, value, scope)
            case ast.Starred():
                self.bind_target(target.value, value, scope)
            case ast.Attribute():
                owner = self.eval_expression(target.value, scope)
                value = self.mark_reward(target.attr, self.mark_filtered(value))
                for one in owner.things:
                    if isinstance(one, InstanceValue | LibraryObject):
                        self._set_name(one.attributes, target.attr, value)
                    elif isinstance(one, DictValue):
                        self._set_name(one.known, target.attr, value)
                    elif isinstance(one, ClassValue | ModuleValue):
                        self._set_name(one.scope.names, target.attr, value)
            case ast.Subscript():
                self._store_item(target, value, scope)

    def _set_name(self, names: dict[str, AbstractValue], name: str, value: AbstractValue) -> None:
        """In a branch that may not be taken, what was there before may stay."""
        names[name] = join_values([names.get(name, NOTHING), value]) if self.uncertain else value

    def _note_name(self, name: str, value: AbstractValue, scope: NameScope) -> None:
        """For whoever looks for well-known names of hyperparameters."""

    def _unpack_targets(self, targets: list[ast.expr], value: AbstractValue, scope: NameScope) -> None:
        plain = not any(isinstance(each, ast.Starred) for each in targets)
        known = [
            one.elements
            for one in value.things
            if isinstance(one, ListValue) and one.elements is not None and len(one.elements) == len(targets)
        ]
        for number, target in enumerate(targets):
            if known and plain and len(known) == len(value.things):
                part = join_values(each[number] for each in known)
                part = AbstractValue(part.marks | value.marks, part.constant, part.things)
            else:
                part = self.read_item(value, make_constant(number))
            self.bind_target(target, part, scope)

    def _store_item(self, target: ast.Subscript, value: AbstractValue, scope: NameScope) -> None:
        owner, index = self.eval_expression(target.value, scope), self.eval_expression(target.slice, scope)
        value = self.mark_filtered(value)
        stored = False
        for one in owner.things:
            if isinstance(one, DictValue):
                stored = True
                if index.known:
                    self._set_name(one.known, str(index.constant), value)
                else:
                    one.rest = join_values([one.rest, value])
            elif isinstance(one, ListValue):
                stored = True
                one.rest = join_values([one.rest, value])
        if not stored and isinstance(target.value, ast.Name | ast.Attribute):
            marks = owner.marks | collect_marks(value) | (collect_marks(index) - {m.JUDGED})
            self.bind_target(target.value, AbstractValue(marks, owner.constant, owner.things), scope)
