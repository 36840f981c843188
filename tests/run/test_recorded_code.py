"""Which files of the recorded code a reproduction gets: nothing that could be weights."""

import base64
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

import agent2rl
from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import RecordedStep
from agent2rl.record.workspace_reader import SnapshotFile, make_placeholder
from agent2rl.run.recorded_code import (
    MOST_DATA_CHARACTERS,
    count_recorded_data,
    sort_files,
    write_recorded_code,
)

WEIGHTS = random.Random(0).randbytes(60_000)


def make_files(texts: Iterable[tuple[str, bytes]]) -> list[SnapshotFile]:
    return [SnapshotFile(tuple(map(os.fsencode, path.split("/"))), 0o100644, text) for path, text in texts]


def test_ordinary_code_is_given() -> None:
    package = Path(agent2rl.__file__).parent
    sources = [(f"code/{path.name}", path.read_bytes()) for path in package.glob("training/*.py")]
    assert sort_files(make_files(sources)).withheld == {}


@pytest.mark.parametrize(
    "text",
    [
        base64.encodebytes(WEIGHTS),
        base64.b85encode(WEIGHTS),
        WEIGHTS.hex().encode(),
        WEIGHTS.hex().translate(str.maketrans("0123456789", "ghijklmnop")).encode(),
        b"WEIGHTS = " + json.dumps([each / 256 for each in WEIGHTS]).encode(),
        b"import base64\n" * 100 + b"DATA = '" + base64.b64encode(WEIGHTS) + b"'",
    ],
    ids=["base64", "base85", "hex", "letters", "numbers", "in-a-script"],
)
def test_weights_written_as_text_are_withheld(text: bytes) -> None:
    sorted_files = sort_files(make_files([("code/train.py", b"print(1)\n"), ("code/data.txt", text)]))
    assert list(sorted_files.withheld) == ["code/data.txt"]
    assert [file.path[-1] for file in sorted_files.given] == [b"train.py"]


def test_weights_cut_into_many_small_files_are_withheld() -> None:
    text = base64.b64encode(WEIGHTS)
    pieces = [(f"code/{at}.txt", text[at : at + 900]) for at in range(0, len(text), 900)]
    given = sort_files(make_files(pieces)).given
    assert sum(len(file.content) for file in given) < 1000


def test_models_archives_links_and_what_was_not_recorded_are_withheld() -> None:
    link = SnapshotFile((b"code", b"link"), 0o120000, b"/etc/passwd")
    named = [("code/model.safetensors", make_placeholder(WEIGHTS)), ("code/small.pt", b"text")]
    other = [("code/plot.png", make_placeholder(WEIGHTS)), ("code/train.py", b"print(1)\n")]
    withheld = sort_files([link, *make_files([*named, *other])]).withheld
    assert withheld == {
        "code/link": "it is a link",
        "code/model.safetensors": "it is a model or an archive",
        "code/small.pt": "it is a model or an archive",
        "code/plot.png": "it is binary or large and was not recorded",
    }


def test_no_path_of_the_code_leads_out_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    hostile = [
        SnapshotFile((b"..", b"out.py"), 0o100644, b""),
        SnapshotFile((b"agent", b"..", b"..", b"out.py"), 0o100644, b""),
        SnapshotFile((b"code", b"/out.py"), 0o100644, b""),
        SnapshotFile((b"agent", b".replay", b"replay.py"), 0o100644, b"HOSTILE"),
    ]
    steps = (RecordedStep(argv=("true",)),)
    write_recorded_code(folder, hostile, steps, "output/v1", 1)
    assert [path.name for path in tmp_path.rglob("out.py")] == []
    assert b"HOSTILE" not in (folder / ".replay" / "replay.py").read_bytes()


def test_names_of_files_and_words_of_commands_count_as_data() -> None:
    text = base64.urlsafe_b64encode(WEIGHTS).decode()
    names = [text[at : at + 200] for at in range(0, 20_000, 200)]
    assert count_recorded_data(make_files((name, b"") for name in names), ()) > MOST_DATA_CHARACTERS
    assert count_recorded_data((), names) > MOST_DATA_CHARACTERS
    package = Path(agent2rl.__file__).parent
    sources = [(str(path.relative_to(package)), path.read_bytes()) for path in package.rglob("*.py")][:150]
    assert count_recorded_data(make_files(sources), ["python", "code/train.py", "--rate", "1e-5"]) == 0


def test_hidden_files_beside_the_replay_program_are_not_written(tmp_path: Path) -> None:
    """Python would import them in place of the standard library."""
    hostile = [
        SnapshotFile((b"agent", b".replay", b"json.py"), 0o100644, b"HOSTILE"),
        SnapshotFile((b"agent", b".replay"), 0o100644, b"HOSTILE"),
    ]
    write_recorded_code(tmp_path / "inside", hostile, (RecordedStep(argv=("true",)),), "output/v1", 1)
    assert not (tmp_path / "inside" / ".replay" / "json.py").exists()


def test_code_that_no_disk_can_hold_is_an_error_and_no_crash(tmp_path: Path) -> None:
    twice = [SnapshotFile(path, 0o100644, b"") for path in ((b"code",), (b"code", b"train.py"))]
    with pytest.raises(UserError, match="cannot be written"):
        write_recorded_code(tmp_path / "inside", twice, (RecordedStep(argv=("true",)),), "output/v1", 1)
