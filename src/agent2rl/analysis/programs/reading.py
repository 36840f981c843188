"""All that the programs of an attempt do, in the order in which they ran."""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent2rl.analysis.attempts import Ran, Source, Span
from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import commands, sources, tools
from agent2rl.analysis.programs.commands import Launch
from agent2rl.analysis.programs.machine import step_through
from agent2rl.analysis.programs.sources import Files
from agent2rl.analysis.programs.trace import Stage, Trace, covers, tidy
from agent2rl.analysis.programs.values import HOLE, Place

MOST_LAUNCHES, MOST_GUESSED, MOST_SCRIPTS, DEEPEST = 40, 16, 100, 4
MOST_BYTES = 2 << 20
"""Of sources; more are left out, the longest first."""


@dataclass(frozen=True)
class Began:
    """A launch, and the process that was seen to be it."""

    launch: Launch
    process: Ran | None
    place: Place | None = None
    """The line of a shell script that starts it."""


@dataclass(frozen=True)
class Reading:
    trace: Trace
    began: tuple[Began, ...]
    """By the numbers of the launches."""
    seen: bool
    """Whether processes say what ran; else everything that could be run is taken to have been."""

    def process(self, stage: Stage) -> Ran | None:
        return self.began[stage.launch].process if stage.launch < len(self.began) else None


def read(span: Span) -> Reading:
    return _read(_bounded(span.sources), span.processes, span.changed)


def _bounded(given: Iterable[Source]) -> tuple[Source, ...]:
    kept, size = [], 0
    for source in sorted(given, key=lambda source: (len(source.text), source.path)):
        size += len(source.text)
        if size > MOST_BYTES:
            break
        kept.append(source)
    return tuple(sorted(kept, key=lambda source: source.path))


@lru_cache(maxsize=16)
def _read(given: tuple[Source, ...], processes: tuple[Ran, ...], changed: tuple[str, ...]) -> Reading:
    files = Files(given)
    began = _seen(processes, files)
    reading = _run(began, files, True)
    if reading.trace.stages or any(each.launch.kind in ("script", "code") for each in began):
        return reading  # what was not seen to run does not count beside what was
    possible = entries(files)
    recent = [launch for launch in possible if launch.name in changed]
    for some in dict.fromkeys((tuple(recent), tuple(possible))):
        guessed = _run(_ordered(some[:MOST_GUESSED], files), files, False)
        if guessed.trace.stages or guessed.trace.weights:
            return guessed
    return reading


def _seen(processes: Sequence[Ran], files: Files) -> list[Began]:
    """What processes started, once each; a process with the command of one that still runs is its child."""
    found: dict[Launch, Began] = {}
    started = {command: commands.launches(command, files) for command in {each.command for each in processes}}
    for process in sorted(processes, key=lambda process: (process.began, process.pid)):
        for launch in started[process.command]:
            before = found.get(launch)
            if before and before.process:
                ended = before.process.ended
                if ended is None or process.began < ended:
                    continue
                found.pop(launch)
            found[launch] = Began(launch, process)
    direct = {launch.name for launch in found if launch.kind in ("script", "tool")}
    result: list[Began] = []
    for each in found.values():
        if len(result) < MOST_LAUNCHES:
            result += _expanded(each, files, direct)
    return result[:MOST_LAUNCHES]


def _expanded(began: Began, files: Files, direct: set[str], above: tuple[Launch, ...] = ()) -> list[Began]:
    """A shell script as what it starts, unless that was seen itself."""
    if began.launch.kind != "shell":
        return [began]
    if began.launch in above or len(above) > DEEPEST:
        return []
    above = (*above, began.launch)
    inner = list(dict.fromkeys(commands.inside(began.launch, files)))
    if any(each.kind != "copy" and each.name in direct for each in inner):
        inner = [each for each in inner if each.kind in ("copy", "code")]
    found = [Began(each, began.process, _line(each, began.launch, files)) for each in inner]
    result: list[Began] = []
    for each in found:
        if len(result) < MOST_LAUNCHES:
            result += _expanded(each, files, direct, above)
    return result


def _line(launch: Launch, shell: Launch, files: Files) -> Place | None:
    """Where a shell script names what it starts."""
    source = files.sources.get(shell.name)
    name = launch.name.rpartition("/")[2] if launch.kind == "script" else launch.name
    for number, line in enumerate(source.text.split("\n") if source else (), start=1):
        if name in line and not line.lstrip().startswith("#"):
            return Place(shell.name, number)
    return None


def entries(files: Files) -> list[Launch]:
    """What could be started: drivers, and scripts that nothing else here starts or imports."""
    shells = [path for path in files.sources if path.endswith(".sh")][:MOST_LAUNCHES]
    launched = [each for path in shells for each in commands.inside(Launch("shell", path), files)]
    started = {each.name for each in launched}
    scripts = [path for path in files.sources if path.endswith((".py", ".ipynb"))][:MOST_SCRIPTS]
    imported = {path for script in scripts for path in _imports(files.sources[script], files)}
    found = [Launch("shell", path) for path in shells if path not in started]
    found += [Launch("script", path) for path in scripts if path not in started | imported]
    return sorted(found, key=lambda launch: (launch.kind != "shell", launch.name))[:MOST_LAUNCHES]


def _imports(source: Source, files: Files) -> Iterable[str]:
    read = sources.script(source)
    near = source.path.rpartition("/")[0]
    for node in ast.walk(read.tree) if read.tree else ():
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = node.module or ""
            names = [stem, *(f"{stem}.{each.name}" if stem else each.name for each in node.names)]
        for name in names:
            if name and (found := files.module(name, near)) and found.path != source.path:
                yield found.path


def _ordered(launches: Sequence[Launch], files: Files) -> list[Began]:
    """A script that goes on from what another one saves comes after it; what another one starts is its."""
    alone: dict[Launch, Reading] = {}
    steps = 0
    for launch in launches:
        alone[launch] = _run(_expanded(Began(launch, None), files, set()), files, False, steps)
        steps = alone[launch].trace.steps
    started = {
        each.launch.name
        for launch, reading in alone.items()
        for each in reading.began
        if each.launch.name != launch.name
    }
    left, found = [launch for launch in launches if launch.name not in started], list[Began]()
    while left:
        free = [
            one
            for one in left
            if not any(_feeds(alone[other], alone[one]) for other in left if other is not one)
        ]
        first = (free or left)[0]
        found += _expanded(Began(first, None), files, set())
        left.remove(first)
    return found


def _feeds(first: Reading, second: Reading) -> bool:
    before, after = first.trace, second.trace
    saved = [path for path in before.weights if path != HOLE]
    wrote = [path for path in before.files if path != HOLE]
    return any(covers(path, tidy(load)) for path in saved for load in after.loads) or any(
        covers(path, tidy(str(noted.value)))
        for path in wrote
        for noted in after.noted.values()
        if noted.name == "data"
    )


def _run(began: Sequence[Began], files: Files, seen: bool, steps: int = 0) -> Reading:
    trace, done = Trace(steps=steps), list[Began]()
    direct = {each.launch.name for each in began if each.launch.kind == "script"}
    waiting = [(each, DEEPEST) for each in began]
    while waiting and len(done) < MOST_LAUNCHES:
        each, depth = waiting.pop(0)
        trace.launch = len(done)
        done.append(each)
        started = _launch(each, files, trace)
        inner = [launch for command in started for launch in commands.launches(command, files)]
        if depth and not any(launch.name in direct for launch in inner):
            further = [
                one for launch in inner for one in _expanded(Began(launch, each.process), files, direct)
            ]
            waiting[:0] = [(one, depth - 1) for one in further]
    return Reading(trace, tuple(done), seen)


def _launch(began: Began, files: Files, trace: Trace) -> list[str]:
    """The command lines that it starts in turn."""
    launch = began.launch
    match launch.kind:
        case "script":
            script = sources.script(files.sources[launch.name])
            return step_through(script, files, trace, launch.argv, dict(launch.environment))
        case "code":
            script = sources.script(Source(0, "-c", launch.name))
            return step_through(script, files, trace, launch.argv, dict(launch.environment))
        case "copy":
            trace.copy(launch.name, launch.argv[0])
        case "tool":
            _tool(began, files, trace)
        case "shell":
            return []
    return []


def _tool(began: Began, files: Files, trace: Trace) -> None:
    job = tools.job(began.launch, files)
    if job is None:
        return
    for name, value, called, said in job.settings:
        place = None if said or not job.config else Place(job.config, _key(files.sources[job.config], called))
        trace.note(name, value, place or began.place, 3, said)
    if job.route is None:
        return
    mark = trace.load([job.start] if job.start else [])
    config = (
        [Place(job.config, _key(files.sources[job.config], "stage|rl|rlhf_type|algorithm"))]
        if job.config
        else []
    )
    places = [*([began.place] if began.place else []), *config]
    command = " ".join((began.launch.name, *began.launch.argv))[:200]
    route: Route = "online-rl" if job.world else job.route
    trace.add(
        Stage(route, 0.3 if route == "unknown" else 0.95, tuple(places) or (Place(command, 0),), job.world),
        frozenset({mark}),
    )
    trace.save(job.target, frozenset({mark}))


def _key(source: Source, name: str) -> int:
    """The line of a configuration that has a key; its first where none has."""
    key = re.compile(rf"^\W*(?:{name})\W*[:=]")
    return next((n for n, line in enumerate(source.text.split("\n"), start=1) if key.match(line)), 1)
