"""Find the programs that trained a submission among the recorded processes.

A step is the first process on its branch of the process tree that runs a file of the recorded code, a module
of this package, or a copy of files (`cp`, `mv`). What a step starts belongs to it. Shells and agents above it
are not steps.

Installed programs (`trl sft`, `vllm serve`) are tools: steps only if they wrote the model, or ran beside a
step.

A step that wrote other models than the submitted one is left out, unless a later step names these models. Of
equal steps the last one counts: with the same code, the earlier ones would write the same again.
"""

import math
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from pydantic import ValidationError

from agent2rl.analysis.program_names import LAUNCHERS, PYTHON, SHELLS
from agent2rl.core.events import FileSeen, ProcessEnd, ProcessStart, TimelineEvent
from agent2rl.core.reproduction import WORKSPACE_MARK, RecordedStep

INLINE = re.compile(r"-\w*c\w*")
"""The option of a shell that takes its commands from the command line."""
FILE_COMMANDS = {"cp", "mv", "ln", "rsync"}
OWN_MODULES = "agent2rl."
AGENT_FOLDER = "agent/"
"""Files that the harness put there for the agent."""
START_SECONDS = 0.1
"""Python needs at least so long to write a model, and the recorded start of a process is less exact."""
POLL_SECONDS, CLOCK_SECONDS = 0.6, 2.0
"""How long before its end a process was seen last: usually, and on a busy machine."""
SHORTEST_NAME = 3
"""A model's folder with a shorter name is looked for by its whole path alone."""
KINDS = ("step", "unsaved", "tool", "other")
"""Of several programs that may have written a model, the first kind is the likeliest."""
MOST_STEPS, MOST_LISTED, LONGEST_SHOWN = 200, 20, 200
NOT_NEEDED = "it wrote other models, or was still running"


@dataclass(frozen=True)
class RecordedWorkspace:
    """What is known of the workspace at a submission."""

    root: str
    """The workspace's path, as the agent saw it."""
    files: Mapping[str, str]
    """The recorded code: text by path."""
    given: Collection[str]
    """Files that the harness put there: running them trained nothing."""
    driven: bool
    """Whether an LLM drove the agent, so that the agent itself cannot run again."""
    submitted: str
    """Path of the submitted model."""
    accepted_at: float

    def find_path(self, path: str, directory: str) -> str | None:
        """Return a path relative to the workspace; None if it lies elsewhere."""
        whole = posixpath.normpath(posixpath.join(directory or self.root, path))
        return None if not _is_below(whole, self.root) else posixpath.relpath(whole, self.root)


@dataclass(frozen=True)
class FoundSteps:
    steps: tuple[RecordedStep, ...] = ()
    left_out: tuple[str, ...] = ()
    """Programs that do not run again, and why."""
    problem: str = ""
    """Why the steps cannot train the submission again; empty if they may."""


@dataclass(frozen=True)
class _Program:
    """A process with its command line."""

    start: ProcessStart
    ended: float
    argv: tuple[str, ...]
    kind: Literal["step", "unsaved", "tool", "other"] = "other"
    why: str = ""
    """Why it cannot run again."""
    wrote: tuple[str, ...] = ()
    """Folders of weights that changed while it ran."""

    def measure_distance(self, at: float) -> float:
        """Return how long after its end a time is; infinite before it can have written anything."""
        name = self.argv[0].rpartition("/")[2] if self.argv else ""
        start_seconds = -START_SECONDS if name in FILE_COMMANDS else START_SECONDS
        return max(0.0, at - self.ended) if at >= self.start.began + start_seconds else math.inf

    @property
    def shown(self) -> str:
        command = self.start.command
        return command if len(command) <= LONGEST_SHOWN else f"{command[: LONGEST_SHOWN - 1]}…"


def has_directories(events: Iterable[TimelineEvent]) -> bool:
    """Check whether the record says where programs ran. Earlier versions did not record it."""
    return any(event.data.get("directory") for event in events if event.kind == "began")


def find_steps(events: Sequence[TimelineEvent], workspace: RecordedWorkspace) -> FoundSteps:
    """Return the programs that trained a submission, in the order in which they began."""
    programs = _find_first_on_branches(_read_programs(events, workspace), workspace)
    weights = _read_weights(events, workspace)
    programs = [_add_written_weights(each, weights) for each in programs]
    writer = _find_writer(programs, weights, workspace)
    if writer and writer.kind == "unsaved":
        return FoundSteps(problem=f"{writer.why}: {writer.shown}")
    unsaved = [each for each in programs if each.kind == "unsaved"]
    candidates = [each for each in programs if each.kind == "step" or each is writer]
    needed = _add_servers(_select_needed(candidates, writer, workspace), programs)
    kept = _drop_repeated(needed)
    if not kept:
        problems = [f"{each.why}: {each.shown}" for each in unsaved]
        return FoundSteps(problem=(problems or ["no recorded program ran a file of the recorded code"])[-1])
    if len(kept) > MOST_STEPS:
        return FoundSteps(problem=f"the agent ran {len(kept)} programs: more than {MOST_STEPS}")
    others = [f"{each.shown}: {NOT_NEEDED}" for each in candidates if each not in needed]
    return FoundSteps(
        steps=tuple(_make_steps(kept, workspace)),
        left_out=tuple([*others, *(f"{each.shown}: {each.why}" for each in unsaved)][:MOST_LISTED]),
    )


# Programs, as they were recorded


def _read_programs(events: Iterable[TimelineEvent], workspace: RecordedWorkspace) -> list[_Program]:
    """Return the processes that began before the submission. Of several commands of one the last counts."""
    starts: dict[tuple[int, float], ProcessStart] = {}
    ends: dict[tuple[int, float], float] = {}
    for event in events:
        try:
            if event.kind == "began":
                start = ProcessStart.model_validate(event.data)
                starts[start.pid, start.began] = start
            elif event.kind == "left":
                end = ProcessEnd.model_validate(event.data)
                ends[end.pid, end.began] = end.began + end.seconds
        except ValidationError:
            continue
    until = workspace.accepted_at
    programs = [
        _Program(start, min(ends.get(key, until), until), _split_words(start.command))
        for key, start in starts.items()
        if start.began < until
    ]
    return sorted(programs, key=lambda each: (each.start.began, each.start.pid))


def _split_words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


def _find_first_on_branches(programs: Sequence[_Program], workspace: RecordedWorkspace) -> list[_Program]:
    """Return the programs that count, without those that one of them started."""
    found: list[_Program] = []
    covered: dict[int, bool] = {}
    parents = {program.start.pid: program.start.parent for program in programs}
    for program in programs:
        classified = _classify(program, workspace)
        is_agent = workspace.driven and program.start.parent not in covered
        is_covered = covered.get(program.start.parent, False)
        covered[program.start.pid] = is_covered or classified.kind == "step"
        if is_agent and not _runs_file(classified):
            covered[program.start.pid] = False
        elif classified.kind != "other" and not is_covered:
            found.append(classified)
    above = {pid for each in found if each.kind != "tool" for pid in _list_ancestors(each, parents)}
    return [each for each in found if each.kind != "tool" or each.start.pid not in above]


def _list_ancestors(program: _Program, parents: Mapping[int, int]) -> Iterator[int]:
    pid, seen = program.start.parent, {program.start.pid}
    while pid in parents and pid not in seen:
        yield pid
        seen.add(pid)
        pid = parents[pid]


def _runs_file(program: _Program) -> bool:
    """Check whether a program runs a file of the code, and not text of its command line."""
    return program.kind == "step" and "-c" not in program.argv


def _classify(program: _Program, workspace: RecordedWorkspace) -> _Program:
    if not program.argv:
        return program
    name, rest = program.argv[0].rpartition("/")[2], list(program.argv[1:])
    if PYTHON.match(program.argv[0]):
        return _classify_python(program, rest, workspace)
    if name in SHELLS:
        scripts = [word for word in rest if not word.startswith("-")]
        is_inline = any(INLINE.fullmatch(word) for word in rest[:3])
        if scripts and not is_inline:
            return _classify_file(program, scripts[0], workspace)
    elif name in FILE_COMMANDS:
        return _as_step(program)
    elif name in LAUNCHERS:
        return _classify_arguments(program, rest, workspace)
    return program


def _classify_python(program: _Program, rest: list[str], workspace: RecordedWorkspace) -> _Program:
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-", "-i"):
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    if not rest or rest[0] in ("-", "-i"):
        return _as_unsaved(program, "the code was typed or piped into Python and never saved")
    if rest[0] == "-c":
        # multiprocessing starts its workers with `python -c`. They belong to the program that did.
        is_worker = any("multiprocessing" in word for word in rest)
        return program if is_worker else _as_step(program)
    if rest[0] != "-m":
        return _classify_file(program, rest[0], workspace)
    module = rest[1] if len(rest) > 1 else ""
    path = module.replace(".", "/")
    places = (f"{path}.py", f"{path}/__main__.py")
    if any(workspace.find_path(each, program.start.directory) in workspace.files for each in places):
        return _as_step(program)
    return (
        _as_step(program) if module.startswith(OWN_MODULES) else _classify_arguments(program, rest, workspace)
    )


def _classify_file(program: _Program, name: str, workspace: RecordedWorkspace) -> _Program:
    """Classify a program by the script that it runs."""
    path = workspace.find_path(name, program.start.directory)
    if path is None:
        is_installed = "/bin/" in name or "-packages/" in name or name.startswith(("/usr/", "/opt/"))
        if is_installed:
            return _classify_arguments(program, list(program.argv[2:]), workspace)
        return _as_unsaved(program, f"{name} is outside the workspace, where code is not recorded")
    if path in workspace.given or (workspace.driven and path.startswith(AGENT_FOLDER)):
        return program
    if path in workspace.files:
        return _as_step(program)
    return _as_unsaved(program, f"{path} is not in the code that was recorded with the submission")


def _classify_arguments(program: _Program, words: Iterable[str], workspace: RecordedWorkspace) -> _Program:
    """Classify an installed program: it is a step if it is given a file of the code, and else a tool."""
    values = (word.partition("=")[2] if word.startswith("-") else word for word in words)
    paths = [workspace.find_path(value, program.start.directory) for value in values if value]
    if any(path in workspace.files for path in paths):
        return _as_step(program)
    return program if program.start.exact is False else replace(program, kind="tool")


def _as_step(program: _Program) -> _Program:
    if program.start.exact is False:
        return _as_unsaved(program, "its command line was not recorded whole")
    return replace(program, kind="step")


def _as_unsaved(program: _Program, why: str) -> _Program:
    return replace(program, kind="unsaved", why=why)


# Which of them the submission needs

Weights = Sequence[tuple[str, float]]
"""Folders, and when their weights changed."""


def _read_weights(events: Iterable[TimelineEvent], workspace: RecordedWorkspace) -> Weights:
    found = []
    for event in events:
        if event.kind == "file" and event.data.get("what") == "weights":
            try:
                seen = FileSeen.model_validate(event.data)
            except ValidationError:
                continue
            if seen.changed <= workspace.accepted_at + CLOCK_SECONDS:
                found.append((seen.path, seen.changed))
    return found


def _add_written_weights(program: _Program, weights: Weights) -> _Program:
    wrote = [path for path, at in weights if program.measure_distance(at) <= POLL_SECONDS]
    return replace(program, wrote=tuple(dict.fromkeys(wrote)))


def _find_writer(
    programs: Sequence[_Program], weights: Weights, workspace: RecordedWorkspace
) -> _Program | None:
    """Return the program that wrote the submitted model, if that is known: of several the last to begin."""
    times = [at for path, at in weights if path == workspace.submitted]
    if not times:
        return None
    at = max(times)
    running = [each for each in programs if each.measure_distance(at) <= CLOCK_SECONDS]
    return min(
        running,
        key=lambda each: (
            max(0.0, each.measure_distance(at) - POLL_SECONDS),
            KINDS.index(each.kind),
            -each.start.began,
        ),
        default=None,
    )


def _drop_repeated(programs: Sequence[_Program]) -> list[_Program]:
    last = {_identify(each): each for each in programs}
    return [each for each in programs if last[_identify(each)] is each]


def _identify(program: _Program) -> tuple[object, ...]:
    start = program.start
    return program.argv, start.directory, tuple(sorted(start.environment.items()))


def _select_needed(
    programs: Sequence[_Program], writer: _Program | None, workspace: RecordedWorkspace
) -> list[_Program]:
    """Return the writer and what it may need: programs without models, or with one that a kept one names."""
    if writer is None:
        return list(programs)
    kept: list[_Program] = []
    commands = ""  # of those kept
    code = "\n".join(workspace.files.values())
    in_code = {path: _is_named(path, code) for path in {path for each in programs for path in each.wrote}}
    for program in reversed(programs):
        is_later = program.start.began > writer.start.began
        if program is not writer and is_later and program.ended >= workspace.accepted_at:
            continue  # it did something else meanwhile, such as submitting
        is_named = any(in_code[path] or _is_named(path, commands) for path in program.wrote)
        if program is writer or not program.wrote or is_named or program.wrote == writer.wrote:
            kept.append(program)
            commands += " ".join(program.argv) + "\n"
    return kept[::-1]


def _add_servers(kept: Sequence[_Program], programs: Sequence[_Program]) -> list[_Program]:
    """Add tools that were running when a step began, such as an inference server."""
    servers = [
        each
        for each in programs
        if each.kind == "tool" and any(each.start.began < step.start.began < each.ended for step in kept)
    ]
    chosen = {id(each) for each in (*kept, *servers)}
    return [each for each in programs if id(each) in chosen]


def _is_named(path: str, text: str) -> bool:
    name = PurePosixPath(path).name
    return path in text or (len(name) >= SHORTEST_NAME and name in text)


# Steps


def _make_steps(programs: Sequence[_Program], workspace: RecordedWorkspace) -> Iterator[RecordedStep]:
    for place, program in enumerate(programs):
        start = program.start
        following = programs[place + 1].start.began if place + 1 < len(programs) else None
        directory = workspace.find_path(".", start.directory)
        background = following is not None and following < program.ended - CLOCK_SECONDS
        yield RecordedStep(
            argv=tuple(_mark_workspace(word, workspace.root) for word in program.argv),
            directory="" if directory in (None, ".") else str(directory),
            environment={
                name: _mark_workspace(value, workspace.root) for name, value in start.environment.items()
            },
            seconds=max(0.0, program.ended - start.began),
            background=background,
            gap_seconds=max(0.0, following - start.began) if following is not None and background else 0.0,
            finished=program.ended < workspace.accepted_at,
        )


def _mark_workspace(text: str, root: str) -> str:
    """Replace the workspace's path, which may be another one the next time."""
    return text.replace(root, WORKSPACE_MARK) if len(root) > 1 else text


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
