"""Demonstrations of an expert as a file."""

from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.training.demonstrations import (
    DEMONSTRATIONS_FILE,
    Demonstration,
    DemonstrationTurn,
    format_demonstrations,
    read_demonstrations,
)

GAMES = [
    Demonstration(
        game="stairs-1",
        kind="stairs",
        turns=(DemonstrationTurn(observation="You stand on step 0.\u2028Climb.", action="up"),),
    ),
    Demonstration(game="stairs-2", turns=()),
]


def test_demonstrations_are_read_from_a_file_or_a_data_directory(tmp_path: Path) -> None:
    file = tmp_path / DEMONSTRATIONS_FILE
    file.write_text(format_demonstrations(GAMES), encoding="utf-8")
    assert read_demonstrations(file) == read_demonstrations(tmp_path) == GAMES


def test_a_data_directory_without_the_file_has_no_demonstrations(tmp_path: Path) -> None:
    assert read_demonstrations(tmp_path) == []


@pytest.mark.parametrize("text", ["[]", '{"game": 1}', "no json"])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"mine\.jsonl"):
        read_demonstrations(tmp_path / "mine.jsonl")
    with pytest.raises(UserError, match="missing"):
        read_demonstrations(tmp_path / "missing.jsonl")
