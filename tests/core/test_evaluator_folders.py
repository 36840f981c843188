"""Folders that lie beside the examples: gradings read them, agents do not."""

import os
from pathlib import Path

import pytest

from agent2rl.core import task as place
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.task import Splits, require_evaluator_folder
from agent2rl.run.assets import prepare_evaluator_folders
from tests.core.gsm8k_with_answer_folder import ANSWERS_FILE
from tests.helpers.run_launcher import RunLauncher

HERE = str(Path(__file__).resolve().parents[2])
TASK = "tests.core.gsm8k_with_answer_folder:TASK"


def test_a_grading_reads_what_lies_beside_the_examples_and_the_agent_cannot_find_it(
    launcher: RunLauncher,
) -> None:
    done = launcher.run(
        f"""
search = "find / ( -path /proc -o -path /sys ) -prune -o -name {ANSWERS_FILE} -print"
found = subprocess.run(search.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
folders = os.environ.get("AGENT2RL_EVALUATOR_FOLDERS")
say(found=found.splitlines(), told=folders, verdict=submit(trained("v1")))
""",
        *("--task", TASK, "--budget", "20m"),
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
    assert str(done.result.baseline.how["evaluator"]).startswith("beside-")


def test_outside_a_grading_there_is_nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(place.FOLDER_VARIABLE, raising=False)

    with pytest.raises(GradingError, match="only during grading"):
        require_evaluator_folder("answers")


def test_a_folder_that_the_task_does_not_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, place.FOLDER_VARIABLE, str(tmp_path))

    with pytest.raises(GradingError, match="no folder 'answers'"):
        require_evaluator_folder("answers")


@pytest.mark.parametrize("what", ["link", "dangling", "pipe"])
def test_a_folder_that_a_grading_could_not_read_whole_is_refused_at_once(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "elsewhere").write_text("x")
    match what:
        case "link":
            (folder / "items.json").symlink_to(tmp_path / "elsewhere")
        case "dangling":
            (folder / "items.json").symlink_to(tmp_path / "nowhere")
        case _:
            os.mkfifo(folder / "items.json")
    splits = Splits(train=(), feedback=(), heldout=(), evaluator_folders={"shop": folder})

    with pytest.raises(UserError, match=r"items\.json is (a link|not a plain file)"):
        prepare_evaluator_folders(splits, tmp_path / "cache")


def test_what_is_kept_for_gradings_is_closed_to_others(tmp_path: Path) -> None:
    made = Splits(
        train=(), feedback=(), heldout=(), evaluator_folders={"shop": lambda place: (place / "x").touch()}
    )

    found = prepare_evaluator_folders(made, tmp_path / "cache" / "tasks" / "t")

    assert found["shop"].path.is_relative_to(tmp_path / "cache" / "tasks" / "t")
    for folder in ("cache", "cache/tasks", "cache/tasks/t", "cache/tasks/t/beside"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
