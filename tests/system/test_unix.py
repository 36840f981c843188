"""What only Unix has: as it is where it is there, and an error that says so where it is not."""

import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl.core.errors import MachineError
from agent2rl.system import unix


def test_on_linux_flags_and_modules_are_the_real_ones() -> None:
    flags = [name for name in vars(unix) if name.startswith("O_")]
    assert len(flags) == 5
    assert {name: getattr(unix, name) for name in flags} == {name: getattr(os, name) for name in flags}
    assert unix.import_if_present("fcntl") is fcntl


def test_a_missing_module_can_be_imported_and_fails_when_it_is_used() -> None:
    missing = unix.import_if_present("no_such_module")
    with pytest.raises(MachineError, match=r"This needs Linux: Python has no no_such_module\.flock"):
        missing.flock(0)


def test_a_part_of_a_file_is_read_with_and_without_pread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb") as file:
        assert unix.read_at(file.fileno(), 3, 4) == b"456"
        monkeypatch.delattr(os, "pread")
        assert unix.read_at(file.fileno(), 3, 8) == b"89"


RETAIN_MEMORY = """
import os
from pathlib import Path
from agent2rl.system.unix import release_free_memory

def read_resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

blocks = [b"x" * 100_000 for _ in range(1000)]
del blocks[:-1]  # the last one keeps the C library from giving the others back
before = read_resident_megabytes()
release_free_memory()
print(before - read_resident_megabytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives memory back itself")
def test_memory_that_was_freed_is_given_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", RETAIN_MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60
