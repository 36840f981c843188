"""Parameter types, options and arguments that several commands share: durations, directories, --json, RUN."""

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agent2rl import registry
from agent2rl.bundles.unpacking import (
    OpenedBundle,
    SelectFile,
    is_bundle,
    open_bundle,
    select_without_report_and_weights,
)
from agent2rl.core.errors import UserError
from agent2rl.core.network import choose_new_network_policy
from agent2rl.core.records import PROTOCOLS
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.core.units import parse_byte_size
from agent2rl.record.paths import LATEST, RunPaths, find_run
from agent2rl.run.settings import read_settings

CompletionCallback = Callable[[click.Context, click.Parameter, str], list[str]]
SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_SECONDS = 10 * 365 * 86400.0
COUNT_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class DurationParam(click.ParamType[float]):
    """A duration in seconds, written as 90s, 10m, 12h or 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration. Write 90s, 10m, 12h or 1h30m.", param, ctx)
        seconds = sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail("a duration must be longer than 0s.", param, ctx)
        if seconds > LONGEST_SECONDS:
            self.fail(f"{value!r} is longer than ten years.", param, ctx)
        return seconds


class SizeParam(click.ParamType[int]):
    """A size in bytes, written as 512M, 16G or 1.5T."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_byte_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CountParam(click.ParamType[int]):
    """A count, written as 500000, 500k or 20M."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", str(value))
        if not match or int(float(match[1]) * COUNT_SUFFIXES[match[2]]) < 1:
            self.fail(f"{value!r} is not a count. Write 500000, 500k or 20M.", param, ctx)
        return int(float(match[1]) * COUNT_SUFFIXES[match[2]])


class ExpertParam(click.ParamType[str | int]):
    """A level of expert help: full, none, or a number of demonstrations."""

    name = "full|N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value in ("full", "none") or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        if not re.fullmatch(r"[1-9]\d{0,8}", str(value)):
            self.fail(f"{value!r} is not a level of expert help. Write full, none or a number.", param, ctx)
        return int(value)


class NetworkParam(click.ParamType[str]):
    """A network policy: none, packages, allow:HOST,… or open."""

    name = "none|packages|allow:HOST,…|open"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return choose_new_network_policy(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ProtocolParam(click.Choice[str]):
    """A scoring protocol. `heldout` is the name of the default protocol in earlier versions."""

    def __init__(self) -> None:
        super().__init__(PROTOCOLS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("default" if value == "heldout" else value, param, ctx)


class FiniteFloatParam(click.FloatRange):
    """A number in a range that is neither inf nor nan."""

    what = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a valid {self.what}.", param, ctx)
        return number


class TemperatureParam(FiniteFloatParam):
    """A sampling temperature, e.g. 0, 0.8 or 1."""

    what = "temperature"


class DollarsParam(FiniteFloatParam):
    """An amount of US dollars."""

    what = "amount"


class FractionParam(click.ParamType[float]):
    """A part of something, above 0 and up to 1."""

    name = "fraction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            fraction = float(value)
        except ValueError:
            fraction = math.nan
        if not 0 < fraction <= 1:
            self.fail(
                f"{value!r} is not a fraction. Write a number above 0 and up to 1, e.g. 0.1.", param, ctx
            )
        return fraction


def complete_names(kind: registry.PluginKind) -> CompletionCallback:
    """Return a callback that completes the names of plugins of this kind in a shell."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
        return [entry.name for entry in registry.list_entries(kind) if entry.name.startswith(incomplete)]

    return complete


def complete_runs(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run in a shell, newest first."""
    run_ids = sorted((path.parent.name for path in read_settings().runs.glob("*/spec.json")), reverse=True)
    return [name for name in (LATEST, *run_ids) if name.startswith(incomplete)]


def resolve_run(name: str, runs: Path | None) -> RunPaths:
    """Return the run that a command line argument refers to."""
    if is_bundle(name):
        raise UserError(
            f"{name} is a bundle, and this command needs a run directory.", "Name the run itself."
        )
    try:
        return find_run(name, (runs or read_settings().runs).absolute())
    except OSError as error:
        raise UserError(f"Cannot read {name!r}: {error.strerror}.") from error


def is_own_run(paths: RunPaths, runs: Path | None) -> bool:
    """Return whether a run is in the user's runs directory. Anybody may have made the others."""
    return paths.root.is_relative_to((runs or read_settings().runs).resolve())


def require_own_run(paths: RunPaths, runs: Path | None, task: str) -> None:
    """Raise UserError for a run from other people, before anything in its specification is used."""
    if not is_own_run(paths, runs):
        raise UserError(
            f"{paths.run_id} is not in your runs directory, and its spec.json can run code with your "
            f"permissions, starting with the task {task!r}.",
            "If you trust whoever made it, or have read its spec.json: --runs-dir "
            f"{shlex.quote(str(paths.root.parent))}",
        )


runs_dir = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that holds the runs.  [default: $AGENT2RL_RUNS or ./runs]",
)
agent_python = click.option(
    "--agent-python",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The agent's Python environment: a virtual environment, a conda prefix or a project with a .venv.  "
    "[default: the one that runs agent2rl]",
)
search = click.option(
    "--search",
    metavar="NAME",
    help="The search backend, for tasks that search: ddgs, tavily, brave, serpapi, searxng:URL, "
    "local:FOLDER or replay:FILE.",
)
sandbox = click.option(
    "--sandbox",
    metavar="NAME",
    default=AUTO_SANDBOX,
    show_default=True,
    shell_complete=complete_names("sandboxes"),
    help="What isolates agents and gradings (see: agent2rl list sandboxes). auto: the first that works "
    "here of bubblewrap, docker, podman, apptainer and confined.",
)
judge = click.option(
    "--judge",
    metavar="NAME",
    help="The LLM that grades answers: claude-…, gpt-…, gemini-…, MODEL@URL, or model:NAME (local).  "
    "[default: the task's own rule]",
)


def validate_trackers(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        registry.require_known("trackers", name)
    return tuple(dict.fromkeys(names))


track = click.option(
    "--track",
    metavar="NAME",
    multiple=True,
    callback=validate_trackers,
    help="Mirror the run live: wandb, mlflow, trackio or jsonl:FOLDER. Can be repeated.",
)
track_group = click.option(
    "--track-group",
    metavar="NAME",
    help="The tracker's experiment or group for the run.  [default: the campaign, or the task]",
)
no_report = click.option(
    "--no-report", is_flag=True, help="Do not write a report; `agent2rl report` can do it later."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


# The RUN argument of commands that read a run: a run directory, an id, or a bundle.
#
# A bundle is unpacked into a temporary folder, which is deleted when the command ends.


def open_run(name: str, runs: Path | None) -> RunPaths:
    """Return the run that an argument refers to, whether a directory or a bundle."""
    return unpack_bundle(name).paths if is_bundle(name) else resolve_run(name, runs)


def unpack_bundle(name: str, select: SelectFile = select_without_report_and_weights) -> OpenedBundle:
    """Open a bundle until the command ends."""
    return click.get_current_context().with_resource(open_bundle(Path(name), select))
