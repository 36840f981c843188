"""Expressions: constants are worked out where they are known, marks are passed on."""

import ast
import operator
from collections.abc import Callable

from agent2rl.analysis.programs import attributes, python
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import DEEPEST, REWARD, Core
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.values import (
    HOLE,
    LONGEST_TEXT,
    NOTHING,
    UNKNOWN,
    Class,
    Constant,
    External,
    Fields,
    Foreign,
    Function,
    Instance,
    Method,
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

COMPARED: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
ORDERED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
CALCULATED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
PAIR = {
    "chosen": m.CHOSEN,
    "rejected": m.REJECTED,
    "preferred": m.CHOSEN,
    "dispreferred": m.REJECTED,
    "winner": m.CHOSEN,
    "loser": m.REJECTED,
}


class Expressions(Core):
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
                return constant(_plain(node.value))
            case ast.Name():
                return scope.find(node.id) or _builtin(node.id)
            case ast.Attribute():
                return self.attribute(self.eval(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp():
                return self.operate(node.op, self.eval(node.left, scope), self.eval(node.right, scope))
            case ast.UnaryOp():
                return _unary(node.op, self.eval(node.operand, scope))
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
        if isinstance(op, ast.Mult | ast.MatMult) and weighs(a, b):
            marks |= {self.made(m.WEIGHTED)}
        if isinstance(op, ast.Add | ast.Sub | ast.Mult) and blends(a, b):
            marks |= {self.made(m.BLENDED)}
        lists = [one for value in (left, right) for one in value.things if isinstance(one, Several)]
        if lists and isinstance(op, ast.Add | ast.Mult | ast.BitOr):
            return _appended(left, right) if len(lists) > 1 else thing(lists[0], left.marks | right.marks)
        found = _calculated(op, left, right)
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
        return Value(marks, _compared(node.ops[0], left, rest[0]))

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
                return python.variable(self, index, None)
        if value.things and isinstance(value.things[0], Class | External) and not value.marks:
            return value  # list[int], Trainer[...]
        found = self.item(value, index)
        inside = deep(index)
        if inside & {m.JUDGED} and deep(found) & m.OWN:
            found = found.marked(self.made(m.FILTERED))
        if found.marks & {m.LOGPROB, m.PROBS} and not index.known and not _slices(node.slice):
            found = Value(found.marks | inside | {m.PICKED}, found.constant, found.things)
        return found

    def item(self, value: Value, index: Value) -> Value:
        key = index.constant
        exact, loose = list[Value](), list[Value]()
        for one in value.things:
            match one:
                case Several() if one.elements is not None and isinstance(key, int):
                    inside = -len(one.elements) <= key < len(one.elements)
                    exact.append(one.elements[key] if inside else one.rest)
                case Several():
                    exact.append(one.any())
                case Fields() if key is not UNKNOWN and str(key) in one.known:
                    exact.append(one.known[str(key)])
                case Fields():
                    loose.append(one.rest if key is not UNKNOWN else one.any())
                case Instance() if one.of.find("__getitem__"):
                    exact.append(self.call(self.attribute(value, "__getitem__"), [index], {}))
                case Instance() if isinstance(key, str):
                    exact.append(one.attributes.get(key, NOTHING))
                case Foreign() if isinstance(key, str) and key in one.attributes:
                    exact.append(one.attributes[key])
                case Foreign():
                    loose.append(self.element(thing(one)))
                case _:
                    pass
        found = join([*exact, *loose])
        found = Value(found.marks | value.marks, found.constant, found.things)
        return found if exact else self.named(found, key)

    def named(self, value: Value, name: Constant) -> Value:
        """What a row or an answer of the world holds under some name."""
        if not isinstance(name, str):
            return value
        lowered = name.lower()
        for word, mark in PAIR.items():
            if lowered.startswith(word):
                return value.marked(self.made(mark))
        if REWARD.search(lowered) and value.marks & {m.DATA, m.SAID, m.WORLD, m.TOKENS}:
            return Value(value.marks - m.OWN - {m.FILTERED}, UNKNOWN).marked(self.made(m.JUDGED))
        return value

    def _listed(self, elements: list[ast.expr], scope: Scope) -> Value:
        if any(isinstance(each, ast.Starred) for each in elements):
            return some(
                join(
                    self.element(value) if isinstance(each, ast.Starred) else value
                    for each in elements
                    for value in [self.eval(each, scope)]
                )
            )
        return several([self.eval(each, scope) for each in elements])

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

    def element(self, value: Value) -> Value:
        """One of what it holds."""
        known: list[Value] = []
        for one in value.things:
            match one:
                case Several() | Fields():
                    known.append(one.any() if isinstance(one, Several) else NOTHING)
                case Instance():
                    for name in ("__iter__", "__getitem__"):
                        if one.of.find(name):
                            found = self.call(self.attribute(thing(one), name), [], {})
                            known.append(self.element(found) if name == "__iter__" else found)
                            break
                case Foreign() if "rows" in one.attributes:
                    known.append(one.attributes["rows"])
                case Foreign() | Method():
                    known.append(Value(things=(one,)))
                case _:
                    pass
        found = join(known)
        return Value(found.marks | value.marks, found.constant, found.things)

    def attribute(self, value: Value, name: str) -> Value:
        return attributes.read(self, value, name)


def _plain(value: object) -> Constant:
    if isinstance(value, str):
        return value[:LONGEST_TEXT].replace(HOLE, " ")
    return value if isinstance(value, int | float) or value is None else UNKNOWN


def _builtin(name: str) -> Value:
    return thing(External(name))


def _unary(op: ast.unaryop, value: Value) -> Value:
    known = value.constant
    if isinstance(op, ast.Not):
        truth = value.truth
        return Value(deep(value), UNKNOWN if truth is None else not truth)
    if isinstance(op, ast.USub) and isinstance(known, int | float):
        return Value(value.marks, -known)
    return Value(deep(value), UNKNOWN, value.things)


def _calculated(op: ast.operator, left: Value, right: Value) -> Constant:
    a, b = left.constant, right.constant
    if isinstance(a, str) and isinstance(op, ast.Div):
        return f"{a}/{b if isinstance(b, str) else HOLE}"[:LONGEST_TEXT]
    if isinstance(op, ast.Div) and isinstance(b, str) and left.constant is UNKNOWN:
        return f"{HOLE}/{b}"[:LONGEST_TEXT]
    if isinstance(op, ast.Add) and (isinstance(a, str) or isinstance(b, str)):
        both = (a if isinstance(a, str) else HOLE) + (b if isinstance(b, str) else HOLE)
        return both[:LONGEST_TEXT]
    if isinstance(op, ast.Mod) and isinstance(a, str):
        return a.partition("%")[0] + HOLE
    if isinstance(a, int | float) and isinstance(b, int | float) and type(op) in CALCULATED:
        if max(abs(a), abs(b)) > 1e18:
            return UNKNOWN
        try:
            return CALCULATED[type(op)](a, b)
        except (ZeroDivisionError, OverflowError, ValueError):
            return UNKNOWN
    if isinstance(op, ast.Pow) and isinstance(a, int | float) and isinstance(b, int | float):
        return _power(a, b)
    return UNKNOWN


def _power(base: float, exponent: float) -> Constant:
    if abs(exponent) > 64 or abs(base) > 1e6:
        return UNKNOWN
    try:
        found = float(base) ** exponent
    except (ZeroDivisionError, OverflowError, ValueError):
        return UNKNOWN
    if isinstance(found, complex):
        return UNKNOWN
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0 and abs(found) < 1e15
    return int(found) if whole else found


def _compared(op: ast.cmpop, left: Value, right: Value) -> Constant:
    nothing = [value for value in (left, right) if value.constant is None]
    if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and nothing:
        other = right if nothing[0] is left else left
        if other.constant is UNKNOWN and not other.things:
            return UNKNOWN
        is_none = other.constant is None and not other.things
        return is_none == isinstance(op, ast.Is | ast.Eq)
    if isinstance(op, ast.In | ast.NotIn):
        return _contained(op, left, right)
    if not (left.known and right.known):
        return UNKNOWN
    a, b = left.constant, right.constant
    if type(op) in COMPARED:
        return COMPARED[type(op)](a, b)
    if type(op) in ORDERED and isinstance(a, int | float) and isinstance(b, int | float):
        return ORDERED[type(op)](a, b)
    return UNKNOWN


def _contained(op: ast.cmpop, left: Value, right: Value) -> Constant:
    if not left.known:
        return UNKNOWN
    if right.known and isinstance(right.constant, str) and isinstance(left.constant, str):
        return (left.constant in right.constant) == isinstance(op, ast.In)
    for one in right.things:
        if isinstance(one, Several) and one.elements is not None and all(v.known for v in one.elements):
            return any(v.constant == left.constant for v in one.elements) == isinstance(op, ast.In)
        if isinstance(one, Fields) and one.rest is NOTHING:
            return (str(left.constant) in one.known) == isinstance(op, ast.In)
    return UNKNOWN


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


def weighs(left: Marks, right: Marks) -> bool:
    """Whether a judgement weighs log-probabilities."""
    scored = m.SCORES | {m.PROBS}
    return bool(
        (m.JUDGED in left and right & scored)
        or (m.JUDGED in right and left & scored)
        or (m.JUDGED in left and m.WEIGHTS in right and m.NOISE not in right)
        or (m.JUDGED in right and m.WEIGHTS in left and m.NOISE not in left)
    )


def blends(left: Marks, right: Marks) -> bool:
    """Whether weights are mixed with others or with noise."""
    if m.WEIGHTS in left and m.WEIGHTS in right:
        ours, theirs = m.models(left), m.models(right)
        return bool(ours and theirs and ours != theirs)
    noisy = (m.WEIGHTS in left and m.NOISE in right) or (m.WEIGHTS in right and m.NOISE in left)
    return noisy and not (left | right) & {m.DATA, m.SAID}
