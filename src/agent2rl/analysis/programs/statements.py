"""Statements: what is reached is stepped through, both branches where it is not known which is taken."""

import ast
from collections.abc import Sequence

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import DEEPEST
from agent2rl.analysis.programs.definitions import Definitions
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.values import (
    NOTHING,
    Fields,
    Module,
    Place,
    Scope,
    Several,
    Value,
    constant,
    deep,
    join,
)

UNROLLED = 8
"""The longest list of known things that a loop is stepped through for one by one."""
ENDING = {"sys.exit", "exit", "quit", "os._exit"}


class Statements(Definitions):
    def run(self, body: Sequence[ast.stmt], scope: Scope, module: Module) -> bool:
        """Whether what follows is not reached."""
        if self.depth >= DEEPEST:
            return False
        before, self.module = (self.control, self.lexical), module
        self.depth += 1
        try:
            for statement in body:
                self.tick()
                self.place = Place(module.path, statement.lineno)
                if self._statement(statement, scope, module):
                    return True
                self.module = module
            return False
        finally:
            self.depth -= 1
            self.control, self.lexical = before

    def _statement(self, node: ast.stmt, scope: Scope, module: Module) -> bool:
        match node:
            case ast.Expr():
                self.eval(node.value, scope)
                return isinstance(node.value, ast.Call) and ast.unparse(node.value.func)[:20] in ENDING
            case ast.Assign():
                value = self.eval(node.value, scope)
                for target in node.targets:
                    self._updated(target, node.value, scope)
                    self.bind(target, value, scope)
            case ast.AnnAssign():
                if node.value is not None:
                    self.bind(node.target, self.eval(node.value, scope), scope)
            case ast.AugAssign():
                self._augmented(node, scope)
            case ast.If():
                return self._branch(node, scope, module)
            case ast.For() | ast.AsyncFor():
                self._for(node, scope, module)
            case ast.While():
                self._while(node, scope, module)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node, scope, module)
            case ast.ClassDef():
                self._define_class(node, scope, module)
            case ast.Return():
                self._return(self.eval(node.value, scope))
                return True
            case ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.eval(item.context_expr, scope)
                    if item.optional_vars:
                        self.bind(item.optional_vars, value, scope)
                return self.run(node.body, scope, module)
            case ast.Try() | ast.TryStar():
                return self._try(node, scope, module)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope, module)
            case ast.Global() | ast.Nonlocal():
                self.frames[-1].outer |= set(node.names)
            case ast.Assert():
                self.eval(node.test, scope)
            case ast.Match():
                self._match(node, scope, module)
            case _:
                pass
        return False

    def _return(self, value: Value) -> None:
        frame = self.frames[-1]
        here: Marks = (self.control - frame.entered) | self.lexical
        value = self.guarded(value)
        if here & {m.SAID, m.JUDGED} and isinstance(value.constant, int | float):
            value = value.marked(self.made(m.JUDGED), *(here & {m.WORLD}))
        frame.returns.append(value)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        target = node.target
        before = self.eval(target, scope)
        value = self.eval(node.value, scope)
        if isinstance(node.op, ast.Add | ast.Sub):
            self.update(before, value)
        lists = [one for one in before.things if isinstance(one, Several)]
        if lists and isinstance(node.op, ast.Add | ast.BitOr):
            added = self.guarded(self.element(value))
            for one in lists:
                one.rest = join([one.rest, added])
            return
        found = self.operate(node.op, before, value)
        if isinstance(found.constant, int | float) and self.loops:
            found = Value(found.marks)
        if isinstance(value.constant, int | float) and self.lexical & {m.JUDGED, m.SAID}:
            found = Value(found.marks | {self.made(m.JUDGED)}, found.constant)
        if isinstance(target, ast.Subscript):
            self.bind(target, Value(found.marks | deep(self.eval(target.slice, scope)) - {m.JUDGED}), scope)
        else:
            self.bind(target, found, scope)

    def _updated(self, target: ast.expr, node: ast.expr, scope: Scope) -> None:
        """`weights = weights - rate * gradient`, by hand."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            key = ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute | ast.Subscript) else ""
            if key and ast.unparse(node.left) == key:
                self.update(self.eval(node.left, scope), self.eval(node.right, scope))

    def update(self, before: Value, change: Value) -> None:
        """Something is added to weights."""

    def _branch(self, node: ast.If, scope: Scope, module: Module) -> bool:
        if _is_main(node.test):
            wanted = module.name == "__main__"
            return self.run(node.body if wanted else node.orelse, scope, module)
        if _is_typing(node.test):
            return self.run(node.orelse, scope, module)
        test = self.eval(node.test, scope)
        marks = deep(test)
        truth = test.truth
        if truth is not None and not marks & {m.SAID, m.JUDGED, m.TOKENS, m.WORLD}:
            return self.run(node.body if truth else node.orelse, scope, module)
        ends, states = [], []
        outside, before = (self.control, self.lexical), dict(scope.names)
        for body in (node.body, node.orelse):
            scope.names = dict(before)
            self.control, self.lexical = outside[0] | marks, outside[1] | marks
            self.uncertain += 1
            ends.append(self.run(body, scope, module))
            self.uncertain -= 1
            states.append(scope.names)
            self.control, self.lexical = outside
        scope.names = _merged(
            [state for state, ended in zip(states, ends, strict=True) if not ended] or states
        )
        if any(ends) and not all(ends):
            self.control |= marks  # until the end of the block
        return all(ends)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope, module: Module) -> None:
        values = self.eval(node.iter, scope)
        known = _listed(values)
        self.loops += 1
        if known is not None and 0 < len(known) <= UNROLLED:
            for each in known:
                self.bind(node.target, Value(each.marks | values.marks, each.constant, each.things), scope)
                self.run(node.body, scope, module)
        else:
            for _ in range(2 if self.loops == 1 else 1):
                self.bind(node.target, self.element(values), scope)
                self.run(node.body, scope, module)
        self.loops -= 1
        self.run(node.orelse, scope, module)

    def _while(self, node: ast.While, scope: Scope, module: Module) -> None:
        self.loops += 1
        test = self.eval(node.test, scope)
        if not (test.truth is False and not test.marks):
            before, marks = (self.control, self.lexical), deep(test)
            for _ in range(2 if self.loops == 1 else 1):
                self.control |= marks
                self.run(node.body, scope, module)
                self.control, self.lexical = before
        self.loops -= 1
        self.run(node.orelse, scope, module)

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope, module: Module) -> bool:
        ended = self.run(node.body, scope, module)
        after = dict(scope.names)
        for handler in node.handlers:
            scope.names = dict(after)
            self.run(handler.body, scope, module)
            scope.names = _merged([after, scope.names], first=True)
            after = scope.names
        if not ended:
            ended = self.run(node.orelse, scope, module)
        return self.run(node.finalbody, scope, module) or (ended and not node.handlers)

    def _match(self, node: ast.Match, scope: Scope, module: Module) -> None:
        subject = self.eval(node.subject, scope)
        before, states = dict(scope.names), []
        for case in node.cases:
            fits = (
                _fits(self.eval(case.pattern.value, scope), subject)
                if isinstance(case.pattern, ast.MatchValue)
                else None
            )
            if isinstance(case.pattern, ast.MatchOr) and subject.known:
                values = [each.value for each in case.pattern.patterns if isinstance(each, ast.MatchValue)]
                fits = any(_fits(self.eval(value, scope), subject) for value in values)
            if fits is False:
                continue
            scope.names = dict(before)
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, ast.MatchAs | ast.MatchStar) and pattern.name:
                    scope.names[pattern.name] = Value(subject.marks)
            self.run(case.body, scope, module)
            states.append(scope.names)
            if fits:
                break
        scope.names = _merged(states or [before])


def _merged(states: list[dict[str, Value]], first: bool = False) -> dict[str, Value]:
    """The names after a branching; `first`: of what several have, the first's is taken."""
    if len(states) == 1:
        return states[0]
    names = dict.fromkeys(name for state in states for name in state)
    if first:
        return {name: next(state[name] for state in states if name in state) for name in names}
    return {name: join([state.get(name, NOTHING) for state in states]) for name in names}


def _listed(value: Value) -> list[Value] | None:
    if len(value.things) != 1:
        return None
    one = value.things[0]
    if isinstance(one, Fields):
        return [constant(name) for name in one.known] if one.rest is NOTHING else None
    if isinstance(one, Several) and one.rest is NOTHING:
        return one.elements
    return None


def _fits(pattern: Value, subject: Value) -> bool | None:
    return pattern.constant == subject.constant if pattern.known and subject.known else None


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and "__name__" in (
        getattr(test.left, "id", ""),
        *(getattr(each, "id", "") for each in test.comparators),
    )


def _is_typing(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"
