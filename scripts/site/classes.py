"""Classes, functions and constants as Markdown, out of their own source: names, types, defaults, docstrings.

Read, not imported from a running interpreter's memory, because a docstring under a field is nowhere else. It
shows what a module says of itself, and says nothing of its own.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel

EMPTY = {"Field(default_factory=dict)": "{}", "field(default_factory=dict)": "{}"}
MARKUP = re.compile(r"(?<!`)`(?!`)[^`]+`|[<>*_|\[\]]")

TYPE = re.compile(r"^(\| `\w+` \| )`([^`]+)`", re.M)
"""Of a row of a table, what comes second."""


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: str
    """Empty where one must be given."""
    meaning: str


def record(cls: type, level: int = 3) -> str:
    """A class with its fields, and, where it is more than what a file holds, its methods."""
    parts = [f"{'#' * level} {cls.__name__}", prose(_docstring(cls)), table(fields(cls))]
    parts += [] if issubclass(cls, BaseModel) else [methods(cls)]
    return "\n\n".join(part for part in parts if part)


def functions(*found: Any) -> str:
    """Calls, each with its docstring."""
    return "\n\n".join(_method(_definition(one)) for one in found)


def table(rows: list[Field]) -> str:
    if not rows:
        return ""
    lines = ["| field | type | default | |", "|---|---|---|---|"]
    for row in rows:
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | `{row.type}` | {default} | {cell(row.meaning)} |")
    return "\n".join(lines)


def linked(page: str) -> str:
    """A page whose types lead to what it says of them."""
    known = set(re.findall(r"^##+ (\w+)$", page, re.M))

    def link(found: re.Match[str]) -> str:
        name = next((word for word in re.findall(r"\w+", found[2]) if word in known), None)
        return f"{found[1]}[`{found[2]}`](#{name.lower()})" if name else found[0]

    return TYPE.sub(link, page)


def fields(cls: type) -> list[Field]:
    """Inherited ones first, as constructors take them."""
    found: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("agent2rl."):
            found |= {field.name: field for field in _own(_definition(base).body)}
            found |= {} if issubclass(cls, BaseModel) else _properties(_definition(base).body)
    return [field for field in found.values() if not field.name.startswith("_")]


def methods(cls: type) -> str:
    nodes = [node for node in _definition(cls).body if isinstance(node, ast.FunctionDef)]
    told = [node for node in nodes if not node.name.startswith("_") and not _is_property(node)]
    return "\n\n".join(_method(node) for node in told)


def choices(*modules: ModuleType) -> str:
    """Names of these modules for a few words: `Ending = Literal["completed", …]`."""
    lines = ["| name | one of |", "|---|---|"]
    for node in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id="Literal"), slice=said)
            ):
                words = ast.literal_eval(said)
                told = ", ".join(f"`{word}`" for word in (words if isinstance(words, tuple) else (words,)))
                lines.append(f"| `{name}` | {told} |")
    return "\n".join(lines)


def prose(text: str) -> str:
    """A docstring as Markdown: drawings in it, which are indented, as they are; a list's lines as text."""
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(part if part.startswith("    ") else cell(part) for part in paragraphs if part.strip())


def cell(text: str) -> str:
    """One line of Markdown that shows the text as it is written; what is in backticks stays code."""
    return MARKUP.sub(
        lambda found: found[0] if found[0][0] == "`" else f"\\{found[0]}", " ".join(text.split())
    )


def _own(body: list[ast.stmt]) -> Iterator[Field]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value else ""
            yield Field(node.target.id, _type(node.annotation), EMPTY.get(default, default), _said(after))


def _properties(body: list[ast.stmt]) -> dict[str, Field]:
    found = [node for node in body if isinstance(node, ast.FunctionDef) and _is_property(node)]
    return {
        node.name: Field(node.name, _type(node.returns), "", ast.get_docstring(node) or "")
        for node in found
        if node.returns and not node.name.startswith("_")
    }


def _type(node: ast.expr) -> str:
    """Without its bounds: `Annotated[int, Field(ge=1)] | None` is `int | None`."""

    class Bare(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
                return node.slice.elts[0]
            return node

    return ast.unparse(Bare().visit(ast.parse(ast.unparse(node), mode="eval")))


def _said(node: ast.stmt | None) -> str:
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value
    return inspect.cleandoc(said) if isinstance(said, str) else ""


def _method(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    call = f"{node.name}({ast.unparse(node.args)}){returns}"
    return f"```python\n{call}\n```\n\n{prose(ast.get_docstring(node) or '')}".rstrip()


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) in ("property", "cached_property") for each in node.decorator_list)


def _docstring(cls: type) -> str:
    return ast.get_docstring(_definition(cls)) or ""


def _definition(found: Any) -> Any:
    return _definitions(found.__module__)[found.__name__]


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
