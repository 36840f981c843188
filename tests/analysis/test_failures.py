"""Why attempts brought nothing, on a labelled set and on errors of real programs."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis.attempts import AgentSourceFile, PrintedText
from agent2rl.analysis.failures import AttemptContext, diagnose_attempt
from agent2rl.analysis.findings import EvidenceBook, Failure, FailureKind
from agent2rl.analysis.logs import extract_curves
from tests.analysis.labelled_failures import (
    BASE_CONTEXT,
    CRASH_LOG,
    CRASHING_CODE,
    FALLING_LOSS_LOG,
    LABELLED_ATTEMPTS,
    LOADER_PATH,
    OOM_LOG,
    LabelledAttempt,
    make_log,
    make_span,
    make_submission,
)
from tests.helpers.call_counter import count_calls


def failures(case: LabelledAttempt, book: EvidenceBook | None = None) -> tuple[Failure, ...]:
    seen = replace(case.seen, curves=extract_curves(case.span.printed))
    return diagnose_attempt(case.span, seen, book or EvidenceBook())


def first(text: str, **more: object) -> Failure:
    """Of an attempt that printed this and ended with an error."""
    return failures(
        LabelledAttempt(
            "no-gain", make_span(text), AttemptContext(**{**BASE_CONTEXT, "ending": "agent-failed", **more})
        )
    )[0]


@pytest.mark.parametrize("name", LABELLED_ATTEMPTS)
def test_the_first_reason_is_the_one_that_a_reader_would_give(name: str) -> None:
    found = failures(LABELLED_ATTEMPTS[name])
    assert [each.kind for each in found[:1]] == [LABELLED_ATTEMPTS[name].kind], found
    assert LABELLED_ATTEMPTS[name].says in found[0].message


def test_the_labelled_set_has_every_kind() -> None:
    assert len(LABELLED_ATTEMPTS) >= 25
    assert set(Counter(case.kind for case in LABELLED_ATTEMPTS.values())) == set(get_args(FailureKind))


@pytest.mark.parametrize("name", LABELLED_ATTEMPTS)
def test_every_reason_has_evidence_that_exists(name: str) -> None:
    book = EvidenceBook()
    found = failures(LABELLED_ATTEMPTS[name], book)
    known = {piece.id for piece in book.pieces}
    assert all(each.evidence and set(each.evidence) <= known for each in found)
    assert [each.confidence for each in found] == sorted((each.confidence for each in found), reverse=True)


def test_an_error_names_the_last_line_of_the_agents_own_code_and_the_last_of_all() -> None:
    book = EvidenceBook()
    found = failures(LABELLED_ATTEMPTS["a file that is not there"], book)[0]
    assert "/workspace/code/train.py:2" in found.message
    assert f"{LOADER_PATH}:3912" in found.message
    printed, code = (next(piece for piece in book.pieces if piece.id == each) for each in found.evidence)
    assert (printed.kind, printed.where) == ("log", "agent.log:20")
    assert (code.kind, code.where) == ("code", "revision 4, code/train.py:2")
    assert code.text == CRASHING_CODE.split("\n")[1].strip()


def test_an_attempt_that_improved_tells_only_what_broke_on_the_way() -> None:
    better = make_span(CRASH_LOG + FALLING_LOSS_LOG, make_submission(30.0))
    assert [
        each.kind for each in failures(LabelledAttempt("no-gain", better, AttemptContext(**BASE_CONTEXT)))
    ] == ["code-error"]
    hacked = replace(
        LABELLED_ATTEMPTS["its own reward, which is not the task's"].span, submission=make_submission(30.0)
    )
    assert failures(LabelledAttempt("no-gain", hacked, AttemptContext(**BASE_CONTEXT))) == ()


def test_memory_that_was_caught_is_no_setback_of_an_attempt_that_improved() -> None:
    text = make_log(lambda step: f"loss {2 / step}", 9) + OOM_LOG + "step 10 loss 0.2\nstep 11 loss 0.19\n"
    assert (
        failures(
            LabelledAttempt("no-gain", make_span(text, make_submission(30.0)), AttemptContext(**BASE_CONTEXT))
        )
        == ()
    )


def test_what_waits_for_its_grade_or_goes_on_has_not_failed() -> None:
    assert (
        failures(
            LabelledAttempt(
                "no-gain", make_span(FALLING_LOSS_LOG, make_submission()), AttemptContext(**BASE_CONTEXT)
            )
        )
        == ()
    )
    assert (
        failures(LabelledAttempt("no-gain", make_span(FALLING_LOSS_LOG), AttemptContext(**BASE_CONTEXT)))
        == ()
    )


def test_a_training_that_diverged_before_another_that_did_not_counts_less() -> None:
    text = make_log(lambda step: "loss nan" if step > 9 else "loss 2.0") + FALLING_LOSS_LOG
    found = failures(
        LabelledAttempt("no-gain", make_span(text, make_submission(20.0)), AttemptContext(**BASE_CONTEXT))
    )
    assert [each.kind for each in found] == ["no-gain", "diverged"]


def test_a_noisy_loss_has_not_diverged() -> None:
    text = make_log(lambda step: f"loss {2 + (step * 7919 % 13) / 5:.2f}")
    assert [
        each.kind
        for each in failures(
            LabelledAttempt("no-gain", make_span(text, make_submission(20.0)), AttemptContext(**BASE_CONTEXT))
        )
    ] == ["no-gain"]


def test_the_same_form_as_before_is_no_drift() -> None:
    case = LABELLED_ATTEMPTS["answers without their mark"]
    same = replace(case.seen, results=case.seen.baseline_results)
    assert "format-drift" not in {each.kind for each in failures(replace(case, seen=same))}


def test_an_error_in_another_log_than_the_training_weighs_less_than_the_end() -> None:
    busy = LABELLED_ATTEMPTS["training when the time ended"]
    both = replace(
        busy.span,
        printed=(PrintedText("agent.log", CRASH_LOG), PrintedText("code/train.log", FALLING_LOSS_LOG)),
    )
    assert [each.kind for each in failures(replace(busy, span=both))][:2] == ["timeout", "code-error"]


PROGRAMS = {
    "a chain": (
        (
            "def read():\n    return {}['rate']\n"
            "try:\n    read()\nexcept KeyError as error:\n    raise ValueError('bad settings') from error\n"
        ),
        "code-error",
        ("ValueError: bad settings", ":6", "after KeyError: 'rate'"),
    ),
    "a group": (
        (
            "def work(n):\n    raise RuntimeError(f'worker {n}')\n"
            "found = []\n"
            "for n in range(2):\n    try:\n        work(n)\n"
            "    except RuntimeError as error:\n        found.append(error)\n"
            "raise ExceptionGroup('workers', found)\n"
        ),
        "code-error",
        ("ExceptionGroup: workers (2 sub-exceptions)", ":2", "after RuntimeError: worker 0"),
    ),
    "a library": (
        "import json\njson.loads('{')\n",
        "code-error",
        ("JSONDecodeError", "program.py:2", "decoder.py"),
    ),
    "a program that does not parse": (
        "def train(\n    pass\n",
        "code-error",
        ("SyntaxError", "program.py:1"),
    ),
    "an error of its own kind": (
        "class Stuck(Exception):\n    pass\nraise Stuck('no\\nmove')\n",
        "code-error",
        ("Stuck: no", "program.py:3"),
    ),
    "memory": ("held = bytearray(1 << 62)\n", "out-of-memory", ("MemoryError", "program.py:1")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_of_a_real_program_is_read(name: str, tmp_path: Path) -> None:
    program, kind, says = PROGRAMS[name]
    file = tmp_path / "program.py"
    file.write_text(program)
    ended = subprocess.run([sys.executable, "-I", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    for text in (
        ended.stderr,
        "".join(f"[rank0]: {line}\n" for line in ended.stderr.splitlines()),
        json.dumps({"result": {"stderr": ended.stderr}}),
    ):
        found = first(f"starting\n{text}\n")
        assert found.kind == kind
        assert all(part in found.message for part in says), found.message


def test_a_file_is_known_by_the_end_of_its_path() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 2, in <module>\nValueError: no\n'
    book = EvidenceBook()
    case = make_span(text)
    case = replace(
        case,
        sources=(
            AgentSourceFile(3, "notes/other.py", ""),
            AgentSourceFile(3, "code/train.py", CRASHING_CODE),
        ),
    )
    diagnose_attempt(case, AttemptContext(ending="agent-failed"), book)
    assert "revision 3, code/train.py:2" in {piece.where for piece in book.pieces}


LINES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in f',
        '  File "train.py", line 999999',
        "    x = 1",
        "ValueError: no",
        "MemoryError",
        "During handling of the above exception, another exception occurred:",
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "x.py", line 1, in g',
        "  | ExceptionGroup: a (1 sub-exception)",
        "Killed",
        "step 3 loss nan",
        "step 4 loss 2.0 reward 0.5",
        "exit code 137",
        "\x1b[31m\x00",
        "",
    ]
)


@hypothesis.settings(max_examples=80)
@given(
    st.lists(LINES | st.text(max_size=30), max_size=40),
    st.sampled_from([None, "completed", "deadline", "agent-failed"]),
)
def test_any_text_is_diagnosed_and_the_same_way_twice(lines: list[str], ending: str | None) -> None:
    context = AttemptContext(**BASE_CONTEXT, ending=ending)  # type: ignore[arg-type]
    case = LabelledAttempt("no-gain", make_span("\n".join(lines)), context)
    one, other = EvidenceBook(), EvidenceBook()
    assert failures(case, one) == failures(case, other)
    assert one.pieces == other.pieces


@pytest.mark.timeout(120)  # a regex that takes quadratic time is not done by then
@pytest.mark.parametrize(
    "unit", ["Traceback (most recent call last):\n", CRASH_LOG, "Killed\n", "step 1 loss 1\nKilled\n"]
)
def test_work_grows_with_the_log_and_not_with_its_square(unit: str) -> None:
    def diagnose(size: int) -> None:
        span = make_span(unit * (size // len(unit)))
        failures(LabelledAttempt("no-gain", span, AttemptContext(**BASE_CONTEXT)))

    few, many = (count_calls(partial(diagnose, size)) for size in (10_000, 80_000))
    assert many < 12 * few
    diagnose(400_000)
