"""Files that appear whole or not at all."""

from pathlib import Path

import pytest

from agent2rl.record.files import write_atomically


def test_a_file_is_replaced_whole_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "old")
    write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]
