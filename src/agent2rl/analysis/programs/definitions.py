"""Functions, classes and imports."""

import ast

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.attributes import ast_name
from agent2rl.analysis.programs.bindings import Bindings
from agent2rl.analysis.programs.core import Frame
from agent2rl.analysis.programs.sources import script
from agent2rl.analysis.programs.values import (
    Bound,
    Class,
    External,
    Function,
    Gradient,
    Module,
    Partial,
    Scope,
    Value,
    constant,
    thing,
)

GRADIENTS = {"grad", "value_and_grad"}


class Definitions(Bindings):
    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, module: Module) -> None:
        function = Function(node, scope, module, self.defaults(node.args, scope))
        found = thing(function)
        for decorator in reversed(node.decorator_list):
            name = ast_name(decorator)
            if name in GRADIENTS:
                found = thing(Gradient(found))
            elif isinstance(decorator, ast.Call) and name == "partial":
                if any(ast_name(each) in GRADIENTS for each in decorator.args):
                    found = thing(Gradient(found))
            elif isinstance(decorator, ast.Call) and name in ("option", "argument", "main"):
                self._option(name, decorator, function, scope)
            else:
                found = self._decorated(decorator, found, scope)
        scope.names[node.name] = found

    def _decorated(self, decorator: ast.expr, found: Value, scope: Scope) -> Value:
        """By a decorator of the agent's own, which may keep the function, or give another one."""
        target = self.eval(decorator, scope)
        if not any(isinstance(one, Function | Bound) for one in target.things):
            return found
        given = self.call(target, [found], {})
        return given if any(isinstance(one, Function | Partial) for one in given.things) else found

    def _option(self, name: str, node: ast.Call, function: Function, scope: Scope) -> None:
        """Of click, or of hydra."""
        words = {word.arg: self.eval(word.value, scope) for word in node.keywords if word.arg}
        if name == "main":
            function.options |= {word: value for word, value in words.items() if word.startswith("config")}
            return
        names = [value.text for value in (self.eval(each, scope) for each in node.args) if value.text]
        flags = [each.lstrip("-").replace("-", "_").partition("/")[0] for each in names]
        if flags:
            function.options[max(flags, key=len)] = words.get("default", constant(None))

    def _define_class(self, node: ast.ClassDef, scope: Scope, module: Module) -> None:
        bases = tuple(self.eval(base, scope) for base in node.bases)
        inner = Scope({}, scope)
        names = tuple(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        )
        made = Class(node.name, module, inner, bases, names)
        self.frames.append(Frame(None))
        self.run(node.body, inner, module)
        self.frames.pop()
        for value in inner.names.values():
            for one in value.things:
                if isinstance(one, Function) and one.scope is inner:
                    one.scope, one.owner = scope, made  # methods do not see the names of their class
        scope.names[node.name] = thing(made)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope, module: Module) -> None:
        near = module.path.rpartition("/")[0]
        if isinstance(node, ast.Import):
            for each in node.names:
                found = self.load(each.name if each.asname else each.name.partition(".")[0], near)
                if found is None and not each.asname:
                    self.load(each.name, near)
                name = each.asname or each.name.partition(".")[0]
                full = each.name if each.asname else name
                scope.names[name] = thing(found or External(full))
            return
        for _ in range(node.level - 1):
            near = near.rpartition("/")[0]
        origin = node.module or ""
        found = self.load(origin, near) if origin else None
        for each in node.names:
            if found and each.name == "*":
                scope.names |= found.scope.names
            elif found and each.name in found.scope.names:
                scope.names[each.asname or each.name] = found.scope.names[each.name]
            elif part := self.load(f"{origin}.{each.name}" if origin else each.name, near):
                scope.names[each.asname or each.name] = thing(part)
            elif each.name != "*":
                scope.names[each.asname or each.name] = thing(External(f"{origin}.{each.name}"))

    def load(self, name: str, near: str) -> Module | None:
        source = self.files.module(name, near)
        if source is None:
            return None
        if source.path in self.modules:
            return self.modules[source.path]
        read = script(source)
        if read.tree is None:
            return None
        module = Module(
            name, source.path, Scope({"__name__": constant(name), "__file__": constant(source.path)})
        )
        self.modules[source.path] = module
        place, outer, frames = self.place, getattr(self, "module", module), self.frames
        control = self.control, self.lexical, self.loops
        self.control, self.lexical, self.loops, self.frames = m.NONE, m.NONE, 0, [Frame(None)]
        self.run(read.tree.body, module.scope, module)
        self.place, self.module, self.frames = place, outer, frames
        self.control, self.lexical, self.loops = control
        return module
