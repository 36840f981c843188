"""Read what an agent's programs do from their source text, without running them.

`read_programs` is the only entry point: it traces all programs of an attempt in the order in which they ran.
The result decides no score; it explains how a submission was trained. See docs/design/program-reading.md.

    source_files, command_lines   parse files, command lines and shell scripts
    training_tools                parse the launches of command-line trainers
    marks, abstract_values        what is known of a value: a constant, its kind, where it comes from
    interpreter, statements, ...  step through a program with such values; code that is not reached is ignored
    *_calls, program_settings     effects of calls to well-known libraries

Values carry marks, such as "sampled from the model", "computed by judging a sample" or "a log-probability".
Training is detected where a gradient is taken. The marks of the loss decide what kind of training it is.
"""

import ast
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan, RecordedProcess
from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs.abstract_values import CodeLocation
from agent2rl.analysis.programs.command_lines import ProgramLaunch, expand_shell_script, parse_command
from agent2rl.analysis.programs.interpreter import interpret_program
from agent2rl.analysis.programs.interpreter_core import (
    DetectedStage,
    NotedSetting,
    ProgramTrace,
    WeightsHistory,
    find_weights,
)
from agent2rl.analysis.programs.source_files import AgentSourceFiles, parse_script
from agent2rl.analysis.programs.training_tools import parse_training_job
from agent2rl.analysis.workspace_paths import HOLE, normalise_path, path_covers

logger = logging.getLogger(__name__)

MOST_LAUNCHES, MOST_GUESSED, MOST_SCRIPTS, DEEPEST = 40, 16, 100, 4
MOST_BYTES = 2 << 20
"""Limit on the total size of sources. The longest files are left out first."""


@dataclass(frozen=True)
class ObservedLaunch:
    """A program launch, with the process that was recorded for it."""

    launch: ProgramLaunch
    process: RecordedProcess | None
    place: CodeLocation | None = None
    """The line of the shell script that starts it."""


@dataclass(frozen=True)
class ProgramReading:
    """What the programs of an attempt do."""

    launches: tuple[ObservedLaunch, ...]
    """Stages and settings refer to them by index."""
    observed: bool
    """True: recorded processes tell what ran. False: every program that could be started is assumed to
    have run."""
    stages: tuple[DetectedStage, ...]
    """Trainings, in the order in which they ran."""
    settings: tuple[NotedSetting, ...]
    weights: Mapping[str, WeightsHistory]
    """By the path at which they were saved, the last to be saved last."""
    loads: tuple[str, ...]
    """Paths of weights that were loaded and that no program here made."""
    truncated: bool
    """Some program was too long to be stepped through."""
    sources: Mapping[str, AgentSourceFile]

    def find_process(self, item: DetectedStage | NotedSetting) -> RecordedProcess | None:
        return self.launches[item.launch].process if item.launch < len(self.launches) else None

    def find_launch(self, name: str) -> ObservedLaunch | None:
        return next((observed for observed in self.launches if observed.launch.name == name), None)

    def find_weights(self, path: str) -> WeightsHistory | None:
        """Return the history of the newest weights at a path, or in a folder that contains it."""
        return find_weights(self.weights, path)

    def cite_location(self, location: CodeLocation | None) -> tuple[str, str] | None:
        """Return how evidence names a line of the agent's code, and the line itself."""
        source = self.sources.get(location.path) if location else None
        if location is None or source is None:
            return None
        line, text = parse_script(source).locate_line(location.line)
        return source.cite_line(line), text


@dataclass(frozen=True)
class TracedLaunches:
    """Launches, and the trace that they left together."""

    trace: ProgramTrace
    launches: tuple[ObservedLaunch, ...]


def read_programs(span: AttemptSpan) -> ProgramReading:
    """Trace all programs of an attempt, in the order in which they ran."""
    return _read_programs(_limit_sources(span.sources), span.processes, span.changed)


def _limit_sources(sources: Iterable[AgentSourceFile]) -> tuple[AgentSourceFile, ...]:
    selected, size = [], 0
    for source in sorted(sources, key=lambda source: (len(source.text), source.path)):
        size += len(source.text)
        if size > MOST_BYTES:
            logger.debug("Sources exceed %d bytes; %s and longer files are left out", MOST_BYTES, source.path)
            break
        selected.append(source)
    return tuple(sorted(selected, key=lambda source: source.path))


@lru_cache(maxsize=16)
def _read_programs(
    sources: tuple[AgentSourceFile, ...], processes: tuple[RecordedProcess, ...], changed: tuple[str, ...]
) -> ProgramReading:
    files = AgentSourceFiles(sources)
    launches = _match_processes(processes, files)
    traced = _trace_launches(launches, files)
    if traced.trace.stages or any(observed.launch.kind in ("script", "code") for observed in launches):
        # Scripts that were not seen to run do not count beside those that were.
        return _build_reading(traced, files, True)
    entry_points = list_entry_points(files)
    recent = [launch for launch in entry_points if launch.name in changed]
    for candidates in dict.fromkeys((tuple(recent), tuple(entry_points))):
        guessed = _trace_launches(_order_launches(candidates[:MOST_GUESSED], files), files)
        if guessed.trace.stages or guessed.trace.weights:
            logger.debug("No recorded process runs the code; assuming that %d programs ran", len(candidates))
            return _build_reading(guessed, files, False)
    return _build_reading(traced, files, True)


def _build_reading(traced: TracedLaunches, files: AgentSourceFiles, observed: bool) -> ProgramReading:
    trace = traced.trace
    if trace.cut:
        logger.debug("A program was too long and was traced in part (%d steps in all)", trace.steps)
    return ProgramReading(
        launches=traced.launches,
        observed=observed,
        stages=tuple(trace.stages),
        settings=tuple(trace.noted.values()),
        weights=trace.weights,
        loads=tuple(dict.fromkeys(trace.loads)),
        truncated=trace.cut,
        sources=files.sources,
    )


def _match_processes(processes: Sequence[RecordedProcess], files: AgentSourceFiles) -> list[ObservedLaunch]:
    """Return what the processes launched, each launch once.

    A process with the same command as one that still runs is taken to be its child.
    """
    matched: dict[ProgramLaunch, ObservedLaunch] = {}
    parsed = {
        command: parse_command(command, files) for command in {process.command for process in processes}
    }
    for process in sorted(processes, key=lambda process: (process.began, process.pid)):
        for launch in parsed[process.command]:
            before = matched.get(launch)
            if before and before.process:
                ended = before.process.ended
                if ended is None or process.began < ended:
                    continue
                matched.pop(launch)
            matched[launch] = ObservedLaunch(launch, process)
    direct = {launch.name for launch in matched if launch.kind in ("script", "tool")}
    expanded: list[ObservedLaunch] = []
    for observed in matched.values():
        if len(expanded) < MOST_LAUNCHES:
            expanded += _expand_shell(observed, files, direct)
    return expanded[:MOST_LAUNCHES]


def _expand_shell(
    observed: ObservedLaunch, files: AgentSourceFiles, direct: set[str], above: tuple[ProgramLaunch, ...] = ()
) -> list[ObservedLaunch]:
    """Replace a shell script by what it starts, except programs whose own processes were recorded."""
    if observed.launch.kind != "shell":
        return [observed]
    if observed.launch in above or len(above) > DEEPEST:
        return []
    above = (*above, observed.launch)
    launches = list(dict.fromkeys(expand_shell_script(observed.launch, files)))
    if any(launch.kind != "copy" and launch.name in direct for launch in launches):
        launches = [launch for launch in launches if launch.kind in ("copy", "code")]
    expanded: list[ObservedLaunch] = []
    for launch in launches:
        if len(expanded) < MOST_LAUNCHES:
            place = _locate_launch(launch, observed.launch, files)
            expanded += _expand_shell(ObservedLaunch(launch, observed.process, place), files, direct, above)
    return expanded


def _locate_launch(
    launch: ProgramLaunch, shell: ProgramLaunch, files: AgentSourceFiles
) -> CodeLocation | None:
    """Return the line of a shell script that names what it starts."""
    source = files.sources.get(shell.name)
    name = launch.name.rpartition("/")[2] if launch.kind == "script" else launch.name
    for number, line in enumerate(source.text.split("\n") if source else (), start=1):
        if name in line and not line.lstrip().startswith("#"):
            return CodeLocation(shell.name, number)
    return None


def list_entry_points(files: AgentSourceFiles) -> list[ProgramLaunch]:
    """Return what could be started: shell scripts, and scripts that no other file starts or imports."""
    shells = [path for path in files.sources if path.endswith(".sh")][:MOST_LAUNCHES]
    started = {
        launch.name for path in shells for launch in expand_shell_script(ProgramLaunch("shell", path), files)
    }
    scripts = [path for path in files.sources if path.endswith((".py", ".ipynb"))][:MOST_SCRIPTS]
    imported = {path for script in scripts for path in _list_imports(files.sources[script], files)}
    entry_points = [ProgramLaunch("shell", path) for path in shells if path not in started]
    entry_points += [ProgramLaunch("script", path) for path in scripts if path not in started | imported]
    return sorted(entry_points, key=lambda launch: (launch.kind != "shell", launch.name))[:MOST_LAUNCHES]


def _list_imports(source: AgentSourceFile, files: AgentSourceFiles) -> Iterable[str]:
    script = parse_script(source)
    near = source.path.rpartition("/")[0]
    for node in ast.walk(script.tree) if script.tree else ():
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = node.module or ""
            names = [stem, *(f"{stem}.{alias.name}" if stem else alias.name for alias in node.names)]
        for name in names:
            if name and (module := files.find_module(name, near)) and module.path != source.path:
                yield module.path


def _order_launches(launches: Sequence[ProgramLaunch], files: AgentSourceFiles) -> list[ObservedLaunch]:
    """Put a script after those whose output it reads. Drop scripts that another script starts."""
    alone: dict[ProgramLaunch, TracedLaunches] = {}
    steps = 0
    for launch in launches:
        alone[launch] = _trace_launches(
            _expand_shell(ObservedLaunch(launch, None), files, set()), files, steps
        )
        steps = alone[launch].trace.steps
    started = {
        observed.launch.name
        for launch, traced in alone.items()
        for observed in traced.launches
        if observed.launch.name != launch.name
    }
    waiting = [launch for launch in launches if launch.name not in started]
    ordered: list[ObservedLaunch] = []
    while waiting:
        free = [
            launch
            for launch in waiting
            if not any(_feeds_into(alone[other], alone[launch]) for other in waiting if other is not launch)
        ]
        # If they feed each other in a circle, none is free, and the first one must do.
        first = (free or waiting)[0]
        ordered += _expand_shell(ObservedLaunch(first, None), files, set())
        waiting.remove(first)
    return ordered


def _feeds_into(first: TracedLaunches, second: TracedLaunches) -> bool:
    before, after = first.trace, second.trace
    saved = [path for path in before.weights if path != HOLE]
    written = [path for path in before.files if path != HOLE]
    return any(path_covers(path, normalise_path(load)) for path in saved for load in after.loads) or any(
        path_covers(path, normalise_path(str(noted.value)))
        for path in written
        for noted in after.noted.values()
        if noted.name == "data"
    )


def _trace_launches(
    launches: Sequence[ObservedLaunch], files: AgentSourceFiles, steps: int = 0
) -> TracedLaunches:
    """Trace launches in order, each followed by the programs that it starts itself."""
    trace, done = ProgramTrace(steps=steps), list[ObservedLaunch]()
    direct = {observed.launch.name for observed in launches if observed.launch.kind == "script"}
    waiting = [(observed, DEEPEST) for observed in launches]
    while waiting and len(done) < MOST_LAUNCHES:
        observed, depth = waiting.pop(0)
        trace.launch = len(done)
        done.append(observed)
        commands = _trace_launch(observed, files, trace)
        children = [launch for command in commands for launch in parse_command(command, files)]
        if depth and not any(launch.name in direct for launch in children):
            expanded = [
                child
                for launch in children
                for child in _expand_shell(ObservedLaunch(launch, observed.process), files, direct)
            ]
            waiting[:0] = [(child, depth - 1) for child in expanded]
    return TracedLaunches(trace, tuple(done))


def _trace_launch(observed: ObservedLaunch, files: AgentSourceFiles, trace: ProgramTrace) -> list[str]:
    """Trace one launch and return the command lines that it starts in turn."""
    launch = observed.launch
    match launch.kind:
        case "script":
            script = parse_script(files.sources[launch.name])
            return interpret_program(script, files, trace, launch.argv, dict(launch.environment))
        case "code":
            script = parse_script(AgentSourceFile(0, "-c", launch.name))
            return interpret_program(script, files, trace, launch.argv, dict(launch.environment))
        case "copy":
            trace.copy_weights(launch.name, launch.argv[0])
        case "tool":
            _trace_tool(observed, files, trace)
        case "shell":
            pass  # replaced before by what it starts
    return []


def _trace_tool(observed: ObservedLaunch, files: AgentSourceFiles, trace: ProgramTrace) -> None:
    job = parse_training_job(observed.launch, files)
    if job is None:
        return
    config = files.sources[job.config] if job.config else None
    for name, value, key, on_command_line in job.settings:
        in_config = config and not on_command_line
        place = CodeLocation(config.path, _find_key_line(config, key)) if config and in_config else None
        trace.note_setting(name, value, place or observed.place, 3, on_command_line)
    if job.route is None:
        return
    mark = trace.load_weights([job.start] if job.start else [])
    places = [observed.place] if observed.place else []
    if config:
        places.append(CodeLocation(config.path, _find_key_line(config, "stage|rl|rlhf_type|algorithm")))
    command = " ".join((observed.launch.name, *observed.launch.argv))[:200]
    route: Route = "online-rl" if job.world else job.route
    trace.add_stage(
        DetectedStage(
            route,
            0.3 if route == "unknown" else 0.95,
            tuple(places) or (CodeLocation(command, 0),),
            job.world,
        ),
        frozenset({mark}),
    )
    trace.save_weights(job.target, frozenset({mark}))


def _find_key_line(source: AgentSourceFile, name: str) -> int:
    """Return the line of a configuration file that sets a key, or 1 if none does."""
    key = re.compile(rf"^\W*(?:{name})\W*[:=]")
    return next((n for n, line in enumerate(source.text.split("\n"), start=1) if key.match(line)), 1)


__all__ = [
    "CodeLocation",
    "DetectedStage",
    "NotedSetting",
    "ObservedLaunch",
    "ProgramLaunch",
    "ProgramReading",
    "WeightsHistory",
    "read_programs",
]
