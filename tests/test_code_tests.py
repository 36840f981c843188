"""Right programs pass, wrong ones fail, and hostile ones fail alone and leave nothing behind."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent2rl.core.errors import GradingError
from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests import evaluator, pool
from agent2rl.evaluators.code_tests.pool import Job, Pool
from tests.programs import ALWAYS_EQUAL, HOSTILE, REFERENCE, TEST, job, sandboxed_pool


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with sandboxed_pool(tmp_path_factory.mktemp("programs")) as found:
        yield found


def test_a_right_program_passes_and_a_wrong_one_fails(sandboxes: Pool) -> None:
    right, wrong = sandboxes.judge([job(REFERENCE), job("def solve(x):\n    return x\n")])
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
def test_the_note_says_why_a_program_failed(sandboxes: Pool, program: str, note: str) -> None:
    (verdict,) = sandboxes.judge([job(program)])
    assert not verdict.passed
    assert verdict.note.startswith(note)


def test_the_tests_see_what_the_prompt_defines_and_the_function_by_its_name(sandboxes: Pool) -> None:
    helper = "import math\ndef half(x):\n    return x / 2\n"
    test = "def check(candidate):\n    assert half(solve(2)) == candidate(1) - math.sqrt(0.25)\n"
    (verdict,) = sandboxes.judge([job(REFERENCE, test, helper + REFERENCE)])
    assert verdict.passed


def test_a_program_keeps_its_state_between_the_calls_of_one_check(sandboxes: Pool) -> None:
    counting = "seen = []\ndef solve(x):\n    seen.append(x)\n    return len(seen)\n"
    test = "def check(candidate):\n    assert [candidate(0) for _ in range(3)] == [1, 2, 3]\n"
    assert [
        verdict.passed for verdict in sandboxes.judge([job(counting, test), job(counting + "\n", test)])
    ] == [True] * 2


def test_tests_may_expect_errors_and_errors_keep_their_type_and_text(sandboxes: Pool) -> None:
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
    (verdict,) = sandboxes.judge([job(program, test)])
    assert verdict.passed


def test_a_program_cannot_pass_tests_that_catch_everything_by_dying(sandboxes: Pool) -> None:
    lenient = (
        "def check(candidate):\n    try:\n        candidate(1)\n    except BaseException:\n        pass\n"
    )
    died, raised = sandboxes.judge(
        [
            job("import os\ndef solve(x):\n    os._exit(0)\n", lenient),
            job("def solve(x):\n    1 / 0\n", lenient),
        ]
    )
    assert not died.passed
    assert raised.passed  # as it would in any executor


def test_arguments_are_copies_so_that_no_program_can_change_what_it_is_compared_with(sandboxes: Pool) -> None:
    program = "def solve(xs):\n    xs.clear()\n    return []\n"
    test = "def check(candidate):\n    xs = [3, 1, 2]\n    assert candidate(xs) == sorted(xs)\n"
    (verdict,) = sandboxes.judge([job(program, test)])
    assert not verdict.passed


def test_random_tests_are_the_same_for_every_program(sandboxes: Pool) -> None:
    test = "import random\ndef check(candidate):\n    raise ValueError(str(random.random()))\n"
    first, second = sandboxes.judge([job(REFERENCE, test), job(REFERENCE + "\n", test)])
    assert first.note == second.note


def test_there_are_at_least_40_hostile_programs() -> None:
    assert len(HOSTILE) >= 40
    assert {kind for kind, _ in HOSTILE} == {"forge", "kill", "hang", "flood", "spawn", "recurse"}


def test_hostile_programs_fail_and_do_not_slow_what_comes_after(sandboxes: Pool, tmp_path: Path) -> None:
    honest = [job(f"{REFERENCE}# {number}\n") for number in range(100)]

    def seconds() -> float:
        """The best of three: the machine has other work."""
        taken = []
        for _ in range(3):
            began = time.monotonic()
            assert all(verdict.passed for verdict in sandboxes.judge(honest))
            taken.append(time.monotonic() - began)
        return min(taken)

    before = seconds()
    jobs = [job(source) for source in HOSTILE.values()]
    verdicts = dict(zip(HOSTILE, sandboxes.judge(jobs), strict=True))
    assert {key: verdict.note for key, verdict in verdicts.items() if verdict.passed} == {}
    assert seconds() < 1.5 * before + 0.2


@pytest.mark.parametrize("place", ["/tmp/left", "/dev/shm/left", "/workspace/left", "/home/agent/left"])
def test_nothing_that_a_program_writes_is_there_for_the_next(sandboxes: Pool, place: str) -> None:
    write = f"def solve(x):\n    open({place!r}, 'w').write('x')\n"
    read = f"import os\ndef solve(x):\n    return os.path.exists({place!r})\n"
    test = "def check(candidate):\n    assert candidate(1) is False\n"
    sandboxes.judge([job(write)] * 2)
    assert [verdict.passed for verdict in sandboxes.judge([job(read, test)] * 4)] == [True] * 4


SEES = """
import importlib.util, os
def solve(what):
    if what == "files":
        found = []
        for place in ("/etc/passwd", "/proc/self/status", "/proc/1/cmdline", "/workspace", "/usr/bin", "/"):
            try:
                os.listdir(place) if os.path.isdir(place) else open(place).read()
                found.append(place)
            except OSError:
                pass
        return found
    if what == "packages":
        return [name for name in ("numpy", "torch", "pydantic") if importlib.util.find_spec(name)]
    if what == "environment":
        return sorted(set(os.environ) & {"HOME", "SECRET", "AGENT2RL_PROGRAMS", "VIRTUAL_ENV"} - {"HOME"})
    if what == "descriptors":
        return [fd for fd in range(64) if can(fd)]
def can(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False
"""


def test_a_program_sees_the_interpreter_and_nothing_else(sandboxes: Pool) -> None:
    test = """
def check(candidate):
    assert candidate("files") == [], candidate("files")
    assert candidate("packages") == [], candidate("packages")
    assert set(candidate("environment")) <= {"VIRTUAL_ENV"}, candidate("environment")
    assert candidate("descriptors") == [0, 1, 2, 3], candidate("descriptors")
"""
    (verdict,) = sandboxes.judge([job(SEES, test)])
    assert verdict.passed, verdict.note


def test_a_pool_of_its_own_is_for_agents_and_is_shut_in_too() -> None:
    with Pool(own=1) as own:
        verdicts = own.judge(
            [
                job(REFERENCE),
                job(ALWAYS_EQUAL),
                job(HOSTILE["kill", "kills everybody"]),
            ]
        )
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_workers_that_crash_in_a_loop_do_not_stall_the_others(tmp_path: Path) -> None:
    with sandboxed_pool(tmp_path, count=2) as healthy:
        sockets = [worker._socket for worker in healthy._workers]
        dead = [tmp_path / "nobody" / "sock", tmp_path / "nowhere" / "sock"]
        with Pool([*dead, *sockets]) as mixed:
            assert all(
                verdict.passed for verdict in mixed.judge([job(f"{REFERENCE}# {n}\n") for n in range(40)])
            )


def test_servers_that_die_with_every_program_are_started_again_and_the_pool_goes_on(tmp_path: Path) -> None:
    """What kills a server from outside here stands for whatever might from inside."""
    with Pool(own=2) as own:
        servers = own._servers
        stop = time.monotonic() + 3

        def shoot(done: int) -> None:
            if time.monotonic() < stop:
                for server in servers:
                    server._process.kill()

        verdicts = own.judge([job(f"{REFERENCE}# {number}\n") for number in range(60)], shoot)
    assert len(verdicts) == 60
    assert sum(verdict.passed for verdict in verdicts) >= 55


def test_without_any_server_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 0.5)
    with Pool([tmp_path / "sock"]) as nobody, pytest.raises(GradingError, match="No sandbox"):
        nobody.judge([job(REFERENCE)])


GENERATOR = Example(
    "g",
    "def solve(n):\n",
    "    yield from range(n)\n",
    {"entry_point": "solve", "test": "def check(candidate):\n    assert list(candidate(3)) == [0, 1, 2]\n"},
)


def test_where_data_is_not_plain_tests_run_inside_and_the_verdict_is_marked(sandboxes: Pool) -> None:
    right = evaluator.job(GENERATOR, GENERATOR.target)
    wrong = evaluator.job(GENERATOR, "    yield 7\n")
    good, bad = evaluator.judge(sandboxes, [right, wrong])
    assert (good.passed, good.inside, bad.passed, bad.inside) == (True, True, False, True)
    assert "could be forged" in good.note
    assert "could be forged" in bad.note


def test_arguments_that_are_not_plain_send_the_tests_inside_too(sandboxes: Pool) -> None:
    test = "def check(candidate):\n    assert candidate(lambda: 3) == 3\n"
    calling = "def solve(f):\n    return f()\n"
    (verdict,) = evaluator.judge(sandboxes, [Job(calling, "solve", calling, test)])
    assert verdict.passed
    assert verdict.inside


def test_a_program_cannot_send_the_tests_inside_where_the_reference_is_plain(sandboxes: Pool) -> None:
    forger = ALWAYS_EQUAL
    (verdict,) = evaluator.judge(sandboxes, [job(forger)])
    assert not verdict.passed
    assert not verdict.inside
    assert evaluator.judge(sandboxes, [Job(forger, "solve", REFERENCE, TEST, inside=True)])[
        0
    ].passed  # it would have


@pytest.mark.parametrize(
    "meta",
    [{}, {"entry_point": "solve"}, {"entry_point": "1; x", "test": ""}, {"entry_point": 3, "test": ""}],
)
def test_an_example_without_tests_is_the_tasks_fault(meta: dict[str, object]) -> None:
    with pytest.raises(GradingError, match=r"e1.*Mend the task"):
        evaluator.job(Example("e1", "def solve(x):\n", "    return x\n", meta), "")  # type: ignore[arg-type]
