"""What the agent's programs do, read from their text; nothing of it is ever run. `read_programs` is the
one way in: all that the programs of an attempt do, in the order in which they ran.

    source_files, command_lines   files, command lines and shell scripts as what can be read
    marks, abstract_values        what is known of a value: a constant, what it is, where it comes from
    interpreter, statements, ...  steps through a program with such values; what is not reached does not count
    *_calls, program_settings     what calls of well-known libraries do to such values

A value carries marks: this was sampled from the model, this was computed by judging a sample, this is a
log-probability. A training is recognised where a gradient is taken, by the marks of what it is taken of.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan, RecordedProcess
from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import command_lines, source_files
from agent2rl.analysis.programs.abstract_values import HOLE, CodeLocation
from agent2rl.analysis.programs.command_lines import ProgramLaunch
from agent2rl.analysis.programs.interpreter import interpret_program
from agent2rl.analysis.programs.interpreter_core import (
    DetectedStage,
    ProgramTrace,
    normalise_path,
    path_covers,
)
from agent2rl.analysis.programs.source_files import AgentSourceFiles

# All that the programs of an attempt do, in the order in which they ran.

MOST_LAUNCHES, MOST_GUESSED, MOST_SCRIPTS, DEEPEST = 40, 16, 100, 4
MOST_BYTES = 2 << 20
"""Of sources; more are left out, the longest first."""


@dataclass(frozen=True)
class ObservedLaunch:
    """A launch, and the process that was seen to be it."""

    launch: ProgramLaunch
    process: RecordedProcess | None
    place: CodeLocation | None = None
    """The line of a shell script that starts it."""


@dataclass(frozen=True)
class ProgramReading:
    trace: ProgramTrace
    began: tuple[ObservedLaunch, ...]
    """By the numbers of the launches."""
    seen: bool
    """Whether processes say what ran; else everything that could be run is taken to have been."""

    def find_process(self, stage: DetectedStage) -> RecordedProcess | None:
        return self.began[stage.launch].process if stage.launch < len(self.began) else None


def read_programs(span: AttemptSpan) -> ProgramReading:
    return _read_programs(_limit_sources(span.sources), span.processes, span.changed)


def _limit_sources(given: Iterable[AgentSourceFile]) -> tuple[AgentSourceFile, ...]:
    kept, size = [], 0
    for source in sorted(given, key=lambda source: (len(source.text), source.path)):
        size += len(source.text)
        if size > MOST_BYTES:
            break
        kept.append(source)
    return tuple(sorted(kept, key=lambda source: source.path))


@lru_cache(maxsize=16)
def _read_programs(
    given: tuple[AgentSourceFile, ...], processes: tuple[RecordedProcess, ...], changed: tuple[str, ...]
) -> ProgramReading:
    files = AgentSourceFiles(given)
    began = _match_processes(processes, files)
    reading = _trace_launches(began, files, True)
    if reading.trace.stages or any(each.launch.kind in ("script", "code") for each in began):
        return reading  # what was not seen to run does not count beside what was
    possible = list_entry_points(files)
    recent = [launch for launch in possible if launch.name in changed]
    for some in dict.fromkeys((tuple(recent), tuple(possible))):
        guessed = _trace_launches(_order_launches(some[:MOST_GUESSED], files), files, False)
        if guessed.trace.stages or guessed.trace.weights:
            return guessed
    return reading


def _match_processes(processes: Sequence[RecordedProcess], files: AgentSourceFiles) -> list[ObservedLaunch]:
    """What processes started, once each; a process with the command of one that still runs is its child."""
    found: dict[ProgramLaunch, ObservedLaunch] = {}
    started = {
        command: command_lines.parse_command(command, files)
        for command in {each.command for each in processes}
    }
    for process in sorted(processes, key=lambda process: (process.began, process.pid)):
        for launch in started[process.command]:
            before = found.get(launch)
            if before and before.process:
                ended = before.process.ended
                if ended is None or process.began < ended:
                    continue
                found.pop(launch)
            found[launch] = ObservedLaunch(launch, process)
    direct = {launch.name for launch in found if launch.kind in ("script", "tool")}
    result: list[ObservedLaunch] = []
    for each in found.values():
        if len(result) < MOST_LAUNCHES:
            result += _expand_shell(each, files, direct)
    return result[:MOST_LAUNCHES]


def _expand_shell(
    began: ObservedLaunch, files: AgentSourceFiles, direct: set[str], above: tuple[ProgramLaunch, ...] = ()
) -> list[ObservedLaunch]:
    """A shell script as what it starts, unless that was seen itself."""
    if began.launch.kind != "shell":
        return [began]
    if began.launch in above or len(above) > DEEPEST:
        return []
    above = (*above, began.launch)
    inner = list(dict.fromkeys(command_lines.expand_shell_script(began.launch, files)))
    if any(each.kind != "copy" and each.name in direct for each in inner):
        inner = [each for each in inner if each.kind in ("copy", "code")]
    found = [ObservedLaunch(each, began.process, _locate_launch(each, began.launch, files)) for each in inner]
    result: list[ObservedLaunch] = []
    for each in found:
        if len(result) < MOST_LAUNCHES:
            result += _expand_shell(each, files, direct, above)
    return result


def _locate_launch(
    launch: ProgramLaunch, shell: ProgramLaunch, files: AgentSourceFiles
) -> CodeLocation | None:
    """Where a shell script names what it starts."""
    source = files.sources.get(shell.name)
    name = launch.name.rpartition("/")[2] if launch.kind == "script" else launch.name
    for number, line in enumerate(source.text.split("\n") if source else (), start=1):
        if name in line and not line.lstrip().startswith("#"):
            return CodeLocation(shell.name, number)
    return None


def list_entry_points(files: AgentSourceFiles) -> list[ProgramLaunch]:
    """What could be started: drivers, and scripts that nothing else here starts or imports."""
    shells = [path for path in files.sources if path.endswith(".sh")][:MOST_LAUNCHES]
    launched = [
        each
        for path in shells
        for each in command_lines.expand_shell_script(ProgramLaunch("shell", path), files)
    ]
    started = {each.name for each in launched}
    scripts = [path for path in files.sources if path.endswith((".py", ".ipynb"))][:MOST_SCRIPTS]
    imported = {path for script in scripts for path in _list_imports(files.sources[script], files)}
    found = [ProgramLaunch("shell", path) for path in shells if path not in started]
    found += [ProgramLaunch("script", path) for path in scripts if path not in started | imported]
    return sorted(found, key=lambda launch: (launch.kind != "shell", launch.name))[:MOST_LAUNCHES]


def _list_imports(source: AgentSourceFile, files: AgentSourceFiles) -> Iterable[str]:
    read = source_files.parse_script(source)
    near = source.path.rpartition("/")[0]
    for node in ast.walk(read.tree) if read.tree else ():
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = node.module or ""
            names = [stem, *(f"{stem}.{each.name}" if stem else each.name for each in node.names)]
        for name in names:
            if name and (found := files.find_module(name, near)) and found.path != source.path:
                yield found.path


def _order_launches(launches: Sequence[ProgramLaunch], files: AgentSourceFiles) -> list[ObservedLaunch]:
    """A script that goes on from what another one saves comes after it; what another one starts is its."""
    alone: dict[ProgramLaunch, ProgramReading] = {}
    steps = 0
    for launch in launches:
        alone[launch] = _trace_launches(
            _expand_shell(ObservedLaunch(launch, None), files, set()), files, False, steps
        )
        steps = alone[launch].trace.steps
    started = {
        each.launch.name
        for launch, reading in alone.items()
        for each in reading.began
        if each.launch.name != launch.name
    }
    left, found = [launch for launch in launches if launch.name not in started], list[ObservedLaunch]()
    while left:
        free = [
            one
            for one in left
            if not any(_feeds_into(alone[other], alone[one]) for other in left if other is not one)
        ]
        first = (free or left)[0]
        found += _expand_shell(ObservedLaunch(first, None), files, set())
        left.remove(first)
    return found


def _feeds_into(first: ProgramReading, second: ProgramReading) -> bool:
    before, after = first.trace, second.trace
    saved = [path for path in before.weights if path != HOLE]
    wrote = [path for path in before.files if path != HOLE]
    return any(path_covers(path, normalise_path(load)) for path in saved for load in after.loads) or any(
        path_covers(path, normalise_path(str(noted.value)))
        for path in wrote
        for noted in after.noted.values()
        if noted.name == "data"
    )


def _trace_launches(
    began: Sequence[ObservedLaunch], files: AgentSourceFiles, seen: bool, steps: int = 0
) -> ProgramReading:
    trace, done = ProgramTrace(steps=steps), list[ObservedLaunch]()
    direct = {each.launch.name for each in began if each.launch.kind == "script"}
    waiting = [(each, DEEPEST) for each in began]
    while waiting and len(done) < MOST_LAUNCHES:
        each, depth = waiting.pop(0)
        trace.launch = len(done)
        done.append(each)
        started = _trace_launch(each, files, trace)
        inner = [launch for command in started for launch in command_lines.parse_command(command, files)]
        if depth and not any(launch.name in direct for launch in inner):
            further = [
                one
                for launch in inner
                for one in _expand_shell(ObservedLaunch(launch, each.process), files, direct)
            ]
            waiting[:0] = [(one, depth - 1) for one in further]
    return ProgramReading(trace, tuple(done), seen)


def _trace_launch(began: ObservedLaunch, files: AgentSourceFiles, trace: ProgramTrace) -> list[str]:
    """The command lines that it starts in turn."""
    launch = began.launch
    match launch.kind:
        case "script":
            script = source_files.parse_script(files.sources[launch.name])
            return interpret_program(script, files, trace, launch.argv, dict(launch.environment))
        case "code":
            script = source_files.parse_script(AgentSourceFile(0, "-c", launch.name))
            return interpret_program(script, files, trace, launch.argv, dict(launch.environment))
        case "copy":
            trace.copy_weights(launch.name, launch.argv[0])
        case "tool":
            _trace_tool(began, files, trace)
        case "shell":
            return []
    return []


def _trace_tool(began: ObservedLaunch, files: AgentSourceFiles, trace: ProgramTrace) -> None:
    job = command_lines.parse_training_job(began.launch, files)
    if job is None:
        return
    for name, value, called, said in job.settings:
        place = (
            None
            if said or not job.config
            else CodeLocation(job.config, _find_key_line(files.sources[job.config], called))
        )
        trace.note_setting(name, value, place or began.place, 3, said)
    if job.route is None:
        return
    mark = trace.load_weights([job.start] if job.start else [])
    config = (
        [CodeLocation(job.config, _find_key_line(files.sources[job.config], "stage|rl|rlhf_type|algorithm"))]
        if job.config
        else []
    )
    places = [*([began.place] if began.place else []), *config]
    command = " ".join((began.launch.name, *began.launch.argv))[:200]
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
    """The line of a configuration that has a key; its first where none has."""
    key = re.compile(rf"^\W*(?:{name})\W*[:=]")
    return next((n for n, line in enumerate(source.text.split("\n"), start=1) if key.match(line)), 1)
