"""The sandbox of docs/adding-a-sandbox.md keeps what it promises, from the outside too."""

import re
import time
import uuid
from pathlib import Path
from types import ModuleType

import pytest

from agent2rl.core.sandbox import BARE_PYTHON, Mount, Sandbox
from tests.helpers.sandbox_runner import (
    MIB,
    SandboxRunner,
    find_processes_by_token,
    is_bubblewrap_allowed,
    make_daemon_command,
)
from tests.helpers.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-sandbox.md"
EXAMPLE = re.compile(r"^```python title=\S+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    if not is_bubblewrap_allowed():
        pytest.skip("bubblewrap cannot run here")
    (code,) = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    module = ModuleType("plain")
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    own: Sandbox = module.SANDBOX
    return own


@pytest.fixture
def cell(sandbox: Sandbox, tmp_path: Path) -> SandboxRunner:
    return SandboxRunner(sandbox, tmp_path)


def test_it_keeps_every_promise(sandbox: Sandbox) -> None:
    isolation = sandbox.check()
    assert (isolation.level, isolation.broken, len(isolation.promises)) == ("full", (), 16)


def test_its_processes_are_gone_at_the_end_however_it_comes(cell: SandboxRunner) -> None:
    token = uuid.uuid4().hex
    assert cell.shell(f"{make_daemon_command(token)}; exit 3").code == 3
    assert find_processes_by_token(token) == []
    began = time.monotonic()
    deadline = cell.due_once("started")
    done = cell.shell(f"trap '' INT; {make_daemon_command(token)}; touch started; sleep 300", **deadline)
    assert (done.reason, done.code) == ("deadline", None)
    assert time.monotonic() - began < 60
    wait_until(lambda: find_processes_by_token(token) == [])


def test_it_stops_a_command_that_takes_too_much_memory(cell: SandboxRunner) -> None:
    done = cell.python("import time; x = bytearray(400 << 20); time.sleep(60)", memory=200 * MIB)
    assert done.reason == "memory"


def test_each_role_starts_and_may_run_twice_in_the_same_directories(cell: SandboxRunner) -> None:
    for _ in range(2):
        assert cell.run("python", "-c", "import agent2rl", role="grader").code == 0
        assert cell.run(BARE_PYTHON, "-I", "-S", "-c", "", role="program").code == 0


def test_a_hidden_part_of_a_mount_is_empty_and_the_rest_of_it_is_there(cell: SandboxRunner) -> None:
    shared = cell.root / "shared"
    (shared / "private").mkdir(parents=True)
    (shared / "private" / "key").write_text("secret")
    (shared / "word").write_text("open")
    mounts = (Mount(shared, "given"),)
    done = cell.shell("cat given/word; ls -A given/private", mounts=mounts, hidden=(shared / "private",))
    assert (done.code, cell.log) == (0, "open")
