"""The sandbox that isolates nothing: it says so, and all else is as in the real one."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Mount, ServiceSocket
from agent2rl.sandboxes import selftest
from tests.helpers.sandbox_runner import (
    MIB,
    SandboxRunner,
    find_processes_by_token,
    make_daemon_command,
    serve_echo,
)
from tests.helpers.waiting import wait_until

SANDBOX = registry.find_sandbox("local")


@pytest.fixture
def cell(tmp_path: Path) -> SandboxRunner:
    return SandboxRunner(SANDBOX, tmp_path)


def test_it_says_that_it_isolates_nothing() -> None:
    found = SANDBOX.check()
    assert (found.sandbox, found.isolates, found.promises) == ("local", False, ())


def test_the_self_test_of_real_sandboxes_sees_that_it_isolates_nothing() -> None:
    broken = {promise.name for promise in selftest.run_self_test("local", SANDBOX).broken}
    expected = {
        "everything else is read-only",
        "files of the host are invisible",
        "processes of the host are invisible",
        "no tracing of processes",
    }
    assert expected <= broken
    assert not broken & {"the service socket answers", "daemons die with the sandbox"}


def test_the_command_starts_in_the_real_workspace(cell: SandboxRunner) -> None:
    assert cell.run("pwd").code == 0
    assert cell.log.strip() == str(SANDBOX.workspace(cell.workspace)) == str(cell.workspace.resolve())


def test_a_deadline_that_moves_is_asked_for_when_it_is_reached(cell: SandboxRunner) -> None:
    """The time left stays the same until the command has written its file, as if a grading took so long."""
    ended = cell.shell("sleep 1; touch begun; sleep 300", **cell.due_once("begun"))
    assert ended.reason == "deadline"
    assert (cell.workspace / "begun").exists()
    assert ended.wall_seconds >= 1


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_comes_through(cell: SandboxRunner, script: str, code: int) -> None:
    exit_ = cell.shell(script)
    assert (exit_.reason, exit_.code) == ("exited", code)


def test_the_environment_is_built_from_nothing(cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_KEY", "canary")
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    cell.run(command=Command((sys.executable, "-c", script), {"GIVEN": "1"}))
    seen = json.loads(cell.log)
    expected = {"PATH", "HOME", "USER", "LANG", "TMPDIR", "GOMP_SPINCOUNT", "GIVEN", "AGENT2RL_LOCAL_SANDBOX"}
    assert set(seen) - {"VIRTUAL_ENV"} == expected
    assert Path(seen["HOME"]).parent == Path(seen["TMPDIR"]).parent == (cell.root / "scratch").resolve()


def test_mounts_are_links_in_the_workspace(cell: SandboxRunner, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("w")
    mounts = (Mount(model, "models/base"), Mount(model, str(model)))
    for _ in range(2):  # a second run finds the link of the first
        assert cell.run("cat", "models/base/weights", mounts=mounts).code == 0
    assert cell.log == "ww"


def test_a_mount_that_is_already_in_its_place_is_left_alone(cell: SandboxRunner) -> None:
    cell.enclosure()
    (cell.workspace / "data").mkdir()
    assert cell.run("test", "-d", "data", mounts=(Mount(cell.workspace / "data", "data"),)).code == 0
    assert not (cell.workspace / "data").is_symlink()


def test_a_mount_that_would_cover_something_is_refused(cell: SandboxRunner, tmp_path: Path) -> None:
    cell.enclosure()
    (cell.workspace / "data").write_text("mine")
    with pytest.raises(UserError, match="must be a link"):
        cell.run("true", mounts=(Mount(tmp_path, "data"),))


def test_a_mount_elsewhere_that_is_not_there_is_refused(cell: SandboxRunner, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/no/such/place"):
        cell.run("true", mounts=(Mount(tmp_path, "/no/such/place"),))


def test_a_service_answers_over_http(cell: SandboxRunner, tmp_path: Path) -> None:
    script = """
        import os, urllib.request
        url, body = os.environ["SERVICE_URL"], b"x" * 3_000_000
        print(urllib.request.urlopen(url, timeout=20).read().decode())
        print(urllib.request.urlopen(urllib.request.Request(url, body), timeout=20).read() == body)
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("SERVICE_URL", service),))
    assert cell.log == "hello\nTrue\n"


def test_the_deadline_asks_first_and_then_kills(cell: SandboxRunner) -> None:
    polite = "trap 'echo asked; exit' INT; touch up; sleep 300 & wait"
    asked = cell.shell(polite, grace_seconds=60, **cell.due_once("up"))
    assert (asked.reason, asked.code, cell.log) == ("deadline", None, "asked\n")
    token = f"deaf-{uuid.uuid4().hex}"
    ignores = f"trap '' INT; {make_daemon_command(token)}; touch deaf; while :; do sleep 1; done"
    deaf = cell.shell(ignores, **cell.due_once("deaf"))
    assert deaf.reason == "deadline"
    assert find_processes_by_token(token) == []


def test_daemons_die_when_the_command_ends(cell: SandboxRunner) -> None:
    token = f"daemon-{uuid.uuid4().hex}"
    assert cell.shell(make_daemon_command(token)).reason == "exited"
    assert find_processes_by_token(token) == []


def test_a_stop_ends_it(cell: SandboxRunner) -> None:
    threading.Timer(0.5, cell.stop.set).start()
    assert cell.run("sleep", "300").reason == "stopped"


def test_limits_hold(cell: SandboxRunner) -> None:
    crowd = cell.shell("for i in $(seq 60); do sleep 300 & done; wait", processes=30)
    hog = cell.python("held = b'x' * (300 << 20); import time; time.sleep(300)", memory=100 * MIB)
    full = cell.shell("head -c 60M /dev/zero > $TMPDIR/big; sleep 300", disk=30 * MIB)
    assert [crowd.reason, hog.reason, full.reason] == ["processes", "memory", "disk"]


def test_killing_the_harness_ends_the_command(cell: SandboxRunner) -> None:
    token = f"orphan-{uuid.uuid4().hex}"
    script = f"""
from pathlib import Path
from agent2rl import registry
from tests.helpers.sandbox_runner import SandboxRunner
cell = SandboxRunner(registry.find_sandbox("local"), Path({str(cell.root)!r}))
cell.shell("bash -c 'exec -a {token} sleep 300'; true")
"""
    harness = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    wait_until(lambda: len(find_processes_by_token(token)) > 1)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    wait_until(lambda: not find_processes_by_token(token))
    assert find_processes_by_token(token) == []
