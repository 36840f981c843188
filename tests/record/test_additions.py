"""What is added to a closed run has a chain of its own that begins with the run's last hash."""

from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.ledger import Ledger, append_addition, read_additions
from agent2rl.record.paths import RunPaths

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
