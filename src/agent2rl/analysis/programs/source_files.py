"""Parse files of a workspace: Python modules, notebooks, configuration files.

Files that cannot be parsed, are too long or nested too deeply are skipped. Python 2 is parsed if only its
`print` and `except` statements differ. Other languages are not covered.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import yaml
from pydantic import JsonValue

from agent2rl.analysis.attempts import AgentSourceFile

LONGEST, LONGEST_NOTEBOOK, LONGEST_CONFIG = 250_000, 1 << 20, 60_000
DEEPEST, MOST_NODES = 150, 60_000
"""Limits on depth and nodes of a syntax tree. Ordinary code stays below 40 and 10,000."""
MOST_LINES, MOST_AHEAD = 10_000, 50
"""Limits on lines of a notebook's code, and on lines of its file searched for the next line of code."""
MOST_NESTED, MOST_VALUES = 500, 3000
"""Limits on brackets and values of a configuration."""
PRINT = re.compile(r"^([ \t]*)print[ \t]+(?![=(.,:\[])(.*)$", re.M)
PRINTED_TO = re.compile(r"^([ \t]*)print[ \t]*>>[^,\n]*,?(.*)$", re.M)
EXCEPT = re.compile(r"^([ \t]*except[ \t]+[\w., ()]+?)[ \t]*,[ \t]*(\w+)[ \t]*:", re.M)
MAGIC = re.compile(r"^(\s*)(?:%%?|\?)(.*)$")
SHELL = re.compile(r"^(\s*)!(.*)$")
SHELL_CELLS = ("%%bash", "%%sh", "%%script", "%%cmd")
SHELL_CALL = "__shell__"
"""The call that replaces a shell line in a notebook."""


@dataclass(frozen=True)
class PythonScript:
    """A file that holds Python."""

    source: AgentSourceFile
    tree: ast.Module | None
    """None if it cannot be parsed."""
    lines: tuple[str, ...]
    places: tuple[int, ...] = ()
    """For each line its number in the file, if they differ."""

    def locate_line(self, number: int) -> tuple[int, str]:
        """Return the line number in the file, and the text."""
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return (self.places[number - 1] if 0 < number <= len(self.places) else number), text


@lru_cache(maxsize=64)
def parse_script(source: AgentSourceFile) -> PythonScript:
    text, places = source.text, tuple[int, ...]()
    if source.path.endswith(".ipynb"):
        text, places = _extract_cells(text) if len(text) <= LONGEST_NOTEBOOK else ("", ())
    text = text.removeprefix("\ufeff")
    tree = parse_python(text) if len(text) <= LONGEST else None
    return PythonScript(source, tree, tuple(text.split("\n")), places)


def parse_python(text: str) -> ast.Module | None:
    for each in (text, _modernise_python2(text)):
        if each is None:
            continue
        try:
            tree = ast.parse(each)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # MemoryError is what Python's parser raises for code that is nested too deeply.
            continue
        return tree if _is_within_limits(tree) else None
    return None


def _modernise_python2(text: str) -> str | None:
    """Convert `print` and `except` statements of Python 2; return None if there are none."""
    changed = PRINTED_TO.sub(r"\1print(\2)", text)
    changed = EXCEPT.sub(r"\1 as \2:", PRINT.sub(r"\1print(\2)", changed)).replace("\t", "        ")
    return changed if changed != text else None


def _is_within_limits(tree: ast.AST) -> bool:
    level, depth, nodes = [tree], 0, 0
    while level and depth <= DEEPEST and nodes <= MOST_NODES:
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return not level


def _extract_cells(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the code of a notebook, and the line number in the file of each line."""
    try:
        cells = json.loads(text)["cells"]
        codes = [_join_source(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ()
    raw, at = text.split("\n"), 0
    lines, places = list[str](), list[int]()
    for code in codes:
        for line, plain in _convert_magics(code) if len(lines) < MOST_LINES else ():
            key = json.dumps(line)[1:-1]
            ahead = range(at, min(len(raw), at + MOST_AHEAD)) if key else range(0)
            at = next((number for number in ahead if key in raw[number]), at)
            lines.append(plain)
            places.append(at + 1)
    return "\n".join(lines), tuple(places)


def _join_source(source: object) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _convert_magics(code: str) -> Iterator[tuple[str, str]]:
    """Yield lines of a cell, as written and as Python."""
    lines = code.split("\n")
    shell = lines[0].startswith(SHELL_CELLS)
    for number, line in enumerate(lines):
        if shell:
            yield line, f"{SHELL_CALL}({line!r})" if number and line.strip() else ""
        elif match := SHELL.match(line):
            yield line, f"{match[1]}{SHELL_CALL}({match[2]!r})"
        elif match := MAGIC.match(line):
            rest = match[2].strip()
            run = rest.startswith("run ")
            yield line, match[1] + (f"{SHELL_CALL}({'python ' + rest[4:]!r})" if run else "pass")
        else:
            yield line, line


def parse_config(source: AgentSourceFile) -> JsonValue:
    """Return the content of a configuration file; None if it cannot be parsed."""
    if len(source.text) > LONGEST_CONFIG or len(re.findall(r"[\[{]", source.text)) > MOST_NESTED:
        return None
    try:
        if source.path.endswith((".json", ".jsonl")):
            config = json.loads(source.text)
        elif source.path.endswith(".toml"):
            config = tomllib.loads(source.text)
        elif source.path.endswith((".yaml", ".yml")):
            config = yaml.safe_load(source.text)
        else:
            return None
    except (ValueError, yaml.YAMLError, RecursionError, MemoryError, TypeError, AttributeError):
        return None
    return _limit_config(config, 6, [MOST_VALUES])


def _limit_config(config: object, depth: int, budget: list[int]) -> JsonValue:
    """Drop what is too deep or too long, and convert dates to text."""
    budget[0] -= 1
    if isinstance(config, dict | list) and (not depth or budget[0] < 0):
        return None
    if isinstance(config, dict):
        return {
            str(key): _limit_config(value, depth - 1, budget)
            for key, value in list(config.items())[: budget[0]]
        }
    if isinstance(config, list):
        return [_limit_config(value, depth - 1, budget) for value in config[: budget[0]]]
    return config if isinstance(config, str | int | float | bool) or config is None else str(config)


class AgentSourceFiles:
    """The files of one attempt, by path."""

    def __init__(self, sources: Iterable[AgentSourceFile]) -> None:
        self.sources = {source.path: source for source in sources}
        self._ends: dict[str, list[str]] = {}
        for path in sorted(self.sources, key=lambda path: (path.count("/"), path)):
            self._ends.setdefault(path.rpartition("/")[2], []).append(path)

    def find_file(self, path: str, near: str = "") -> AgentSourceFile | None:
        """Find a file by the end of its path (the working directory is unknown), preferably in `near`."""
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        while ".." in parts:
            place = parts.index("..")
            parts = parts[: max(0, place - 1)] + parts[place + 1 :]
        if not parts:
            return None
        paths = self._ends.get(parts[-1], [])
        best = max(paths, key=lambda each: _rank_path_match(each, parts, near), default=None)
        if best is None or not _rank_path_match(best, parts, near)[0]:
            return None
        return self.sources[best]

    def find_module(self, name: str, near: str) -> AgentSourceFile | None:
        """Find the module that a script in folder `near` would import."""
        path = name.replace(".", "/")
        for folder in dict.fromkeys([near, "code", "", "agent"]):
            for end in (f"{path}.py", f"{path}/__init__.py"):
                if source := self.sources.get(f"{folder}/{end}" if folder else end):
                    return source
        if "." not in name:
            return None
        return self.find_file(f"{path}.py") or self.find_file(f"{path}/__init__.py")


def _rank_path_match(path: str, path_end: tuple[str, ...], near: str) -> tuple[int, bool, int]:
    """Return how many parts agree from the end if one path is the end of the other, else 0."""
    parts = path.split("/")
    shared = min(len(parts), len(path_end))
    same = parts[-shared:] == list(path_end[-shared:])
    return (shared if same else 0), path.startswith(f"{near}/") if near else False, -len(parts)
