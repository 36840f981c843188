"""Find plugins by name. A plugin is one module, named after it; nothing is imported until it is needed.

    gsm8k                 the module agent2rl.tasks.gsm8k
    gsm8k-mini            its miniature, agent2rl.tasks.gsm8k.mini
    script:train.py       the module agent2rl.agents.script, with an argument
    my.package:NAME       an attribute of any importable module
    fast-gsm8k            an entry point of the group "agent2rl.tasks"

A module ends in one constant named after its kind (TASK, AGENT, …). A plugin that takes an argument defines
a function `parse(argument)` as well, or instead. An engine that calls a remote model, and so loads no
directory, defines the constant REMOTE.
"""

import importlib
import logging
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any, Literal, cast

from agent2rl.core.agent import Agent
from agent2rl.core.engine import OpenEngine
from agent2rl.core.environment import OpenWorld
from agent2rl.core.errors import UserError
from agent2rl.core.model import ShippedModel
from agent2rl.core.records import ScoringProtocol
from agent2rl.core.sandbox import Sandbox
from agent2rl.core.task import Task
from agent2rl.core.tracker import Tracker

logger = logging.getLogger(__name__)

PluginKind = Literal["tasks", "agents", "models", "engines", "sandboxes", "environments", "trackers"]
SINGULAR: dict[PluginKind, str] = {
    "tasks": "task",
    "agents": "agent",
    "models": "model",
    "engines": "engine",
    "sandboxes": "sandbox",
    "environments": "environment",
    "trackers": "tracker",
}
CONSTANT: dict[PluginKind, str] = {
    "tasks": "TASK",
    "agents": "AGENT",
    "models": "MODEL",
    "engines": "ENGINE",
    "sandboxes": "SANDBOX",
    "environments": "WORLD",
    "trackers": "TRACKER",
}


REQUIRED_ATTRIBUTE: dict[PluginKind, str] = {
    "tasks": "evaluator",
    "agents": "command",
    "models": "write",
    "engines": "__call__",
    "sandboxes": "run",
    "environments": "__call__",
    "trackers": "open",
}
"""An attribute that every plugin of a kind has."""

TOP_LEVEL_NAME = re.compile(r"^(?:def )?(\w+)(?=\(|: | = )", re.MULTILINE)
"""What a module defines, by its text."""


@dataclass(frozen=True)
class PluginEntry:
    """A plugin as a listing shows it."""

    name: str
    summary: str


@dataclass(frozen=True)
class _Plugin:
    module: str
    summary: str
    remote: bool


def find_task(name: str) -> Task:
    return cast(Task, _resolve_plugin("tasks", name))


def find_profile(name: str, protocol: ScoringProtocol) -> str | None:
    """Return the label of the profile that a protocol selects; raise UserError if the task has none."""
    profile = find_task(name).paper
    if protocol == "default":
        return None
    if profile is None:
        known = [task for task in list_names("tasks") if _has_profile(task)]
        raise UserError(
            f"The task {name!r} has no published profile, so it cannot run under the paper's protocol.",
            f"Tasks that have one: {', '.join(known)}. Or use --protocol default.",
        )
    return profile.label


def _has_profile(name: str) -> bool:
    with suppress(UserError):  # it needs an argument
        return find_task(name).paper is not None
    return False


def find_agent(name: str) -> Agent:
    return cast(Agent, _resolve_plugin("agents", name))


def find_model(name: str) -> ShippedModel:
    return cast(ShippedModel, _resolve_plugin("models", name))


def find_engine(name: str) -> OpenEngine:
    return cast(OpenEngine, _resolve_plugin("engines", name))


def find_sandbox(name: str) -> Sandbox:
    return cast(Sandbox, _resolve_plugin("sandboxes", name))


def find_world(name: str) -> OpenWorld:
    return cast(OpenWorld, _resolve_plugin("environments", name))


def find_tracker(name: str) -> Tracker:
    return cast(Tracker, _resolve_plugin("trackers", name))


def resolve_world_address(name: str) -> str:
    """Return `module:ATTRIBUTE`, for programs that load the world without the registry."""
    require_known("environments", name)
    plugin = _scan_plugins("environments").get(name)
    return f"{plugin.module}:{CONSTANT['environments']}" if plugin else name


def require_known(kind: PluginKind, name: str) -> None:
    """Raise UserError for an unknown name, without importing the plugin."""
    head, _, argument = name.partition(":")
    if name.endswith(":"):
        raise UserError(
            f"{name!r} lacks an argument after the colon.", f"Write {head}:ARGUMENT, or {head} alone."
        )
    known = head in _scan_plugins(kind) or name in {point.name for point in _find_entry_points(kind)}
    importable = argument and all(part.isidentifier() for part in head.split("."))
    if not known and not importable:
        close = get_close_matches(head, list_names(kind), n=1)
        raise UserError(
            f"There is no {SINGULAR[kind]} named {name!r}.",
            (f"Did you mean {close[0]!r}? " if close else "")
            + f"Known {kind}: {', '.join(list_names(kind))}.",
        )


def require_loader(name: str) -> None:
    """Raise UserError for an engine that cannot load submitted weights, without importing it."""
    require_known("engines", name)
    head = name.partition(":")[0]
    plugin = _scan_plugins("engines").get(head)
    if plugin and plugin.remote:
        loaders = sorted(name for name, plugin in _scan_plugins("engines").items() if not plugin.remote)
        raise UserError(
            f"The engine {head!r} calls a remote model and cannot load what agents submit.",
            f"Engines that can: {', '.join(loaders)}.",
        )


def list_names(kind: PluginKind) -> list[str]:
    return [entry.name for entry in list_entries(kind)]


def list_entries(kind: PluginKind) -> list[PluginEntry]:
    """List all plugins with the first line of each module's docstring; imports no plugin."""
    entries = [PluginEntry(name, plugin.summary) for name, plugin in _scan_plugins(kind).items()]
    entries += [PluginEntry(point.name, f"from {point.value}") for point in _find_entry_points(kind)]
    return sorted(entries, key=lambda entry: entry.name)


TASK_FOLDER_KINDS = ("folder", "smith", "benchmark")
"""Tasks that are named by the path of a folder. docs/adding-a-task.md describes the formats."""
TASK_LAYOUTS = """A task folder has one of these layouts:
  agent2rl:              config.yaml, eval.py with evaluate(…), data/train.jsonl, data/test.jsonl
  published, rl-smith:   config.yaml, eval.py with evaluate(…), data/train.jsonl or download_data.py
  published, benchmark:  data.py with download_train_data(…) or data/, eval.py with an evaluator class"""

OPENCOMPASS_HINT = (
    "Published benchmarks without one are graded by OpenCompass, which agent2rl does not run. Use agent2rl's "
    "own task instead, such as --task gsm8k --protocol paper."
)


def resolve_task_name(name: str, folders: tuple[Path, ...], data_dir: Path | None = None) -> str:
    """Return `KIND:PATH` for a task folder's name in one of the folders or for its path, else the name.

    A known name means the known task, whatever lies in the current directory.
    """
    head = name.partition(":")[0]
    if not name or head in _scan_plugins("tasks") or name in {p.name for p in _find_entry_points("tasks")}:
        return name
    for folder in () if "/" in name else folders:
        if (folder / name).is_dir():
            return _name_task_folder(folder / name, data_dir)
    for config in _find_configs(folders):
        if name in (_read_name(config), f"smith-{_read_name(config)}"):
            return _name_task_folder(config.parent, data_dir)
    path = Path(name).expanduser()
    if "/" in name and not path.is_dir():
        raise UserError(f"There is no task folder {name!r}.", "Check the path.")
    return _name_task_folder(path, data_dir) if path.is_dir() else name


def _name_task_folder(folder: Path, data_dir: Path | None) -> str:
    """Return the task of a folder by the files that it has."""
    has_config, has_data = (folder / "config.yaml").is_file(), (folder / "data.py").is_file()
    has_eval = (folder / "eval.py").is_file()
    kind = "smith"
    if ((data_dir or folder / "data") / "test.jsonl").is_file():
        kind = "folder"
    if not has_config:
        kind = "benchmark"
        has_data = has_data or (folder / "data").is_dir() or data_dir is not None
    missing = "eval.py" if not has_eval else "config.yaml or data.py" if not (has_config or has_data) else ""
    if missing:
        hint = OPENCOMPASS_HINT if (folder / "data.py").is_file() else "Add it."
        raise UserError(f"The task folder {folder} has no {missing}.", f"{hint}\n{TASK_LAYOUTS}")
    return f"{kind}:{folder.resolve()}"


def resolve_folder_name(name: str, folders: tuple[Path, ...]) -> str:
    """Return `folder:PATH` if one of the user's folders holds the plugin, else the name itself.

    A folder of that name without a config.yaml is returned too: its plugin says what it lacks.
    """
    for folder in folders:
        if name and (folder / name).is_dir() and not (folder / name / "config.yaml").is_file():
            return f"folder:{(folder / name).resolve()}"
    for config in _find_configs(folders):
        if name in (config.parent.name, _read_name(config)):
            return f"folder:{config.parent.resolve()}"
    return name


def list_folder_entries(folders: tuple[Path, ...]) -> list[PluginEntry]:
    """List the plugins in the user's folders."""
    scripts = [script for folder in folders for script in sorted(folder.glob("*/data.py"))]
    paths = dict.fromkeys(file.parent for file in (*_find_configs(folders), *scripts))
    return [PluginEntry(path.name, f"the folder {path}") for path in paths]


def _find_configs(folders: tuple[Path, ...]) -> list[Path]:
    return [config for folder in folders for config in sorted(folder.glob("*/config.yaml"))]


def _read_name(config: Path) -> str | None:
    """Return the name in a folder's config. Errors are ignored here and reported when it is loaded."""
    # Only here: every grading child loads this module, and few runs name a folder.
    import yaml

    try:
        fields = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        logger.debug("Ignored %s, which cannot be read: %s", config, error)
        return None
    return str(fields.get("name")) if isinstance(fields, dict) else None


def _resolve_plugin(kind: PluginKind, name: str) -> Any:
    require_known(kind, name)
    head, _, argument = name.partition(":")
    if head in _scan_plugins(kind):
        return _load_plugin(kind, head, argument)
    for point in _find_entry_points(kind):
        if point.name == name:
            return point.load()
    return _import_attribute(kind, head, argument)


def _load_plugin(kind: PluginKind, name: str, argument: str) -> Any:
    plugin = _scan_plugins(kind)[name]
    if plugin.module not in sys.modules:
        logger.debug("Loading %s %r from %s", SINGULAR[kind], name, plugin.module)
    module = importlib.import_module(plugin.module)
    if argument:
        if not hasattr(module, "parse"):
            raise UserError(f"The {SINGULAR[kind]} {name!r} takes no argument, but got {argument!r}.")
        return module.parse(argument)
    if not hasattr(module, CONSTANT[kind]):
        raise UserError(f"The {SINGULAR[kind]} {name!r} needs an argument: {name}:ARGUMENT.", plugin.summary)
    return getattr(module, CONSTANT[kind])


def _import_attribute(kind: PluginKind, module_name: str, attribute: str) -> Any:
    try:
        plugin = getattr(importlib.import_module(module_name), attribute)
        if not hasattr(plugin, REQUIRED_ATTRIBUTE[kind]):
            raise UserError(
                f"{module_name}:{attribute} is not a valid {SINGULAR[kind]}: "
                f"it has no `{REQUIRED_ATTRIBUTE[kind]}`."
            )
        return plugin
    except (ImportError, SyntaxError) as error:
        raise UserError(
            f"Cannot import {module_name!r} for {SINGULAR[kind]} {attribute!r}: {error}."
        ) from error
    except AttributeError:
        raise UserError(f"The module {module_name!r} has no {attribute!r}.") from None


@cache
def _read_entry_points() -> EntryPoints:
    """Return the entry points of every installed package. Cached, because that reads a file of each."""
    points: Any = entry_points()  # before Python 3.12 a dictionary, which can select too
    return cast(EntryPoints, points)


def _find_entry_points(kind: PluginKind) -> tuple[EntryPoint, ...]:
    """Return the entry points of other packages."""
    return tuple(_read_entry_points().select(group=f"agent2rl.{kind}"))


@cache
def _scan_plugins(kind: PluginKind) -> dict[str, _Plugin]:
    """Find every module of a kind that defines the kind's constant or `parse`.

    Every command and every grading child does this, so it searches the text: a syntax tree takes 50 times as
    long.
    """
    root = Path(__file__).parent / kind
    plugins = {}
    for origin in sorted([*root.glob("*.py"), *root.glob("*/__init__.py"), *root.glob("*/mini.py")]):
        text = origin.read_text(encoding="utf-8")
        defined = set(TOP_LEVEL_NAME.findall(text))
        if {CONSTANT[kind], "parse"} & defined:
            parts = origin.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            name = "-".join(parts).replace("_", "-")
            summary = text.partition("\n")[0].strip('"')
            module = f"agent2rl.{kind}.{'.'.join(parts)}"
            plugins[name] = _Plugin(module, summary, remote="REMOTE" in defined)
    return plugins
