"""Names to plugins. A plugin is one module; its name is its module; nothing is imported until it is wanted.

    gsm8k                 the module agent2rl.tasks.gsm8k
    gsm8k-mini            its miniature, agent2rl.tasks.gsm8k.mini
    script:train.py       the module agent2rl.agents.script, with an argument
    my.package:NAME       an attribute of any importable module
    fast-gsm8k            an entry point of the group "agent2rl.tasks"

A module ends in one constant named after its kind (TASK, AGENT, …). One that takes an argument has a
function `parse(argument)` too, or instead. An engine whose model is elsewhere, so that it loads no directory,
has the constant REMOTE.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from agent2rl.core.agent import Agent
from agent2rl.core.engine import OpenEngine
from agent2rl.core.environment import OpenWorld
from agent2rl.core.errors import UserError
from agent2rl.core.model import Model
from agent2rl.core.sandbox import Sandbox
from agent2rl.core.task import Task
from agent2rl.core.tracker import Tracker

Kind = Literal["tasks", "agents", "models", "engines", "sandboxes", "environments", "trackers"]
SINGULAR: dict[Kind, str] = {
    "tasks": "task",
    "agents": "agent",
    "models": "model",
    "engines": "engine",
    "sandboxes": "sandbox",
    "environments": "environment",
    "trackers": "tracker",
}
CONSTANT: dict[Kind, str] = {
    "tasks": "TASK",
    "agents": "AGENT",
    "models": "MODEL",
    "engines": "ENGINE",
    "sandboxes": "SANDBOX",
    "environments": "WORLD",
    "trackers": "TRACKER",
}


MARK: dict[Kind, str] = {
    "tasks": "evaluator",
    "agents": "command",
    "models": "write",
    "engines": "__call__",
    "sandboxes": "run",
    "environments": "__call__",
    "trackers": "open",
}
"""What every plugin of a kind has."""


@dataclass(frozen=True)
class Entry:
    """A plugin as a listing shows it."""

    name: str
    summary: str


@dataclass(frozen=True)
class _Plugin:
    module: str
    summary: str
    remote: bool


def task(name: str) -> Task:
    return cast(Task, _find("tasks", name))


def agent(name: str) -> Agent:
    return cast(Agent, _find("agents", name))


def model(name: str) -> Model:
    return cast(Model, _find("models", name))


def engine(name: str) -> OpenEngine:
    return cast(OpenEngine, _find("engines", name))


def sandbox(name: str) -> Sandbox:
    return cast(Sandbox, _find("sandboxes", name))


def world(name: str) -> OpenWorld:
    return cast(OpenWorld, _find("environments", name))


def tracker(name: str) -> Tracker:
    return cast(Tracker, _find("trackers", name))


def world_address(name: str) -> str:
    """`module:ATTRIBUTE`, for programs that find it without the registry."""
    require("environments", name)
    plugin = _plugins("environments").get(name)
    return f"{plugin.module}:{CONSTANT['environments']}" if plugin else name


def require(kind: Kind, name: str) -> None:
    """Refuse a name that nothing answers to, without importing the plugin."""
    head, _, argument = name.partition(":")
    if name.endswith(":"):
        raise UserError(
            f"{name!r} ends where its argument should be.", f"Write {head}:ARGUMENT, or {head} alone."
        )
    known = head in _plugins(kind) or name in {point.name for point in _points(kind)}
    importable = argument and all(part.isidentifier() for part in head.split("."))
    if not known and not importable:
        close = get_close_matches(head, names(kind), n=1)
        raise UserError(
            f"There is no {SINGULAR[kind]} named {name!r}.",
            (f"Did you mean {close[0]!r}? " if close else "") + f"Known {kind}: {', '.join(names(kind))}.",
        )


def require_loader(name: str) -> None:
    """Refuse an engine that cannot load the weights that agents submit, without importing it."""
    require("engines", name)
    head = name.partition(":")[0]
    plugin = _plugins("engines").get(head)
    if plugin and plugin.remote:
        able = sorted(name for name, plugin in _plugins("engines").items() if not plugin.remote)
        raise UserError(
            f"The engine {head!r} talks to a model elsewhere and cannot load what agents submit.",
            f"Engines that can: {', '.join(able)}.",
        )


def require_remote(name: str) -> None:
    """Refuse an engine that would have to load a model here, without importing it."""
    require("engines", name)
    plugin = _plugins("engines").get(name.partition(":")[0])
    if plugin is None or not plugin.remote:
        able = sorted(name for name, plugin in _plugins("engines").items() if plugin.remote)
        raise UserError(
            f"{name!r} does not talk to a model elsewhere, as a judge must.",
            f"Write {able[0]}:MODEL@URL.",
        )


def names(kind: Kind) -> list[str]:
    return [entry.name for entry in entries(kind)]


def entries(kind: Kind) -> list[Entry]:
    """What exists, with the first line of each module's docstring; imports no plugin."""
    found = [Entry(name, plugin.summary) for name, plugin in _plugins(kind).items()]
    found += [Entry(point.name, f"from {point.value}") for point in _points(kind)]
    return sorted(found, key=lambda entry: entry.name)


def in_folders(name: str, folders: tuple[Path, ...]) -> str:
    """The name itself, or `folder:PATH` where one of the user's folders holds it."""
    for folder in folders:
        if name and (folder / name).is_dir() and not (folder / name / "config.yaml").is_file():
            raise UserError(
                f"The folder {folder / name} has no config.yaml.", "Write one: it names the plugin."
            )
    for config in _configs(folders):
        if name in (config.parent.name, _name(config)):
            return f"folder:{config.parent.resolve()}"
    return name


def folder_entries(folders: tuple[Path, ...]) -> list[Entry]:
    """The plugins in the user's folders."""
    return [Entry(config.parent.name, f"the folder {config.parent}") for config in _configs(folders)]


def _configs(folders: tuple[Path, ...]) -> list[Path]:
    return [config for folder in folders for config in sorted(folder.glob("*/config.yaml"))]


def _name(config: Path) -> str | None:
    """The name that a folder gives itself; what is wrong with a folder is said when it is loaded."""
    try:
        read = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return str(read.get("name")) if isinstance(read, dict) else None


def _find(kind: Kind, name: str) -> Any:
    require(kind, name)
    head, _, argument = name.partition(":")
    if head in _plugins(kind):
        return _load(kind, head, argument)
    for point in _points(kind):
        if point.name == name:
            return point.load()
    return _attribute(kind, head, argument)


def _load(kind: Kind, name: str, argument: str) -> Any:
    plugin = _plugins(kind)[name]
    module = importlib.import_module(plugin.module)
    if argument:
        if not hasattr(module, "parse"):
            raise UserError(f"The {SINGULAR[kind]} {name!r} takes no argument, but got {argument!r}.")
        return module.parse(argument)
    if not hasattr(module, CONSTANT[kind]):
        raise UserError(f"The {SINGULAR[kind]} {name!r} needs an argument: {name}:ARGUMENT.", plugin.summary)
    return getattr(module, CONSTANT[kind])


def _attribute(kind: Kind, module_name: str, attribute: str) -> Any:
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        if not hasattr(found, MARK[kind]):
            raise UserError(f"{module_name}:{attribute} is no {SINGULAR[kind]}: it has no `{MARK[kind]}`.")
        return found
    except ImportError as error:
        raise UserError(
            f"Cannot import {module_name!r} for {SINGULAR[kind]} {attribute!r}: {error}."
        ) from error
    except AttributeError:
        raise UserError(f"The module {module_name!r} has no {attribute!r}.") from None


@cache
def _points(kind: Kind) -> tuple[EntryPoint, ...]:
    """What other packages bring. Looked for once: every installed package is asked."""
    return tuple(entry_points(group=f"agent2rl.{kind}"))


@cache
def _plugins(kind: Kind) -> dict[str, _Plugin]:
    """Every module of a kind that ends in the kind's constant or has a `parse`, read but not imported."""
    root = Path(__file__).parent / kind
    found = {}
    for origin in sorted([*root.glob("*.py"), *root.glob("*/__init__.py"), *root.glob("*/mini.py")]):
        tree = ast.parse(origin.read_text(encoding="utf-8"))
        defined = set(_defined(tree))
        if {CONSTANT[kind], "parse"} & defined:
            parts = origin.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            name = "-".join(parts).replace("_", "-")
            summary = (ast.get_docstring(tree) or "").partition("\n")[0]
            module = f"agent2rl.{kind}.{'.'.join(parts)}"
            found[name] = _Plugin(module, summary, remote="REMOTE" in defined)
    return found


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
