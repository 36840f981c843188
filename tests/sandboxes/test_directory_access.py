"""The right to pass through closed directories: for one user, while it is needed, and without a trace."""

import os
import subprocess
from pathlib import Path

import pytest

from agent2rl.sandboxes.directory_access import ACL, PASS, USER, AclEntry, let_user_pass, read_acl

UID = 0x60000001


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory of mode 0700 with a file in an open directory of it."""
    place = tmp_path / "closed"
    (place / "open").mkdir(parents=True)
    (place / "open" / "file").write_text("content")
    place.chmod(0o700)
    try:
        with let_user_pass(UID, [place / "open"]):
            pass
    except Exception as error:
        pytest.skip(f"no access control lists here: {error}")
    return place


def list_entries(directory: Path) -> list[AclEntry]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return read_acl(descriptor)
    finally:
        os.close(descriptor)


def test_a_user_may_pass_and_not_list_and_afterwards_nothing_is_left(closed: Path) -> None:
    with let_user_pass(UID, [closed / "open" / "file"]):
        assert AclEntry(USER, UID, PASS) in list_entries(closed)
        assert closed.stat().st_mode & 0o007 == 0
    assert closed.stat().st_mode & 0o777 == 0o700
    assert ACL not in os.listxattr(closed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_user_reaches_what_is_below(closed: Path) -> None:
    read = ["cat", str(closed / "open" / "file")]
    with let_user_pass(UID, [closed]):
        assert_passes_only_while_allowed(closed, read)


def assert_passes_only_while_allowed(closed: Path, read: list[str]) -> None:
    assert subprocess.run(read, user=UID, check=False, capture_output=True).returncode != 0
    with let_user_pass(UID, [closed / "open" / "file"]):
        assert subprocess.run(read, user=UID, check=False, capture_output=True).stdout == b"content"
        listed = subprocess.run(["ls", str(closed)], user=UID, check=False, capture_output=True)
        assert listed.returncode != 0
    assert subprocess.run(read, user=UID, check=False, capture_output=True).returncode != 0


def test_several_sandboxes_and_users_share_a_directory(closed: Path) -> None:
    with let_user_pass(UID, [closed / "open"]), let_user_pass(UID + 1, [closed / "open"]):
        with let_user_pass(UID, [closed / "open"]):
            pass
        assert {entry.name for entry in list_entries(closed) if entry.tag == USER} == {UID, UID + 1}
    assert closed.stat().st_mode & 0o777 == 0o700


def test_open_directories_are_left_alone(closed: Path) -> None:
    with let_user_pass(UID, [closed / "open" / "file"]):
        assert ACL not in os.listxattr(closed / "open")


def test_the_way_through_a_link_is_opened_on_both_sides(closed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "link").symlink_to(closed / "open")
    with let_user_pass(UID, [other / "link" / "file"]):
        for directory in (other, closed):
            assert AclEntry(USER, UID, PASS) in list_entries(directory)
