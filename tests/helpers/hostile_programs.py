"""Programs that attack whoever judges them, by class, and a pool in real sandboxes to try them in.

They lie in hostile_programs.txt. Each has a function `solve`, which should return its argument plus one and
never does so honestly.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent2rl import registry
from agent2rl.core.records import Limits
from agent2rl.evaluators.code_tests.pool import ProgramJob, ProgramPool
from agent2rl.grading.grading_child import ProgramSandboxes

REFERENCE_PROGRAM = "def solve(x):\n    return x + 1\n"
REFERENCE_TEST = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(10) == 11\n"
MIB = 1 << 20


@contextlib.contextmanager
def open_sandboxed_pool(home: Path, count: int = 2, sandbox: str = "bubblewrap") -> Iterator[ProgramPool]:
    limits = Limits(memory_bytes=4096 * MIB, disk_bytes=1024 * MIB, processes=64)
    with (
        ProgramSandboxes(registry.find_sandbox(sandbox), count, home, limits) as programs,
        ProgramPool(programs.sockets) as pool,
    ):
        yield pool


def make_job(
    program: str, test: str = REFERENCE_TEST, reference: str = REFERENCE_PROGRAM, entry: str = "solve"
) -> ProgramJob:
    return ProgramJob(program, entry, reference, test)


def _read_programs() -> Iterator[tuple[str, str, str]]:
    """Class, name and text of each program of the file, and of those that are better made than written."""
    text = Path(__file__).with_name("hostile_programs.txt").read_text(encoding="utf-8")
    for section in text.split("### ")[1:]:
        title, _, source = section.partition("\n")
        kind, _, name = title.partition(": ")
        yield kind, name, source
    yield "hang", "takes too long to compile", REFERENCE_PROGRAM + "a = [1, b, c(2)]\n" * 220_000
    yield "recurse", "in what is compiled", f"def solve(x):\n    return {'-' * 100_000}1\n"


HOSTILE_PROGRAMS = {(kind, name): source for kind, name, source in _read_programs()}
ALWAYS_EQUAL_PROGRAM = HOSTILE_PROGRAMS["forge", "returns what equals everything"]
