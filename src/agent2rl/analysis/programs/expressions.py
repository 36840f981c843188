"""Interpret expressions and assignments: fold known constants and pass on marks."""

import ast

from agent2rl.analysis.programs import constant_folding, standard_library_calls
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    LONGEST_TEXT,
    NOTHING,
    UNKNOWN,
    AbstractValue,
    ClassValue,
    CodeLocation,
    DictValue,
    FunctionValue,
    InstanceValue,
    LibraryObject,
    LibrarySymbol,
    ListValue,
    ModuleValue,
    NameScope,
    collect_marks,
    join_values,
    make_constant,
    make_dict,
    make_list,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import DEEPEST
from agent2rl.analysis.programs.value_operations import ItemInterpreter
from agent2rl.analysis.workspace_paths import HOLE


class ExpressionInterpreter(ItemInterpreter):
    def eval_expression(self, node: ast.expr | None, scope: NameScope) -> AbstractValue:
        if node is None:
            return make_constant(None)
        self.count_step()
        if self.depth >= DEEPEST:
            return NOTHING
        self.depth += 1
        try:
            return self._dispatch_expression(node, scope)
        finally:
            self.depth -= 1

    def _dispatch_expression(self, node: ast.expr, scope: NameScope) -> AbstractValue:
        match node:
            case ast.Constant():
                return make_constant(constant_folding.to_constant(node.value))
            case ast.Name():
                return scope.look_up(node.id) or _make_builtin(node.id)
            case ast.Attribute():
                return self.read_attribute(self.eval_expression(node.value, scope), node.attr)
            case ast.Call():
                return self._eval_call(node, scope)
            case ast.BinOp():
                return self.apply_operator(
                    node.op, self.eval_expression(node.left, scope), self.eval_expression(node.right, scope)
                )
            case ast.UnaryOp():
                return constant_folding.fold_unary(node.op, self.eval_expression(node.operand, scope))
            case ast.BoolOp():
                return self._eval_bool_op(node, scope)
            case ast.Compare():
                return self._eval_comparison(node, scope)
            case ast.IfExp():
                return self._eval_conditional(node, scope)
            case ast.Subscript():
                return self._eval_subscript(node, scope)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._eval_list(node.elts, scope)
            case ast.Dict():
                return self._eval_dict(node, scope)
            case ast.JoinedStr():
                return self._eval_fstring(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return make_open_list(self._eval_comprehension(node.generators, (node.elt,), scope)[0])
            case ast.DictComp():
                key, value = self._eval_comprehension(node.generators, (node.key, node.value), scope)
                return make_dict({}, AbstractValue(value.marks | key.marks, value.constant, value.things))
            case ast.Lambda():
                return make_value(
                    FunctionValue(node, scope, self.module, self.eval_defaults(node.args, scope))
                )
            case ast.NamedExpr():
                value = self.eval_expression(node.value, scope)
                self.bind_target(node.target, value, scope)
                return value
            case ast.Starred() | ast.Await():
                return self.eval_expression(node.value, scope)
            case ast.Yield():
                self.frames[-1].yields.append(self.mark_filtered(self.eval_expression(node.value, scope)))
                return NOTHING
            case ast.YieldFrom():
                self.frames[-1].yields.append(self.read_element(self.eval_expression(node.value, scope)))
                return NOTHING
            case _:
                return NOTHING

    module: ModuleValue

    def eval_defaults(self, arguments: ast.arguments, scope: NameScope) -> dict[str, AbstractValue]:
        named = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(named), reversed(arguments.defaults), strict=False))
        pairs += [
            (name, value)
            for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value
        ]
        return {name.arg: self.eval_expression(value, scope) for name, value in pairs}

    def _eval_call(self, node: ast.Call, scope: NameScope) -> AbstractValue:
        target = self.eval_expression(node.func, scope)
        positional: list[AbstractValue] = []
        for each in node.args:
            value = self.eval_expression(each, scope)
            if isinstance(each, ast.Starred):
                elements = next((one.elements for one in value.things if isinstance(one, ListValue)), None)
                positional += elements if elements is not None else [self.read_element(value)]
            else:
                positional.append(value)
        keywords: dict[str, AbstractValue] = {}
        for word in node.keywords:
            value = self.eval_expression(word.value, scope)
            if word.arg is not None:
                keywords[word.arg] = value
                continue
            for one in value.things:
                if isinstance(one, DictValue):
                    keywords |= {
                        name: AbstractValue(
                            field_value.marks | value.marks, field_value.constant, field_value.things
                        )
                        for name, field_value in one.known.items()
                    }
                    if one.rest is not NOTHING:
                        keywords.setdefault("**", one.rest)
            if value.marks or not value.things:
                keywords.setdefault("**", value)
        self.place = CodeLocation(self.module.path, node.lineno)
        return self.call_value(target, positional, keywords, node, _dotted_name(node.func))

    def apply_operator(self, op: ast.operator, left: AbstractValue, right: AbstractValue) -> AbstractValue:
        a, b = collect_marks(left), collect_marks(right)
        marks = a | b
        if isinstance(op, ast.Mult | ast.MatMult) and m.is_weighted(a, b):
            marks |= {self.record_mark(m.WEIGHTED)}
        if isinstance(op, ast.Add | ast.Sub | ast.Mult) and m.is_blended(a, b):
            marks |= {self.record_mark(m.BLENDED)}
        lists = [one for value in (left, right) for one in value.things if isinstance(one, ListValue)]
        if lists and isinstance(op, ast.Add | ast.Mult | ast.BitOr):
            return (
                _concatenate_lists(left, right)
                if len(lists) > 1
                else make_value(lists[0], left.marks | right.marks)
            )
        if isinstance(op, ast.Add) and (row := _keep_json_row(left, right)):
            return row
        constant = constant_folding.fold_binary(op, left, right)
        return AbstractValue(marks, constant)

    def _eval_bool_op(self, node: ast.BoolOp, scope: NameScope) -> AbstractValue:
        operands: list[AbstractValue] = []
        for each in node.values:
            value = self.eval_expression(each, scope)
            truth = value.truth
            stops = isinstance(node.op, ast.Or)
            if truth is not None and truth == stops:
                return join_values([*operands, value]) if operands else value
            if truth is None or each is node.values[-1]:
                operands.append(value)
        joined = join_values(operands)
        return joined if len(operands) == 1 else AbstractValue(joined.marks, UNKNOWN, joined.things)

    def _eval_comparison(self, node: ast.Compare, scope: NameScope) -> AbstractValue:
        left, *rest = [self.eval_expression(each, scope) for each in (node.left, *node.comparators)]
        marks = frozenset().union(*(collect_marks(value) for value in (left, *rest)))
        if m.SAID in marks:
            marks = (marks - m.OWN - {m.FILTERED}) | {self.record_mark(m.JUDGED)}
        if len(rest) > 1:
            return AbstractValue(marks)
        return AbstractValue(marks, constant_folding.fold_comparison(node.ops[0], left, rest[0]))

    def _eval_conditional(self, node: ast.IfExp, scope: NameScope) -> AbstractValue:
        test = self.eval_expression(node.test, scope)
        if test.truth is not None and not test.marks:
            return self.eval_expression(node.body if test.truth else node.orelse, scope)
        chosen = [self.eval_expression(node.body, scope), self.eval_expression(node.orelse, scope)]
        value = self.mark_filtered(join_values(chosen), collect_marks(test) | self.control)
        if all(isinstance(each.constant, int | float) for each in chosen):
            if collect_marks(test) & {m.JUDGED, m.SAID}:
                return value.with_marks(self.record_mark(m.JUDGED), *(collect_marks(test) & {m.WORLD}))
            return value.with_marks(*(collect_marks(test) & {m.TOKENS, m.WORLD}))
        return value

    def _eval_subscript(self, node: ast.Subscript, scope: NameScope) -> AbstractValue:
        value, index = self.eval_expression(node.value, scope), self.eval_expression(node.slice, scope)
        if isinstance(node.slice, ast.Slice):
            for part in (node.slice.lower, node.slice.upper, node.slice.step):
                if part is not None:
                    self.eval_expression(part, scope)
            containers = [one for one in value.things if isinstance(one, ListValue | LibraryObject)]
            return AbstractValue(value.marks, UNKNOWN, tuple(containers))
        for one in value.things:
            if isinstance(one, LibrarySymbol) and one.name == "os.environ":
                return standard_library_calls.read_variable(self, index, None)
        if value.things and isinstance(value.things[0], ClassValue | LibrarySymbol) and not value.marks:
            return value  # list[int], Trainer[...]
        item = self.read_item(value, index)
        inside = collect_marks(index)
        if inside & {m.JUDGED} and collect_marks(item) & m.OWN:
            item = item.with_marks(self.record_mark(m.FILTERED))
        if item.marks & {m.LOGPROB, m.PROBS, m.LOGITS} and not index.known and not _is_slice(node.slice):
            item = AbstractValue(item.marks | inside | {m.PICKED}, item.constant, item.things)
        return item

    def _eval_list(self, elements: list[ast.expr], scope: NameScope) -> AbstractValue:
        items, whole = list[AbstractValue](), True
        for each in elements:
            value = self.eval_expression(each, scope)
            if not isinstance(each, ast.Starred):
                items.append(value)
                continue
            lists = [one for one in value.things if isinstance(one, ListValue) and one.elements is not None]
            if len(lists) == len(value.things) == 1 and lists[0].rest is NOTHING:
                items += lists[0].elements or ()
            else:
                whole = False
                items.append(self.read_element(value))
        return make_list(items) if whole else make_open_list(join_values(items))

    def _eval_dict(self, node: ast.Dict, scope: NameScope) -> AbstractValue:
        fields: dict[str, AbstractValue] = {}
        rest: list[AbstractValue] = []
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.eval_expression(each, scope)
            if key is None:
                for one in value.things:
                    if isinstance(one, DictValue):
                        fields |= one.known
                        rest.append(one.rest)
                if value.marks:
                    rest.append(AbstractValue(value.marks))
            elif (name := self.eval_expression(key, scope)).known:
                fields[str(name.constant)] = value
            else:
                rest.append(value)
        return make_dict(fields, join_values(rest))

    def _eval_fstring(self, node: ast.JoinedStr, scope: NameScope) -> AbstractValue:
        marks, text = frozenset[str](), ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval_expression(part.value, scope)
                marks |= collect_marks(value)
                plain = value.constant is not UNKNOWN and part.format_spec is None
                text += str(value.constant) if plain else HOLE
            else:
                text += str(getattr(part, "value", ""))
        return AbstractValue(marks, text[:LONGEST_TEXT])

    def _eval_comprehension(
        self, generators: list[ast.comprehension], expressions: tuple[ast.expr, ...], scope: NameScope
    ) -> list[AbstractValue]:
        inner = NameScope({}, scope)
        before = self.control, self.lexical
        for each in generators:
            self.bind_target(each.target, self.read_element(self.eval_expression(each.iter, inner)), inner)
            for test in each.ifs:
                self.control |= collect_marks(self.eval_expression(test, inner))
        results = [self.mark_filtered(self.eval_expression(each, inner)) for each in expressions]
        self.control, self.lexical = before
        return results


def _make_builtin(name: str) -> AbstractValue:
    return make_value(LibrarySymbol(name))


def _concatenate_lists(left: AbstractValue, right: AbstractValue) -> AbstractValue:
    parts = [one for value in (left, right) for one in value.things if isinstance(one, ListValue)]
    marks = left.marks | right.marks
    if all(part.elements is not None for part in parts):
        joined = make_list([element for part in parts for element in part.elements or ()])
        return AbstractValue(marks, UNKNOWN, joined.things)
    return AbstractValue(
        marks, UNKNOWN, make_open_list(join_values(part.join_elements() for part in parts)).things
    )


def _is_slice(node: ast.expr) -> bool:
    """Whether an index selects positions, not tokens."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice | ast.Constant | ast.UnaryOp) for part in parts)


def _dotted_name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _keep_json_row(left: AbstractValue, right: AbstractValue) -> AbstractValue | None:
    """Keep a JSON row if only white space, such as a line break, is appended."""
    for value, other in ((left, right), (right, left)):
        blank = other.known and isinstance(other.constant, str) and not other.constant.strip()
        if blank and any(isinstance(one, DictValue) for one in value.things):
            return value
    return None


# Assignment to names, attributes and items.


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
        """Set a name. In a branch that may not be taken, the old value stays possible."""
        names[name] = join_values([names.get(name, NOTHING), value]) if self.uncertain else value

    def _note_name(self, name: str, value: AbstractValue, scope: NameScope) -> None:
        """Hook for well-known names of hyperparameters."""

    def _unpack_targets(self, targets: list[ast.expr], value: AbstractValue, scope: NameScope) -> None:
        plain = not any(isinstance(each, ast.Starred) for each in targets)
        sequences = [
            one.elements
            for one in value.things
            if isinstance(one, ListValue) and one.elements is not None and len(one.elements) == len(targets)
        ]
        for number, target in enumerate(targets):
            if sequences and plain and len(sequences) == len(value.things):
                part = join_values(each[number] for each in sequences)
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
