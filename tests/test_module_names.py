"""Modules that the package names in strings: programs that it starts, and code that it loads by name.

The import linter does not see them. So each is listed here, with what names it and why.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import agent2rl

PACKAGE = Path(agent2rl.__file__).parent
MODULE_NAME = re.compile(r"\bagent2rl(?:\.[a-z_0-9]+)+")

STARTED = {
    ("agents.recipe", "agents.recipe.train"): "the agent's program, with another Python",
    ("campaign.jobs", "cli.main"): "each experiment is a command of its own",
    ("evaluators.code_tests.pool", "evaluators.code_tests.server"): "a program in a sandbox, for Unix alone",
    ("evaluators.published.folder_files", "evaluators.published.download"): "a program in a sandbox",
    ("grading.checks", "engines.prompts.resave"): "a program in a sandbox, without torch",
    ("interop.harbor_verifier", "cli.main"): "Harbor's verifier is a run",
    ("trackers.follow", "trackers.follow"): "itself, in the background",
}
LOADED = {
    ("__init__", "notebook"): "when it is first used",
    ("cli.main", "cli"): "the module of a command, when it is called",
    ("run.output_scoring", "engines.replay"): "an engine, which gradings reach by name",
}
WRITTEN = {
    ("evaluators.episodes", "core.engine"): "eval.py, which agents run",
    ("evaluators.episodes", "evaluators.episodes"): "eval.py",
    ("evaluators.episodes", "evaluators.eval_cli"): "eval.py",
    ("evaluators.episodes", "registry"): "eval.py",
}
UPWARD = {
    ("campaign.jobs", "cli.main"),
    ("interop.harbor_verifier", "cli.main"),
    ("__init__", "notebook"),
    ("evaluators.episodes", "registry"),
}
"""Programs of their own, and what is loaded only when a user asks for it."""
TEXTS = {
    "analysis.attempt_training",
    "analysis.programs.environment_calls",
    "analysis.programs.trainer_calls",
    "environments.adapters.trl",
    "environments.examples",
    "interop.harbor_export",
    "models.abacus",
    "run.training_services",
}
"""Modules that only mention such names: in texts for agents, or to recognise them in what agents ran."""


LISTED = STARTED | LOADED | WRITTEN


def test_every_module_that_is_named_in_a_string_is_listed() -> None:
    named = {pair for pair in _find_names_in_strings() if pair[0] not in TEXTS}
    assert named == LISTED.keys()


def test_modules_named_in_strings_respect_the_layers() -> None:
    layer_of = _read_layers()
    for importer, module in LISTED.keys() - UPWARD:
        assert _find_module(module), f"{importer} names {module}, which does not exist"
        above, below = importer.partition(".")[0], module.partition(".")[0]
        assert above == below or layer_of[above] < layer_of[below], f"{importer} names {module} above it"


def _find_names_in_strings() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.parts[:2] == ("cli", "starting"):  # what users begin with
            continue
        importer = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text(encoding="utf-8")
        if not _has_names_in_strings(compile(source, path, "exec", optimize=2)):
            continue
        for text in _list_strings(ast.parse(source)):
            for name in MODULE_NAME.findall(text):
                if module := _find_module(name.removeprefix("agent2rl.")):
                    yield importer, module


def _has_names_in_strings(code: CodeType) -> bool:
    """Look for them in what is compiled without docstrings, which is faster than to walk each tree."""
    return any(
        _has_names_in_strings(value) if isinstance(value, CodeType) else bool(MODULE_NAME.search(str(value)))
        for value in code.co_consts
    )


def _list_strings(tree: ast.AST) -> Iterator[str]:
    """Yield all strings but docstrings and those that name a package only to read its data files."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("files", "getLogger"):
            skipped |= {id(argument) for argument in node.args}
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
            skipped |= {id(argument) for argument in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def _find_module(name: str) -> str | None:
    """Return the module that a dotted name leads to, which may go on with names in that module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            return ".".join(parts[:length])
    return None


def _read_layers() -> dict[str, int]:
    """Return the number of each package's layer, from the top."""
    contracts = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    return {name.strip(): number for number, layer in enumerate(layers) for name in layer.split("|")}
