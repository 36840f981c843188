"""Interpret statements, with functions, classes and imports.

Only reached code is interpreted. If a condition is not known, both branches are.
"""

import ast
from collections.abc import Sequence

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    BoundMethod,
    ClassValue,
    CodeLocation,
    DictValue,
    FunctionValue,
    GradientFunction,
    LibrarySymbol,
    ListValue,
    ModuleValue,
    NameScope,
    PartialFunction,
    collect_marks,
    join_values,
    make_constant,
    make_value,
)
from agent2rl.analysis.programs.expressions import BindingInterpreter
from agent2rl.analysis.programs.interpreter_core import DEEPEST, CallFrame
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.source_files import parse_script
from agent2rl.analysis.programs.value_operations import decorator_name

# Functions, classes and imports.

GRADIENTS = {"grad", "value_and_grad"}


class DefinitionInterpreter(BindingInterpreter):
    def _define_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: NameScope, module: ModuleValue
    ) -> None:
        function = FunctionValue(node, scope, module, self.eval_defaults(node.args, scope))
        definition = make_value(function)
        for decorator in reversed(node.decorator_list):
            name = decorator_name(decorator)
            if name in GRADIENTS:
                definition = make_value(GradientFunction(definition))
            elif isinstance(decorator, ast.Call) and name == "partial":
                if any(decorator_name(each) in GRADIENTS for each in decorator.args):
                    definition = make_value(GradientFunction(definition))
            elif isinstance(decorator, ast.Call) and name in ("option", "argument", "main"):
                self._add_option(name, decorator, function, scope)
            else:
                definition = self._apply_decorator(decorator, definition, scope)
        scope.names[node.name] = definition

    def _apply_decorator(
        self, decorator: ast.expr, definition: AbstractValue, scope: NameScope
    ) -> AbstractValue:
        """Apply a decorator of the agent's own, which may return another function."""
        target = self.eval_expression(decorator, scope)
        if not any(isinstance(one, FunctionValue | BoundMethod) for one in target.things):
            return definition
        given = self.call_value(target, [definition], {})
        return (
            given
            if any(isinstance(one, FunctionValue | PartialFunction) for one in given.things)
            else definition
        )

    def _add_option(self, name: str, node: ast.Call, function: FunctionValue, scope: NameScope) -> None:
        """Add a command-line option that click or hydra declares."""
        words = {word.arg: self.eval_expression(word.value, scope) for word in node.keywords if word.arg}
        if name == "main":
            function.options |= {word: value for word, value in words.items() if word.startswith("config")}
            return
        names = [
            value.text for value in (self.eval_expression(each, scope) for each in node.args) if value.text
        ]
        flags = [each.lstrip("-").replace("-", "_").partition("/")[0] for each in names]
        if flags:
            function.options[max(flags, key=len)] = words.get("default", make_constant(None))

    def _define_class(self, node: ast.ClassDef, scope: NameScope, module: ModuleValue) -> None:
        bases = tuple(self.eval_expression(base, scope) for base in node.bases)
        inner = NameScope({}, scope)
        names = tuple(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        )
        made = ClassValue(node.name, module, inner, bases, names)
        self.frames.append(CallFrame(None))
        self.run_body(node.body, inner, module)
        self.frames.pop()
        for value in inner.names.values():
            for one in value.things:
                if isinstance(one, FunctionValue) and one.scope is inner:
                    one.scope = scope  # methods do not see the names of their class
        scope.names[node.name] = make_value(made)

    def _import_names(self, node: ast.Import | ast.ImportFrom, scope: NameScope, module: ModuleValue) -> None:
        near = module.path.rpartition("/")[0]
        if isinstance(node, ast.Import):
            for each in node.names:
                source_module = self.load_module(
                    each.name if each.asname else each.name.partition(".")[0], near
                )
                if source_module is None and not each.asname:
                    self.load_module(each.name, near)
                name = each.asname or each.name.partition(".")[0]
                full = each.name if each.asname else name
                scope.names[name] = make_value(source_module or LibrarySymbol(full))
            return
        for _ in range(node.level - 1):
            near = near.rpartition("/")[0]
        origin = node.module or ""
        source_module = self.load_module(origin, near) if origin else None
        for each in node.names:
            if source_module and each.name == "*":
                scope.names |= source_module.scope.names
            elif source_module and each.name in source_module.scope.names:
                scope.names[each.asname or each.name] = source_module.scope.names[each.name]
            elif part := self.load_module(f"{origin}.{each.name}" if origin else each.name, near):
                scope.names[each.asname or each.name] = make_value(part)
            elif each.name != "*":
                scope.names[each.asname or each.name] = make_value(LibrarySymbol(f"{origin}.{each.name}"))

    def load_module(self, name: str, near: str) -> ModuleValue | None:
        source = self.files.find_module(name, near)
        if source is None:
            return None
        if source.path in self.modules:
            return self.modules[source.path]
        read = parse_script(source)
        if read.tree is None:
            return None
        module = ModuleValue(
            name,
            source.path,
            NameScope({"__name__": make_constant(name), "__file__": make_constant(source.path)}),
        )
        # Before its body runs, since modules may import each other.
        self.modules[source.path] = module
        place, outer, frames = self.place, getattr(self, "module", module), self.frames
        control = self.control, self.lexical, self.loops
        self.control, self.lexical, self.loops, self.frames = m.NONE, m.NONE, 0, [CallFrame(None)]
        self.run_body(read.tree.body, module.scope, module)
        self.place, self.module, self.frames = place, outer, frames
        self.control, self.lexical, self.loops = control
        return module


# Statements.

UNROLLED = 8
"""Loops over known lists up to this length are unrolled."""
ENDING = {"sys.exit", "exit", "quit", "os._exit"}


class StatementInterpreter(DefinitionInterpreter):
    def run_body(self, body: Sequence[ast.stmt], scope: NameScope, module: ModuleValue) -> bool:
        """Interpret statements; return whether the code after them is not reached."""
        if self.depth >= DEEPEST:
            return False
        before, self.module = (self.control, self.lexical), module
        self.depth += 1
        try:
            for statement in body:
                self.count_step()
                self.place = CodeLocation(module.path, statement.lineno)
                if self._run_statement(statement, scope, module):
                    return True
                self.module = module
            return False
        finally:
            self.depth -= 1
            self.control, self.lexical = before

    def _run_statement(self, node: ast.stmt, scope: NameScope, module: ModuleValue) -> bool:
        match node:
            case ast.Expr():
                self.eval_expression(node.value, scope)
                return isinstance(node.value, ast.Call) and ast.unparse(node.value.func)[:20] in ENDING
            case ast.Assign():
                value = self.eval_expression(node.value, scope)
                for target in node.targets:
                    self._detect_weight_update(target, node.value, scope)
                    self.bind_target(target, value, scope)
            case ast.AnnAssign():
                if node.value is not None:
                    self.bind_target(node.target, self.eval_expression(node.value, scope), scope)
            case ast.AugAssign():
                self._run_augmented_assign(node, scope)
            case ast.If():
                return self._run_if(node, scope, module)
            case ast.For() | ast.AsyncFor():
                self._run_for(node, scope, module)
            case ast.While():
                self._run_while(node, scope, module)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define_function(node, scope, module)
            case ast.ClassDef():
                self._define_class(node, scope, module)
            case ast.Return():
                self._run_return(self.eval_expression(node.value, scope))
                return True
            case ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.eval_expression(item.context_expr, scope)
                    if item.optional_vars:
                        self.bind_target(item.optional_vars, value, scope)
                return self.run_body(node.body, scope, module)
            case ast.Try() | ast.TryStar():
                return self._run_try(node, scope, module)
            case ast.Import() | ast.ImportFrom():
                self._import_names(node, scope, module)
            case ast.Global() | ast.Nonlocal():
                self.frames[-1].outer |= set(node.names)
            case ast.Assert():
                self.eval_expression(node.test, scope)
            case ast.Match():
                self._run_match(node, scope, module)
            case _:
                pass
        return False

    def _run_return(self, value: AbstractValue) -> None:
        frame = self.frames[-1]
        here: Marks = (self.control - frame.entered) | self.lexical
        value = self.mark_filtered(value)
        if here & {m.SAID, m.JUDGED} and isinstance(value.constant, int | float):
            value = value.with_marks(self.record_mark(m.JUDGED), *(here & {m.WORLD}))
        frame.returns.append(value)

    def _run_augmented_assign(self, node: ast.AugAssign, scope: NameScope) -> None:
        target = node.target
        before = self.eval_expression(target, scope)
        value = self.eval_expression(node.value, scope)
        if isinstance(node.op, ast.Add | ast.Sub):
            self.record_weight_update(before, value)
        lists = [one for one in before.things if isinstance(one, ListValue)]
        if lists and isinstance(node.op, ast.Add | ast.BitOr):
            added = self.mark_filtered(self.read_element(value))
            for one in lists:
                one.rest = join_values([one.rest, added])
            return
        result = self.apply_operator(node.op, before, value)
        # How often the loop runs is not known, so neither is a number that grows in it.
        if isinstance(result.constant, int | float) and self.loops:
            result = AbstractValue(result.marks)
        if isinstance(value.constant, int | float) and self.lexical & {m.JUDGED, m.SAID}:
            result = AbstractValue(result.marks | {self.record_mark(m.JUDGED)}, result.constant)
        if isinstance(target, ast.Subscript):
            self.bind_target(
                target,
                AbstractValue(
                    result.marks | collect_marks(self.eval_expression(target.slice, scope)) - {m.JUDGED}
                ),
                scope,
            )
        else:
            self.bind_target(target, result, scope)

    def _detect_weight_update(self, target: ast.expr, node: ast.expr, scope: NameScope) -> None:
        """Detect a manual update: `weights = weights - rate * gradient`."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            key = ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute | ast.Subscript) else ""
            if key and ast.unparse(node.left) == key:
                self.record_weight_update(
                    self.eval_expression(node.left, scope), self.eval_expression(node.right, scope)
                )

    def record_weight_update(self, before: AbstractValue, change: AbstractValue) -> None:
        """Hook for changes of weights by addition."""

    def _run_if(self, node: ast.If, scope: NameScope, module: ModuleValue) -> bool:
        if _is_main(node.test):
            is_main = module.name == "__main__"
            return self.run_body(node.body if is_main else node.orelse, scope, module)
        if _is_typing(node.test):
            return self.run_body(node.orelse, scope, module)
        test = self.eval_expression(node.test, scope)
        marks = collect_marks(test)
        truth = test.truth
        if truth is not None and not marks & {m.SAID, m.JUDGED, m.TOKENS, m.WORLD}:
            return self.run_body(node.body if truth else node.orelse, scope, module)
        ends, states = [], []
        outside, before = (self.control, self.lexical), dict(scope.names)
        for body in (node.body, node.orelse):
            scope.names = dict(before)
            self.control, self.lexical = outside[0] | marks, outside[1] | marks
            self.uncertain += 1
            ends.append(self.run_body(body, scope, module))
            self.uncertain -= 1
            states.append(scope.names)
            self.control, self.lexical = outside
        scope.names = _merge_names(
            [state for state, ended in zip(states, ends, strict=True) if not ended] or states
        )
        if any(ends) and not all(ends):
            self.control |= marks  # until the end of the block
        return all(ends)

    def _run_for(self, node: ast.For | ast.AsyncFor, scope: NameScope, module: ModuleValue) -> None:
        values = self.eval_expression(node.iter, scope)
        elements = _list_elements(values)
        self.loops += 1
        if elements is not None and 0 < len(elements) <= UNROLLED:
            for each in elements:
                self.bind_target(
                    node.target, AbstractValue(each.marks | values.marks, each.constant, each.things), scope
                )
                self.run_body(node.body, scope, module)
        else:
            # Twice, so that what the end of the body computes reaches its beginning. Inner loops
            # only once: each level would double the work.
            for _ in range(2 if self.loops == 1 else 1):
                self.bind_target(node.target, self.read_element(values), scope)
                self.run_body(node.body, scope, module)
        self.loops -= 1
        self.run_body(node.orelse, scope, module)

    def _run_while(self, node: ast.While, scope: NameScope, module: ModuleValue) -> None:
        self.loops += 1
        test = self.eval_expression(node.test, scope)
        if not (test.truth is False and not test.marks):
            before, marks = (self.control, self.lexical), collect_marks(test)
            for _ in range(2 if self.loops == 1 else 1):
                self.control |= marks
                self.run_body(node.body, scope, module)
                self.control, self.lexical = before
        self.loops -= 1
        self.run_body(node.orelse, scope, module)

    def _run_try(self, node: ast.Try | ast.TryStar, scope: NameScope, module: ModuleValue) -> bool:
        ended = self.run_body(node.body, scope, module)
        after = dict(scope.names)
        for handler in node.handlers:
            scope.names = dict(after)
            self.run_body(handler.body, scope, module)
            scope.names = _merge_names([after, scope.names], first=True)
            after = scope.names
        if not ended:
            ended = self.run_body(node.orelse, scope, module)
        return self.run_body(node.finalbody, scope, module) or (ended and not node.handlers)

    def _run_match(self, node: ast.Match, scope: NameScope, module: ModuleValue) -> None:
        subject = self.eval_expression(node.subject, scope)
        before, states = dict(scope.names), []
        for case in node.cases:
            fits = (
                _pattern_matches(self.eval_expression(case.pattern.value, scope), subject)
                if isinstance(case.pattern, ast.MatchValue)
                else None
            )
            if isinstance(case.pattern, ast.MatchOr) and subject.known:
                values = [each.value for each in case.pattern.patterns if isinstance(each, ast.MatchValue)]
                fits = any(_pattern_matches(self.eval_expression(value, scope), subject) for value in values)
            if fits is False:
                continue
            scope.names = dict(before)
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, ast.MatchAs | ast.MatchStar) and pattern.name:
                    scope.names[pattern.name] = AbstractValue(subject.marks)
            self.run_body(case.body, scope, module)
            states.append(scope.names)
            if fits:
                break
        scope.names = _merge_names(states or [before])


def _merge_names(states: list[dict[str, AbstractValue]], first: bool = False) -> dict[str, AbstractValue]:
    """Merge the names after a branch. With `first`, the first state that has a name wins."""
    if len(states) == 1:
        return states[0]
    names = dict.fromkeys(name for state in states for name in state)
    if first:
        return {name: next(state[name] for state in states if name in state) for name in names}
    return {name: join_values([state.get(name, NOTHING) for state in states]) for name in names}


def _list_elements(value: AbstractValue) -> list[AbstractValue] | None:
    if len(value.things) != 1:
        return None
    one = value.things[0]
    if isinstance(one, DictValue):
        return [make_constant(name) for name in one.known] if one.rest is NOTHING else None
    if isinstance(one, ListValue) and one.rest is NOTHING:
        return one.elements
    return None


def _pattern_matches(pattern: AbstractValue, subject: AbstractValue) -> bool | None:
    return pattern.constant == subject.constant if pattern.known and subject.known else None


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and "__name__" in (
        getattr(test.left, "id", ""),
        *(getattr(each, "id", "") for each in test.comparators),
    )


def _is_typing(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"
