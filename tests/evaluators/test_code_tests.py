"""Right programs pass, wrong ones fail, and hostile ones fail alone and leave nothing behind."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl.core.errors import GradingError
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests import evaluator, jail, plain_data, pool
from agent2rl.evaluators.code_tests.pool import ProgramJob, ProgramPool
from agent2rl.sandboxes import resource_limits
from tests.helpers.hostile_programs import (
    ALWAYS_EQUAL_PROGRAM,
    HOSTILE_PROGRAMS,
    REFERENCE_PROGRAM,
    REFERENCE_TEST,
    make_job,
    open_sandboxed_pool,
)


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramPool]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("SECRET", "a key of the harness")
        with open_sandboxed_pool(tmp_path_factory.mktemp("programs")) as found:
            yield found


def test_a_right_program_passes_and_a_wrong_one_fails(sandboxes: ProgramPool) -> None:
    right, wrong = sandboxes.judge_jobs(
        [make_job(REFERENCE_PROGRAM), make_job("def solve(x):\n    return x\n")]
    )
    assert right.passed
    assert not right.inside
    assert not wrong.passed
    assert wrong.note.startswith("AssertionError")


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("def solve(x) return", "SyntaxError"),
        ("def other(x):\n    return x + 1\n", "NameError: the program defines no solve"),
        ("import nothing\n", "ModuleNotFoundError"),
        ("def solve():\n    return 2\n", "TypeError"),
        ("solve = 3\n", "TypeError"),
        ("class Own(Exception): pass\ndef solve(x):\n    raise Own('no')\n", "ProgramError: Own: no"),
        ("def solve(x):\n    return (y for y in [x])\n", "a result is generator"),
        ("", "NameError"),
    ],
)
def test_the_note_says_why_a_program_failed(sandboxes: ProgramPool, program: str, note: str) -> None:
    (verdict,) = sandboxes.judge_jobs([make_job(program)])
    assert not verdict.passed
    assert verdict.note.startswith(note)


def test_who_has_no_key_of_a_server_cannot_run_a_program_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = plain_data.build_frame(b"P", (REFERENCE_PROGRAM, "", "solve", None))
    with open_sandboxed_pool(tmp_path / "programs", 1) as programs:
        assert programs.judge_jobs([make_job(REFERENCE_PROGRAM)])[0].passed
        monkeypatch.chdir(tmp_path / "programs" / "0" / "work")  # a socket's path must be short
        key = Path(f"{pool.SOCKET}.key").read_bytes()

        def ask(begin: bytes) -> bytes:
            with socket.socket(socket.AF_UNIX) as link, suppress(ConnectionResetError):
                link.settimeout(20)
                link.connect(pool.SOCKET)
                link.sendall(begin + question)
                return link.recv(1)
            return b""

        assert [ask(begin) for begin in (b"", b"0" * len(key), b"\n" + key)] == [b"", b"", b""]
        assert ask(key) != b""
        assert programs.judge_jobs([make_job(REFERENCE_PROGRAM)])[0].passed


TEMPORARY_FILE = """
import tempfile
def solve(x):
    with tempfile.{} as file:
        file.write(str(x))
        file.seek(0)
        return int(file.read()) + 1
"""


@pytest.mark.parametrize(
    "program",
    [
        "from fractions import Fraction\ndef solve(x):\n    return Fraction(2 * x, 2) + 1\n",
        "from decimal import Decimal\ndef solve(x):\n    return Decimal(x) + 1\n",
        TEMPORARY_FILE.format("TemporaryFile('w+')"),
        TEMPORARY_FILE.format("NamedTemporaryFile(mode='w+', suffix='.txt')"),
        "import tempfile\nPLACE = tempfile.gettempdir()\n" + REFERENCE_PROGRAM,
        REFERENCE_PROGRAM + "assert solve(1) == 3\n",
        REFERENCE_PROGRAM + "raise SystemExit\n",
    ],
    ids=["fraction", "decimal", "file", "named file", "directory", "wrong example", "exit"],
)
def test_what_passes_anywhere_passes_here(sandboxes: ProgramPool, program: str) -> None:
    (verdict,) = sandboxes.judge_jobs([make_job(program)])
    assert verdict.passed, verdict.note


def test_an_argument_may_be_a_fraction(sandboxes: ProgramPool) -> None:
    test = (
        "from fractions import Fraction\ndef check(candidate):\n"
        "    assert candidate(Fraction(1, 3)) == Fraction(4, 3)\n"
    )
    (verdict,) = sandboxes.judge_jobs([make_job(REFERENCE_PROGRAM, test)])
    assert (verdict.passed, verdict.inside) == (True, False)


def test_the_fallback_runs_up_to_the_words_after_it_if_the_program_does_not_compile(
    sandboxes: ProgramPool,
) -> None:
    fallback = "def solve(x):\n    return more(x)\ndef more(x):\n    return x + 1\nThis isn't code.\n"
    verdicts = sandboxes.judge_jobs(
        [
            replace(make_job(program), fallback=fallback)
            for program in ("This isn't code.", "def solve(x):\n    return x\n")
        ]
    )
    assert [verdict.passed for verdict in verdicts] == [True, False]


def test_the_tests_see_what_the_prompt_defines_and_the_function_by_its_name(sandboxes: ProgramPool) -> None:
    helper = "import math\ndef half(x):\n    return x / 2\n"
    test = "def check(candidate):\n    assert half(solve(2)) == candidate(1) - math.sqrt(0.25)\n"
    (verdict,) = sandboxes.judge_jobs([make_job(REFERENCE_PROGRAM, test, helper + REFERENCE_PROGRAM)])
    assert verdict.passed


def test_a_program_keeps_its_state_between_the_calls_of_one_check(sandboxes: ProgramPool) -> None:
    counting = "seen = []\ndef solve(x):\n    seen.append(x)\n    return len(seen)\n"
    test = "def check(candidate):\n    assert [candidate(0) for _ in range(3)] == [1, 2, 3]\n"
    assert [
        verdict.passed
        for verdict in sandboxes.judge_jobs([make_job(counting, test), make_job(counting + "\n", test)])
    ] == [True] * 2


def test_tests_may_expect_errors_and_errors_keep_their_type_and_text(sandboxes: ProgramPool) -> None:
    program = "def solve(x):\n    raise ValueError(f'no {x}')\n"
    test = """
def check(candidate):
    try:
        candidate(5)
    except ValueError as error:
        assert str(error) == "no 5"
    else:
        raise AssertionError
"""
    (verdict,) = sandboxes.judge_jobs([make_job(program, test)])
    assert verdict.passed


def test_a_program_cannot_pass_tests_that_catch_everything_by_dying(sandboxes: ProgramPool) -> None:
    lenient = (
        "def check(candidate):\n    try:\n        candidate(1)\n    except BaseException:\n        pass\n"
    )
    died, raised = sandboxes.judge_jobs(
        [
            make_job("import os\ndef solve(x):\n    os._exit(0)\n", lenient),
            make_job("def solve(x):\n    1 / 0\n", lenient),
        ]
    )
    assert not died.passed
    assert raised.passed  # as it would in any executor


def test_arguments_are_copies_so_that_no_program_can_change_what_it_is_compared_with(
    sandboxes: ProgramPool,
) -> None:
    program = "def solve(xs):\n    xs.clear()\n    return []\n"
    test = "def check(candidate):\n    xs = [3, 1, 2]\n    assert candidate(xs) == sorted(xs)\n"
    (verdict,) = sandboxes.judge_jobs([make_job(program, test)])
    assert not verdict.passed


def test_random_tests_are_the_same_for_every_program(sandboxes: ProgramPool) -> None:
    test = "import random\ndef check(candidate):\n    raise ValueError(str(random.random()))\n"
    first, second = sandboxes.judge_jobs(
        [make_job(REFERENCE_PROGRAM, test), make_job(REFERENCE_PROGRAM + "\n", test)]
    )
    assert first.note == second.note


def test_there_are_at_least_40_hostile_programs() -> None:
    assert len(HOSTILE_PROGRAMS) >= 40
    assert {kind for kind, _ in HOSTILE_PROGRAMS} == {"forge", "kill", "hang", "flood", "spawn", "recurse"}


def alive() -> Counter[str]:
    """The processes below this one, by name."""
    everyone = resource_limits.list_processes()
    return Counter(process.name for process in resource_limits.find_descendants({os.getpid()}, everyone))


def test_hostile_programs_fail_leave_nothing_and_spare_what_comes_after(sandboxes: ProgramPool) -> None:
    honest = [make_job(f"{REFERENCE_PROGRAM}# {number}\n") for number in range(30)]
    assert all(verdict.passed for verdict in sandboxes.judge_jobs(honest))
    crowd = wait_until_nobody_leaves()
    jobs = [make_job(source) for source in HOSTILE_PROGRAMS.values()]
    verdicts = dict(zip(HOSTILE_PROGRAMS, sandboxes.judge_jobs(jobs), strict=True))
    assert {key: verdict.note for key, verdict in verdicts.items() if verdict.passed} == {}
    assert all(verdict.passed for verdict in sandboxes.judge_jobs(honest))
    until = time.monotonic() + 120
    while alive() != crowd and time.monotonic() < until:
        time.sleep(0.05)  # a program that has its verdict may be on its way out
    assert alive() == crowd


def wait_until_nobody_leaves() -> Counter[str]:
    """Return the processes once they have been the same for a second."""
    crowd, since = alive(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.05)
        if (now := alive()) != crowd:
            crowd, since = now, time.monotonic()
    return crowd


@pytest.mark.parametrize("place", ["/tmp/left", "/dev/shm/left", "/workspace/left", "/home/agent/left"])
def test_nothing_that_a_program_writes_is_there_for_the_next(sandboxes: ProgramPool, place: str) -> None:
    write = f"def solve(x):\n    open({place!r}, 'w').write('x')\n"
    read = f"import os\ndef solve(x):\n    return os.path.exists({place!r})\n"
    test = "def check(candidate):\n    assert candidate(1) is False\n"
    sandboxes.judge_jobs([make_job(write)] * 2)
    assert [verdict.passed for verdict in sandboxes.judge_jobs([make_job(read, test)] * 4)] == [True] * 4


SEES = """
import importlib.util, os
def solve(what, places):
    if what == "files":
        found = []
        for place in places:
            try:
                os.listdir(place) if os.path.isdir(place) else open(place).read()
                found.append(place)
            except OSError:
                pass
        return found
    if what == "packages":
        return [name for name in ("numpy", "torch", "pydantic") if importlib.util.find_spec(name)]
    if what == "environment":
        return "SECRET" in os.environ
    if what == "descriptors":
        return [fd for fd in range(64) if is_open(fd)]
def is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False
"""
ABSENT = [
    str(Path(__file__).parents[1]),
    str(Path(evaluator.__file__).parents[2] / "tasks"),
    "/usr/bin/env",
    "/usr/share",
]
CLOSED = ["/", "/etc/passwd", "/proc/self/status", "/proc/1/cmdline", "/workspace", "/tmp", "/sys"]
"""Closed by landlock alone, where the kernel has it."""


def has_landlock() -> bool:
    return int(ctypes.CDLL(None).syscall(jail.CREATE_RULESET, None, 0, 1)) > 0


def test_a_program_sees_the_interpreter_and_nothing_else(sandboxes: ProgramPool) -> None:
    places = ABSENT + (CLOSED if has_landlock() else [])
    test = f"""
def check(candidate):
    found = [candidate(what, {places!r}) for what in ("files", "packages", "environment", "descriptors")]
    assert found == [[], [], False, [0, 1, 2, 3]], found
"""
    (verdict,) = sandboxes.judge_jobs([make_job(SEES, test)])
    assert verdict.passed, verdict.note


def test_what_a_program_says_of_itself_can_be_written_down(sandboxes: ProgramPool) -> None:
    (verdict,) = sandboxes.judge_jobs([make_job(HOSTILE_PROGRAMS["forge", "speaks of itself in no text"])])
    assert verdict.note.encode() == b"ValueError: ?"


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (
            "def solve(x):\n    raise StopIteration\n",
            "    assert all(map(lambda x: candidate(x) == x + 1, [1, 2]))\n",
        ),
        (
            "def solve(x):\n    return 10**9\n",
            "    try:\n        for _ in range(candidate(1)): pass\n    except BaseException: pass\n",
        ),
        (
            "import os\ndef solve(x):\n    os.write(3, b'\\0\\0\\0\\1UT')\n",
            "    try:\n        candidate(1)\n    except Exception: pass\n",
        ),
        ("def solve(x):\n    return 3 << 30\n", "    assert len('x' * candidate(1)) == 2\n"),
        ("def solve(x):\n    return 10**5000\n", "    assert candidate(1) == 2, candidate(1)\n"),
    ],
    ids=[
        "ends a loop of the tests",
        "keeps the tests busy",
        "is not plain in its own words",
        "hoards",
        "is long",
    ],
)
def test_tests_that_are_careless_do_not_let_a_wrong_program_pass(
    sandboxes: ProgramPool, program: str, test: str
) -> None:
    wrong, right = sandboxes.judge_jobs(
        [make_job(program, f"def check(candidate):\n{test}"), make_job(REFERENCE_PROGRAM)]
    )
    assert not wrong.passed
    assert right.passed


def test_where_nothing_works_there_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 0.5)
    with ProgramPool(own=1) as own, pytest.raises(GradingError, match="No sandbox"):
        own.judge_jobs([make_job("def solve(x):\n    return x\n")])


def test_modules_in_the_current_directory_are_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "json", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    with ProgramPool(own=1) as own:
        assert own.judge_jobs([make_job(REFERENCE_PROGRAM)])[0].passed


def reward(program: str) -> float:
    return evaluator.reward(
        "def solve(x):\n", f"```\n{program}```", "    return x + 1\n", REFERENCE_TEST, "solve"
    )


WRONG = "def solve(x):\n    return x\n"


def test_rewards_may_be_asked_for_from_many_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(reward, [REFERENCE_PROGRAM, WRONG] * 20))
    assert found == [1.0, 0.0] * 20


def test_a_reward_that_was_interrupted_is_not_taken_for_the_next_one() -> None:
    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with ProgramPool(own=1) as own:
            own.judge_jobs([make_job(REFERENCE_PROGRAM)])
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(TimeoutError):
                own.judge_jobs([make_job("import time\ntime.sleep(1)\n" + REFERENCE_PROGRAM)])
            assert [
                own.judge_jobs([make_job(source)])[0].passed for source in (WRONG, REFERENCE_PROGRAM, WRONG)
            ] == [
                False,
                True,
                False,
            ]
    finally:
        signal.signal(signal.SIGALRM, before)


FORKED = """
import os, sys
from agent2rl.evaluators.code_tests.evaluator import reward
from tests.helpers.hostile_programs import REFERENCE_TEST
def worth():
    return reward("def solve(x):\\n", "    return x + 1\\n", "    return x + 1\\n", REFERENCE_TEST, "solve")
assert worth() == 1
child = os.fork()
if child == 0:
    assert worth() == 1
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert worth() == 1
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=worth)
process.start(); process.join()
assert process.exitcode == 0 and worth() == 1
"""


def test_a_fork_has_rewards_of_its_own_and_leaves_its_parents_alone(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([*sys.path, root])}
    subprocess.run([sys.executable, "-c", FORKED], check=True, env=environment, cwd=root, timeout=120)
    assert list(tmp_path.iterdir()) == []


def test_a_grading_without_sandboxes_for_programs_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pool.SOCKETS_VARIABLE, "")
    with pytest.raises(GradingError, match="program_workers"):
        ProgramPool.open()


def test_a_pool_of_its_own_is_for_agents_and_is_shut_in_too() -> None:
    with ProgramPool(own=1) as own:
        verdicts = own.judge_jobs(
            [
                make_job(REFERENCE_PROGRAM),
                make_job(ALWAYS_EQUAL_PROGRAM),
                make_job(HOSTILE_PROGRAMS["kill", "kills everybody"]),
            ]
        )
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_workers_that_crash_in_a_loop_do_not_stall_the_others(tmp_path: Path) -> None:
    with open_sandboxed_pool(tmp_path, count=2) as healthy:
        sockets = [worker._socket for worker in healthy._workers]
        dead = [tmp_path / "nobody" / "sock", tmp_path / "nowhere" / "sock"]
        with ProgramPool([*dead, *sockets]) as mixed:
            assert all(
                verdict.passed
                for verdict in mixed.judge_jobs([make_job(f"{REFERENCE_PROGRAM}# {n}\n") for n in range(40)])
            )


def test_servers_that_die_with_every_program_are_started_again_and_the_pool_goes_on() -> None:
    """What kills a server from outside here stands for whatever might from inside."""
    with ProgramPool(own=2) as own:
        servers = own._servers
        stop = time.monotonic() + 1.5

        def shoot(done: int) -> None:
            if time.monotonic() < stop:
                for server in servers:
                    server._process.kill()

        verdicts = own.judge_jobs(
            [make_job(f"{REFERENCE_PROGRAM}# {number}\n") for number in range(60)], shoot
        )
    assert len(verdicts) == 60
    assert all(verdict.passed or "lost" in verdict.note for verdict in verdicts)
    assert any(verdict.passed for verdict in verdicts)


def test_without_any_server_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 0.5)
    with ProgramPool([tmp_path / "sock"]) as nobody, pytest.raises(GradingError, match="No sandbox"):
        nobody.judge_jobs([make_job(REFERENCE_PROGRAM)])


GENERATOR = Example(
    "g",
    "def solve(n):\n",
    "    yield from range(n)\n",
    {"entry_point": "solve", "test": "def check(candidate):\n    assert list(candidate(3)) == [0, 1, 2]\n"},
)


def test_where_data_is_not_plain_tests_run_inside_and_the_verdict_is_marked(sandboxes: ProgramPool) -> None:
    right = evaluator.build_job(GENERATOR, GENERATOR.target)
    wrong = evaluator.build_job(GENERATOR, "    yield 7\n")
    good, bad = evaluator.judge_programs(sandboxes, [right, wrong])
    assert (good.passed, good.inside, bad.passed, bad.inside) == (True, True, False, True)
    assert "could be forged" in good.note
    assert "could be forged" in bad.note


def test_arguments_that_are_not_plain_send_the_tests_inside_too(sandboxes: ProgramPool) -> None:
    test = "def check(candidate):\n    assert candidate(lambda: 3) == 3\n"
    calling = "def solve(f):\n    return f()\n"
    (verdict,) = evaluator.judge_programs(sandboxes, [ProgramJob(calling, "solve", calling, test)])
    assert verdict.passed
    assert verdict.inside


def test_a_program_cannot_send_the_tests_inside_where_the_reference_is_plain(sandboxes: ProgramPool) -> None:
    forger = ALWAYS_EQUAL_PROGRAM
    (verdict,) = evaluator.judge_programs(sandboxes, [make_job(forger)])
    assert not verdict.passed
    assert not verdict.inside
    assert evaluator.judge_programs(
        sandboxes, [ProgramJob(forger, "solve", REFERENCE_PROGRAM, REFERENCE_TEST, inside=True)]
    )[0].passed  # it would have


@pytest.mark.parametrize(
    "meta",
    [{}, {"entry_point": "solve"}, {"entry_point": "1; x", "test": ""}, {"entry_point": 3, "test": ""}],
)
def test_an_example_without_tests_is_the_tasks_fault(meta: dict[str, object]) -> None:
    with pytest.raises(GradingError, match=r"e1.*Fix the task"):
        evaluator.build_job(Example("e1", "def solve(x):\n", "    return x\n", meta), "")  # type: ignore[arg-type]
