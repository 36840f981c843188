"""Expressions: constants are worked out where they are known, marks are passed on."""

import ast

from agent2rl.analysis.programs import arithmetic, filesystem
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import DEEPEST
from agent2rl.analysis.programs.items import Items
from agent2rl.analysis.programs.values import (
    HOLE,
    LONGEST_TEXT,
    NOTHING,
    UNKNOWN,
    Class,
    External,
    Fields,
    Foreign,
    Function,
    Module,
    Place,
    Scope,
    Several,
    Value,
    constant,
    deep,
    fields,
    join,
    several,
    some,
    thing,
)


class Expressions(Items):
    def eval(self, node: ast.expr | None, scope: Scope) -> Value:
        if node is None:
            return constant(None)
        self.tick()
        if self.depth >= DEEPEST:
            return NOTHING
        self.depth += 1
        try:
            return self._expression(node, scope)
        finally:
            self.depth -= 1

    def _expression(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.Constant():
                return constant(arithmetic.plain(node.value))
            case ast.Name():
                return scope.find(node.id) or _builtin(node.id)
            case ast.Attribute():
                return self.attribute(self.eval(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp():
                return self.operate(node.op, self.eval(node.left, scope), self.eval(node.right, scope))
            case ast.UnaryOp():
                return arithmetic.unary(node.op, self.eval(node.operand, scope))
            case ast.BoolOp():
                return self._either(node, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.IfExp():
                return self._choice(node, scope)
            case ast.Subscript():
                return self._subscript(node, scope)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._listed(node.elts, scope)
            case ast.Dict():
                return self._dictionary(node, scope)
            case ast.JoinedStr():
                return self._formatted(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return some(self._comprehended(node.generators, (node.elt,), scope)[0])
            case ast.DictComp():
                key, value = self._comprehended(node.generators, (node.key, node.value), scope)
                return fields({}, Value(value.marks | key.marks, value.constant, value.things))
            case ast.Lambda():
                return thing(Function(node, scope, self.module, self.defaults(node.args, scope)))
            case ast.NamedExpr():
                value = self.eval(node.value, scope)
                self.bind(node.target, value, scope)
                return value
            case ast.Starred() | ast.Await():
                return self.eval(node.value, scope)
            case ast.Yield():
                self.frames[-1].yields.append(self.guarded(self.eval(node.value, scope)))
                return NOTHING
            case ast.YieldFrom():
                self.frames[-1].yields.append(self.element(self.eval(node.value, scope)))
                return NOTHING
            case _:
                return NOTHING

    module: Module

    def defaults(self, arguments: ast.arguments, scope: Scope) -> dict[str, Value]:
        named = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(named), reversed(arguments.defaults), strict=False))
        pairs += [
            (name, value)
            for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value
        ]
        return {name.arg: self.eval(value, scope) for name, value in pairs}

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        target = self.eval(node.func, scope)
        positional: list[Value] = []
        for each in node.args:
            value = self.eval(each, scope)
            if isinstance(each, ast.Starred):
                known = next((one.elements for one in value.things if isinstance(one, Several)), None)
                positional += known if known is not None else [self.element(value)]
            else:
                positional.append(value)
        keywords: dict[str, Value] = {}
        for word in node.keywords:
            value = self.eval(word.value, scope)
            if word.arg is not None:
                keywords[word.arg] = value
                continue
            for one in value.things:
                if isinstance(one, Fields):
                    keywords |= {
                        name: Value(found.marks | value.marks, found.constant, found.things)
                        for name, found in one.known.items()
                    }
                    if one.rest is not NOTHING:
                        keywords.setdefault("**", one.rest)
            if value.marks or not value.things:
                keywords.setdefault("**", value)
        self.place = Place(self.module.path, node.lineno)
        return self.call(target, positional, keywords, node, _dotted(node.func))

    def operate(self, op: ast.operator, left: Value, right: Value) -> Value:
        a, b = deep(left), deep(right)
        marks = a | b
        if isinstance(op, ast.Mult | ast.MatMult) and m.weighs(a, b):
            marks |= {self.made(m.WEIGHTED)}
        if isinstance(op, ast.Add | ast.Sub | ast.Mult) and m.blends(a, b):
            marks |= {self.made(m.BLENDED)}
        lists = [one for value in (left, right) for one in value.things if isinstance(one, Several)]
        if lists and isinstance(op, ast.Add | ast.Mult | ast.BitOr):
            return _appended(left, right) if len(lists) > 1 else thing(lists[0], left.marks | right.marks)
        if isinstance(op, ast.Add) and (row := _row(left, right)):
            return row
        found = arithmetic.calculated(op, left, right)
        return Value(marks, found)

    def _either(self, node: ast.BoolOp, scope: Scope) -> Value:
        found: list[Value] = []
        for each in node.values:
            value = self.eval(each, scope)
            truth = value.truth
            stops = isinstance(node.op, ast.Or)
            if truth is not None and truth == stops:
                return join([*found, value]) if found else value
            if truth is None or each is node.values[-1]:
                found.append(value)
        joined = join(found)
        return joined if len(found) == 1 else Value(joined.marks, UNKNOWN, joined.things)

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        left, *rest = [self.eval(each, scope) for each in (node.left, *node.comparators)]
        marks = frozenset().union(*(deep(value) for value in (left, *rest)))
        if m.SAID in marks:
            marks = (marks - m.OWN - {m.FILTERED}) | {self.made(m.JUDGED)}
        if len(rest) > 1:
            return Value(marks)
        return Value(marks, arithmetic.compared(node.ops[0], left, rest[0]))

    def _choice(self, node: ast.IfExp, scope: Scope) -> Value:
        test = self.eval(node.test, scope)
        if test.truth is not None and not test.marks:
            return self.eval(node.body if test.truth else node.orelse, scope)
        chosen = [self.eval(node.body, scope), self.eval(node.orelse, scope)]
        value = self.guarded(join(chosen), deep(test) | self.control)
        if all(isinstance(each.constant, int | float) for each in chosen):
            if deep(test) & {m.JUDGED, m.SAID}:
                return value.marked(self.made(m.JUDGED), *(deep(test) & {m.WORLD}))
            return value.marked(*(deep(test) & {m.TOKENS, m.WORLD}))
        return value

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value, index = self.eval(node.value, scope), self.eval(node.slice, scope)
        if isinstance(node.slice, ast.Slice):
            for part in (node.slice.lower, node.slice.upper, node.slice.step):
                if part is not None:
                    self.eval(part, scope)
            kept = [one for one in value.things if isinstance(one, Several | Foreign)]
            return Value(value.marks, UNKNOWN, tuple(kept))
        for one in value.things:
            if isinstance(one, External) and one.name == "os.environ":
                return filesystem.variable(self, index, None)
        if value.things and isinstance(value.things[0], Class | External) and not value.marks:
            return value  # list[int], Trainer[...]
        found = self.item(value, index)
        inside = deep(index)
        if inside & {m.JUDGED} and deep(found) & m.OWN:
            found = found.marked(self.made(m.FILTERED))
        if found.marks & {m.LOGPROB, m.PROBS, m.LOGITS} and not index.known and not _slices(node.slice):
            found = Value(found.marks | inside | {m.PICKED}, found.constant, found.things)
        return found

    def _listed(self, elements: list[ast.expr], scope: Scope) -> Value:
        found, whole = list[Value](), True
        for each in elements:
            value = self.eval(each, scope)
            if not isinstance(each, ast.Starred):
                found.append(value)
                continue
            known = [one for one in value.things if isinstance(one, Several) and one.elements is not None]
            if len(known) == len(value.things) == 1 and known[0].rest is NOTHING:
                found += known[0].elements or ()
            else:
                whole = False
                found.append(self.element(value))
        return several(found) if whole else some(join(found))

    def _dictionary(self, node: ast.Dict, scope: Scope) -> Value:
        known: dict[str, Value] = {}
        rest: list[Value] = []
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.eval(each, scope)
            if key is None:
                for one in value.things:
                    if isinstance(one, Fields):
                        known |= one.known
                        rest.append(one.rest)
                if value.marks:
                    rest.append(Value(value.marks))
            elif (name := self.eval(key, scope)).known:
                known[str(name.constant)] = value
            else:
                rest.append(value)
        return fields(known, join(rest))

    def _formatted(self, node: ast.JoinedStr, scope: Scope) -> Value:
        marks, text = frozenset[str](), ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval(part.value, scope)
                marks |= deep(value)
                plain = value.constant is not UNKNOWN and part.format_spec is None
                text += str(value.constant) if plain else HOLE
            else:
                text += str(getattr(part, "value", ""))
        return Value(marks, text[:LONGEST_TEXT])

    def _comprehended(
        self, generators: list[ast.comprehension], wanted: tuple[ast.expr, ...], scope: Scope
    ) -> list[Value]:
        inner = Scope({}, scope)
        before = self.control, self.lexical
        for each in generators:
            self.bind(each.target, self.element(self.eval(each.iter, inner)), inner)
            for test in each.ifs:
                self.control |= deep(self.eval(test, inner))
        found = [self.guarded(self.eval(each, inner)) for each in wanted]
        self.control, self.lexical = before
        return found


def _builtin(name: str) -> Value:
    return thing(External(name))


def _appended(left: Value, right: Value) -> Value:
    parts = [one for value in (left, right) for one in value.things if isinstance(one, Several)]
    marks = left.marks | right.marks
    if all(part.elements is not None for part in parts):
        found = several([element for part in parts for element in part.elements or ()])
        return Value(marks, UNKNOWN, found.things)
    return Value(marks, UNKNOWN, some(join(part.any() for part in parts)).things)


def _slices(node: ast.expr) -> bool:
    """Whether an index is a place and not a choice of tokens."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice | ast.Constant | ast.UnaryOp) for part in parts)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _row(left: Value, right: Value) -> Value | None:
    """What was written as JSON stays what it is when a line's end is put behind it."""
    for value, other in ((left, right), (right, left)):
        blank = other.known and isinstance(other.constant, str) and not other.constant.strip()
        if blank and any(isinstance(one, Fields) for one in value.things):
            return value
    return None
