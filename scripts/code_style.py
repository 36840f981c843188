"""Measures how the package reads: names, files and comments. A report for people, never a gate.

python scripts/code_style.py            the figures
python scripts/code_style.py --list     and the names behind them
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "agent2rl"
ONE_WORD_IS_FINE = {"main", "run", "close", "open", "start", "stop", "get", "read", "write", "check"}
"""Verbs whose object is the module or class that they belong to."""
SMALL_LINES = 80
FULL_LINES = 400
"""A module is folded into its only importer up to about this length."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class PackageFacts:
    functions: list[str] = field(default_factory=list)
    one_word_functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    modules: dict[str, int] = field(default_factory=dict)
    """Name to number of lines."""
    importers: dict[str, set[str]] = field(default_factory=dict)
    code_lines: int = 0
    comment_lines: int = 0

    @property
    def shared_classes(self) -> list[str]:
        counts = Counter(name.rpartition(":")[2] for name in self.classes)
        return sorted(name for name in self.classes if counts[name.rpartition(":")[2]] > 1)

    @property
    def single_importer(self) -> list[str]:
        return sorted(name for name in self.modules if len(self.importers.get(name, ())) == 1)

    @property
    def foldable(self) -> list[str]:
        """Modules with one importer that would fit into it, whether or not they belong there."""
        return [
            name
            for name in self.single_importer
            if self.modules[name] + sum(map(self.modules.__getitem__, self.importers[name])) <= FULL_LINES
        ]


def measure_package(package: Path) -> PackageFacts:
    facts = PackageFacts()
    files = {_module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = [line.strip() for line in text.splitlines()]
        facts.modules[name] = len(lines)
        facts.comment_lines += sum(line.startswith("#") for line in lines)
        facts.code_lines += sum(bool(line) and not line.startswith("#") for line in lines)
        _note_definitions(facts, name, tree)
        for imported in _imported_modules(tree, files):
            if imported != name:
                facts.importers.setdefault(imported, set()).add(name)
    return facts


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _note_definitions(facts: PackageFacts, module: str, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            facts.classes.append(f"{module}:{node.name}")
        elif isinstance(node, FunctionNode) and _counts(node):
            facts.functions.append(f"{module}:{node.name}")
            bare = node.name.strip("_")
            if "_" not in bare and bare not in ONE_WORD_IS_FINE:
                facts.one_word_functions.append(f"{module}:{node.name}")


def _counts(node: FunctionNode) -> bool:
    """Dunders and properties are named by rules of their own."""
    if re.fullmatch(r"__\w+__", node.name):
        return False
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    return not decorators & {"property", "cached_property", "functools.cached_property"}


def _imported_modules(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imported = f"{node.module}.{alias.name}"
                if imported in known or node.module in known:
                    yield imported if imported in known else node.module


def print_report(facts: PackageFacts, with_names: bool) -> None:
    single = facts.single_importer
    small = [name for name in single if facts.modules[name] < SMALL_LINES]
    rows = [
        ("functions with a one-word name", len(facts.one_word_functions), len(facts.functions)),
        ("classes that share their name", len(facts.shared_classes), len(facts.classes)),
    ]
    for what, part, whole in rows:
        print(f"{what:46} {part:5} of {whole:5}  {part / max(1, whole):6.1%}")
    lengths = sorted(facts.modules.values())
    print(f"{'modules':46} {len(facts.modules):5}")
    print(f"{'lines of a module, mean':46} {mean(lengths):5.0f}")
    print(f"{'lines of a module, median':46} {median(lengths):5.0f}")
    print(f"{'modules with exactly one importer':46} {len(single):5}")
    print(f"{f'of those under {SMALL_LINES} lines':46} {len(small):5}")
    print(f"{f'of those within {FULL_LINES} lines with it':46} {len(facts.foldable):5}")
    print(f"{'whole-line comments per line of code':46} {facts.comment_lines / facts.code_lines:6.2%}")
    if with_names:
        for title, names in (
            ("one-word functions", facts.one_word_functions),
            ("shared class names", facts.shared_classes),
            ("modules with one importer", single),
            (f"modules within {FULL_LINES} lines with their importer", facts.foldable),
        ):
            print(f"\n{title}:")
            print("\n".join(f"  {name}" for name in names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the names, too")
    print_report(measure_package(PACKAGE), parser.parse_args().list)
