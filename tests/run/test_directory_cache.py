"""What is slow to make is made once, and believed only while it is as it was made."""

import threading
import time
from pathlib import Path

import pytest

from agent2rl.core.errors import MachineError, UserError
from agent2rl.run.directory_cache import build_once, store_by_content


class Maker:
    def __init__(self, seconds: float = 0) -> None:
        self.times = 0
        self._seconds = seconds

    def __call__(self, directory: Path) -> None:
        self.times += 1
        (directory / "weights").write_bytes(b"w" * 1000)
        time.sleep(self._seconds)
        (directory / "config").write_text("c")


def test_it_is_made_once(tmp_path: Path) -> None:
    make = Maker()
    for _ in range(3):
        assert build_once(tmp_path / "models" / "m", make) == tmp_path / "models" / "m"
    assert make.times == 1
    assert sorted(path.name for path in (tmp_path / "models" / "m").iterdir()) == ["config", "weights"]


@pytest.mark.parametrize("damage", ["byte", "gone", "more", "record"])
def test_it_is_made_anew_when_it_is_damaged(tmp_path: Path, damage: str) -> None:
    make, target = Maker(), tmp_path / "m"
    build_once(target, make)
    match damage:
        case "byte":
            (target / "weights").write_bytes(b"w" * 999 + b"x")
        case "gone":
            (target / "config").unlink()
        case "more":
            (target / "stray").touch()
        case "record":
            (tmp_path / "m.json").write_text("{")
    build_once(target, make)
    build_once(target, make)
    assert make.times == 2
    assert (target / "weights").read_bytes() == b"w" * 1000
    assert not (target / "stray").exists()


def test_two_who_want_it_at_once_wait_for_one(tmp_path: Path) -> None:
    make = Maker(seconds=0.3)
    threads = [threading.Thread(target=build_once, args=(tmp_path / "m", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.times == 1


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "weights").write_bytes(b"half")
        raise UserError("no")

    with pytest.raises(UserError):
        build_once(tmp_path / "m", fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert build_once(tmp_path / "m", Maker()).is_dir()


def test_a_disk_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be prepared"):
        build_once(tmp_path / "file" / "m", Maker())


def test_what_is_kept_by_content_lies_beside_others_of_its_name_and_is_mended_when_damaged(
    tmp_path: Path,
) -> None:
    first, one = store_by_content(tmp_path, "shop", lambda place: _write(place, "a"))
    second, two = store_by_content(tmp_path, "shop", lambda place: _write(place, "b"))
    (first / "text").write_text("damaged")

    again, same = store_by_content(tmp_path, "shop", lambda place: _write(place, "a"))

    assert (again, same) == (first, one)
    assert (first / "text").read_text() == "a"
    assert (second / "text").read_text() == "b"
    assert one != two
    kept = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")}
    assert kept == {first.name, second.name}


def _write(place: Path, text: str) -> None:
    (place / "text").write_text(text)
