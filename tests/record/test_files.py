"""Files that appear whole or not at all."""

import io
import resource
import sys
import tarfile
from pathlib import Path

import pytest

from agent2rl.record.files import append_whole_line, extract_archive, write_atomically


def test_a_file_is_replaced_whole_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "old")
    write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]


def test_a_line_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_whole_line(path, '{"first": 1}\n')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # in the middle of the second line
    try:
        with pytest.raises(OSError, match="File too large"):
            append_whole_line(path, '{"second": 2}\n')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append_whole_line(path, '{"third": 3}\n')
    assert path.read_text() == '{"first": 1}\n{"third": 3}\n'


@pytest.fixture(params=[True, False], ids=["python's filter", "without it"])
def python_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has a filter of its own from 3.11.4."""
    if not request.param:
        if sys.version_info >= (3, 12):
            pytest.skip("this Python always has a filter of its own")
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)


def make_archive(*members: tuple[str, str]) -> tarfile.TarFile:
    """An archive of files, and of links to what is behind an arrow (`->` symbolic, `=>` hard)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o4777
            if content.startswith(("->", "=>")):
                member.type = tarfile.SYMTYPE if content.startswith("->") else tarfile.LNKTYPE
                member.linkname = content[2:]
            member.size = 0 if member.linkname else len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    stream.seek(0)
    return tarfile.open(fileobj=stream, mode="r|")


@pytest.mark.usefixtures("python_version")
def test_an_archive_is_extracted_with_its_links_and_without_special_rights(tmp_path: Path) -> None:
    members = (("run/file", "text"), ("run/link", "->/etc/passwd"), ("run/again", "=>run/file"))
    with make_archive(*members) as archive:
        extract_archive(archive, tmp_path)
    assert (tmp_path / "run" / "again").read_text() == "text"
    assert str((tmp_path / "run" / "link").readlink()) == "/etc/passwd"
    assert (tmp_path / "run" / "file").stat().st_mode & 0o7777 == 0o755


@pytest.mark.usefixtures("python_version")
@pytest.mark.parametrize(
    "members",
    [
        [("../outside", "x")],
        [("run/out", "->.."), ("run/out/../outside", "x")],
        [("run", "->../place"), ("run/outside", "x")],
        [("secret", "=>../given")],
    ],
)
def test_no_member_of_an_archive_lands_outside(tmp_path: Path, members: list[tuple[str, str]]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "place").mkdir()
    (tmp_path / "given").write_text("x")
    with make_archive(*members) as archive, pytest.raises(tarfile.TarError):
        extract_archive(archive, tmp_path / "in")
    assert not [*tmp_path.rglob("outside")]
    assert not (tmp_path / "in" / "secret").exists()
