"""Functions, classes and imports."""

import ast

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    AbstractValue,
    BoundMethod,
    ClassValue,
    FunctionValue,
    GradientFunction,
    LibrarySymbol,
    ModuleValue,
    NameScope,
    PartialFunction,
    make_constant,
    make_value,
)
from agent2rl.analysis.programs.attribute_lookup import decorator_name
from agent2rl.analysis.programs.bindings import BindingInterpreter
from agent2rl.analysis.programs.interpreter_core import CallFrame
from agent2rl.analysis.programs.source_files import parse_script

GRADIENTS = {"grad", "value_and_grad"}


class DefinitionInterpreter(BindingInterpreter):
    def _define_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: NameScope, module: ModuleValue
    ) -> None:
        function = FunctionValue(node, scope, module, self.eval_defaults(node.args, scope))
        found = make_value(function)
        for decorator in reversed(node.decorator_list):
            name = decorator_name(decorator)
            if name in GRADIENTS:
                found = make_value(GradientFunction(found))
            elif isinstance(decorator, ast.Call) and name == "partial":
                if any(decorator_name(each) in GRADIENTS for each in decorator.args):
                    found = make_value(GradientFunction(found))
            elif isinstance(decorator, ast.Call) and name in ("option", "argument", "main"):
                self._add_option(name, decorator, function, scope)
            else:
                found = self._apply_decorator(decorator, found, scope)
        scope.names[node.name] = found

    def _apply_decorator(self, decorator: ast.expr, found: AbstractValue, scope: NameScope) -> AbstractValue:
        """By a decorator of the agent's own, which may keep the function, or give another one."""
        target = self.eval_expression(decorator, scope)
        if not any(isinstance(one, FunctionValue | BoundMethod) for one in target.things):
            return found
        given = self.call_value(target, [found], {})
        return (
            given if any(isinstance(one, FunctionValue | PartialFunction) for one in given.things) else found
        )

    def _add_option(self, name: str, node: ast.Call, function: FunctionValue, scope: NameScope) -> None:
        """Of click, or of hydra."""
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
                    one.scope, one.owner = scope, made  # methods do not see the names of their class
        scope.names[node.name] = make_value(made)

    def _import_names(self, node: ast.Import | ast.ImportFrom, scope: NameScope, module: ModuleValue) -> None:
        near = module.path.rpartition("/")[0]
        if isinstance(node, ast.Import):
            for each in node.names:
                found = self.load_module(each.name if each.asname else each.name.partition(".")[0], near)
                if found is None and not each.asname:
                    self.load_module(each.name, near)
                name = each.asname or each.name.partition(".")[0]
                full = each.name if each.asname else name
                scope.names[name] = make_value(found or LibrarySymbol(full))
            return
        for _ in range(node.level - 1):
            near = near.rpartition("/")[0]
        origin = node.module or ""
        found = self.load_module(origin, near) if origin else None
        for each in node.names:
            if found and each.name == "*":
                scope.names |= found.scope.names
            elif found and each.name in found.scope.names:
                scope.names[each.asname or each.name] = found.scope.names[each.name]
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
        self.modules[source.path] = module
        place, outer, frames = self.place, getattr(self, "module", module), self.frames
        control = self.control, self.lexical, self.loops
        self.control, self.lexical, self.loops, self.frames = m.NONE, m.NONE, 0, [CallFrame(None)]
        self.run_body(read.tree.body, module.scope, module)
        self.place, self.module, self.frames = place, outer, frames
        self.control, self.lexical, self.loops = control
        return module
