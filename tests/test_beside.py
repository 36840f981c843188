"""Folders that lie beside the examples: gradings read them, agents do not."""

import os
from pathlib import Path

import pytest

from agent2rl.core import beside as place
from agent2rl.core.beside import beside
from agent2rl.core.errors import GradingError
from tests.beside_gsm8k import FILE
from tests.runs import Bench

HERE = str(Path(__file__).resolve().parents[1])
TASK = "tests.beside_gsm8k:TASK"


def test_a_grading_reads_what_lies_beside_the_examples_and_the_agent_cannot_find_it(bench: Bench) -> None:
    done = bench.run(
        f"""
found = [folder for folder, _, names in os.walk("/") if {FILE!r} in names]
say(found=found, told=os.environ.get("AGENT2RL_BESIDE"), verdict=submit(trained("v1")))
""",
        *("--task", TASK, "--budget", "60s"),
        PYTHONPATH=HERE,
    )

    assert done.result.ending == "completed", done.errors
    assert done.said["found"] == []
    assert done.said["told"] is None
    assert done.result.baseline is not None
    assert done.result.best is not None
    assert done.result.best.score is not None
    assert done.result.best.score.value > done.result.baseline.value
    assert [asset.name for asset in done.result.assets][-1] == "beside answers"


def test_outside_a_grading_there_is_nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(place.VARIABLE, raising=False)

    with pytest.raises(GradingError, match="only a grading"):
        beside("answers")


def test_a_folder_that_the_task_does_not_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, place.VARIABLE, str(tmp_path))

    with pytest.raises(GradingError, match="no folder 'answers'"):
        beside("answers")
