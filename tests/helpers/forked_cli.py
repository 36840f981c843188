"""Starts agent2rl as a process of its own without paying for its imports each time.

A server process has imported them and forks: the child has a pid, an environment, a directory and outputs of
its own and runs the same `main` as the installed command does. What happens before `main` is not tried here.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

Program = Callable[[tuple[str, ...], Path, dict[str, str], Path, Path], None]
"""Takes its arguments, directory, environment, and the files for its output and errors."""

PRELOADED_MODULES = [
    *(
        f"agent2rl.cli.{name}"
        for name in ("main", "run", "campaign", "report", "show", "inspect_record", "check", "score")
    ),
    # what most runs load when they need it
    "agent2rl.agents.script",
    "agent2rl.models.abacus",
    "agent2rl.sandboxes.bubblewrap",
    "anyio.streams.memory",
    "dulwich.worktree",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
    "numpy.ma",
    "numpy.random",
    "pydantic.v1",
    "rich._emoji_codes",
    "tests.helpers.generated_problems",
    "uvicorn.loops.asyncio",
]


def start_forked_cli(
    arguments: tuple[str, ...], directory: Path, environment: dict[str, str], output: Path, errors: Path
) -> ForkServerProcess:
    return _start(run_cli_main, arguments, directory, environment, output, errors)


def run_forked_cli(
    arguments: tuple[str, ...], directory: Path, environment: dict[str, str], place: Path, seconds: float
) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run` would."""
    return run_forked(run_cli_main, arguments, directory, environment, place, seconds)


def run_forked(
    program: Program,
    arguments: tuple[str, ...],
    directory: Path,
    environment: dict[str, str],
    place: Path,
    seconds: float,
) -> "subprocess.CompletedProcess[str]":
    """Run any function of a module as a program."""
    output, errors = place / f"out-{os.urandom(4).hex()}", place / f"err-{os.urandom(4).hex()}"
    process = _start(program, arguments, directory, environment, output, errors)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(list(arguments), seconds)
    said = [path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)]
    code = process.exitcode
    process.close()
    return subprocess.CompletedProcess(list(arguments), code, *said)


def _start(program: Program, *arguments: Any) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    process = context.Process(target=program, args=arguments)
    process.start()
    return process


def run_cli_main(
    arguments: tuple[str, ...], directory: Path, environment: dict[str, str], output: Path, errors: Path
) -> None:
    become_program(directory, environment, output, errors)
    sys.argv = ["agent2rl", *arguments]
    from agent2rl.cli.main import main

    main()


def become_program(directory: Path, environment: dict[str, str], output: Path, errors: Path) -> None:
    """Give this process what a new program would have."""
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[:0] = [str(directory), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
