"""What is added to a closed run has a chain of its own that begins with the run's last hash."""

import os
from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.ledger import Ledger, append_addition, read_additions
from agent2rl.record.paths import RunPaths
from agent2rl.record.run_lock import RunLock

ANSWER = Reproduction(at=1.0, submission=1, revision=1, answer="cannot", reason="no reason")


def close_run(folder: Path) -> tuple[RunPaths, str]:
    folder.mkdir()
    paths = RunPaths(folder)
    ledger = Ledger(paths.ledger, paths.ledger_head)
    ledger.append("closed", {"run": folder.name})
    ledger.close()
    return paths, ledger.last


def test_additions_are_read_in_order_and_the_ledger_stays_as_it_was(tmp_path: Path) -> None:
    paths, head = close_run(tmp_path / "run")
    before = paths.ledger.read_bytes()
    assert read_additions(paths, head).list_reproductions() == ()
    for number in (1, 2):
        added = ANSWER.model_copy(update={"submission": number})
        append_addition(paths, "reproduction", added.model_dump(mode="json"))
    assert [each.submission for each in read_additions(paths, head).list_reproductions()] == [1, 2]
    assert paths.ledger.read_bytes() == before


def test_additions_of_another_run_show(tmp_path: Path) -> None:
    paths, _ = close_run(tmp_path / "run")
    append_addition(paths, "reproduction", ANSWER.model_dump(mode="json"))
    other, head = close_run(tmp_path / "other")
    for name in ("additions.jsonl", "additions.head"):
        (other.root / name).write_bytes((paths.root / name).read_bytes())
    assert read_additions(other, head).fault == (
        "additions.jsonl: it belongs to another record than this ledger"
    )
    with pytest.raises(UserError, match="another record"):
        append_addition(other, "reproduction", ANSWER.model_dump(mode="json"))


def test_a_crash_in_the_middle_of_a_line_loses_that_line_alone(tmp_path: Path) -> None:
    paths, head = close_run(tmp_path / "run")
    paths.additions.write_text('{"data":{"ledger_he')
    assert read_additions(paths, head).fault is None
    append_addition(paths, "reproduction", ANSWER.model_dump(mode="json"))
    with paths.additions.open("a") as file:
        file.write('{"data":')
    assert read_additions(paths, head).list_reproductions() == (ANSWER,)


@pytest.mark.parametrize("content", ["precious, without a line end", None], ids=["file", "nothing"])
@pytest.mark.parametrize("name", ["additions.jsonl", "additions.head"])
def test_nothing_is_added_through_a_link(tmp_path: Path, name: str, content: str | None) -> None:
    """A run of somebody else may have one, and it may lead to a file of the user's."""
    paths, _ = close_run(tmp_path / "run")
    outside = tmp_path / "outside"
    if content:
        outside.write_text(content)
    (paths.root / name).symlink_to(outside)
    with pytest.raises(UserError, match="neither a file nor a folder"):
        append_addition(paths, "reproduction", ANSWER.model_dump(mode="json"))
    assert (outside.read_text() if outside.exists() else None) == content


def test_a_lock_that_is_a_link_or_a_pipe_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(UserError, match="neither a file nor a folder"):
            RunLock(tmp_path / name)
    assert not (tmp_path / "made").exists()
