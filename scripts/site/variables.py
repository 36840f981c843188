"""Which environment variables the code reads, by its source: `os.environ.get(NAME)`, `os.environ[NAME]`.

What libraries read by themselves (HF_HOME, HTTPS_PROXY) is not found so.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

HOME = "agent2rl"


def read(source: Path) -> dict[str, list[str]]:
    """Variable → the modules that read it."""
    found: dict[str, list[str]] = {}
    for path in sorted((source / HOME).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in _read(ast.parse(text)) if "os.environ" in text else ():
            module = path.relative_to(source / HOME).with_suffix("").as_posix()
            found.setdefault(name, []).append(module)
    return dict(sorted(found.items()))


def _read(tree: ast.Module) -> set[str]:
    known = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=named, ctx=ast.Load()):
                names.add(_name(named, known))
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get"), args=[named, *_]
            ):
                names.add(_name(named, known))
            case ast.Call(func=ast.Name(id="_paths"), args=[named]):
                names.add(_name(named, known))
    return {name for name in names if name}


def _name(node: ast.expr, known: Mapping[str, object]) -> str:
    value = node.value if isinstance(node, ast.Constant) else known.get(getattr(node, "id", ""))
    return value if isinstance(value, str) and value.isupper() else ""
