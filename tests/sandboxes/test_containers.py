"""Real containers of Docker, Podman and Apptainer (`make test-containers`); what cannot run is skipped."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Mount, ServiceSocket
from agent2rl.sandboxes import container_engine, selftest
from tests.helpers.hostile_programs import (
    ALWAYS_EQUAL_PROGRAM,
    REFERENCE_PROGRAM,
    make_job,
    open_sandboxed_pool,
)
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.sandbox_runner import (
    MIB,
    SandboxRunner,
    find_processes_by_token,
    make_daemon_command,
    serve_echo,
)
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.containers
ENGINES = ("docker", "podman", "apptainer")
WITH_DAEMON = ("docker", "podman")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def isolation(engine: str) -> Isolation:
    found = registry.find_sandbox(engine).check()
    if [promise.name for promise in found.promises] == ["the sandbox starts"]:
        pytest.skip(f"{engine} cannot run here: {found.promises[0].hint}")
    return found


@pytest.fixture
def cell(engine: str, isolation: Isolation, tmp_path: Path) -> SandboxRunner:
    return SandboxRunner(registry.find_sandbox(engine), tmp_path)


def list_containers(engine: str) -> list[str]:
    """The containers of this test's process and of harnesses that it started."""
    if engine not in WITH_DAEMON:
        return []
    prefix = container_engine.name_container().rsplit("-", 3)[0]
    names = ("ps", "--all", "--filter", f"name={prefix}-", "--format", "{{.Names}}")
    return container_engine.find_engine(engine).run(*names).split()


def test_every_promise_is_kept_or_said_not_to_be(engine: str, isolation: Isolation) -> None:
    assert isolation.broken == ()
    assert {promise.name for promise in isolation.promises} == set(selftest.NAMES.values())
    expected = {selftest.NAMES["read-only"]} if engine == "apptainer" and os.geteuid() != 0 else set()
    assert {promise.name for promise in isolation.not_kept} == expected


def test_a_command_works_in_its_workspace_and_sees_nothing_of_the_host(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    model = tmp_path / "model, with a comma"
    (model / "hidden").mkdir(parents=True)
    (model / "weights").write_text("w")
    (model / "hidden" / "key").write_text("42-is-the-answer")
    (tmp_path / "secret").write_text("42-is-the-answer")
    script = f"""
        pwd; echo kept > file; cat models/base/weights; ls -A models/base/hidden
        touch models/base/x models/base/hidden/x 2>/dev/null || echo closed
        cat {tmp_path}/secret models/base/hidden/key 2>&1 | grep -c 42; python3 -c 'import pydantic'; exit 7
    """
    mounts = (Mount(model, "models/base"), Mount(model, "/tmp/deep/model"))
    exit_ = cell.shell(script, mounts=mounts, hidden=(model / "hidden",))
    assert (exit_.reason, exit_.code) == ("exited", 7), cell.log
    assert cell.log.splitlines() == ["/workspace", "wclosed", "0"]
    assert (cell.workspace / "file").read_text() == "kept\n"
    assert (cell.workspace / "file").stat().st_uid != 0 or os.geteuid() == 0


def test_services_answer_and_carry_much(cell: SandboxRunner, tmp_path: Path) -> None:
    script = """
        import os, urllib.request
        url, body = os.environ["SERVICE_URL"], os.urandom(5_000_000)
        print(urllib.request.urlopen(url, timeout=20).read().decode())
        print(urllib.request.urlopen(urllib.request.Request(url, body), timeout=60).read() == body)
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("SERVICE_URL", service),))
    assert cell.log == "hello\nTrue\n"


def test_the_first_process_can_be_neither_killed_nor_stopped_nor_read(cell: SandboxRunner) -> None:
    """It is what ends the container when the harness dies."""
    script = """
        import os, signal
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            os.kill(1, number)
        for name in ("environ", "mem", "fd", "root/etc", "cwd/x"):
            try:
                print(name, os.listdir("/proc/1/fd") if name == "fd" else open(f"/proc/1/{name}").read(1))
            except OSError as error:
                print(type(error).__name__)
        print([line for line in open("/proc/1/status") if line.startswith("State")])
    """
    exit_ = cell.python(script)
    assert (exit_.reason, exit_.code) == ("exited", 0), cell.log
    assert cell.log.count("PermissionError") == 5
    assert "T (stopped)" not in cell.log


def test_limits_hold(cell: SandboxRunner) -> None:
    crowd = cell.shell("for i in $(seq 60); do sleep 300 & done; wait", processes=30)
    hog = cell.python(
        "import time\nheld = [b'x' * (40 << 20) for _ in range(20)]\ntime.sleep(300)", memory=200 * MIB
    )
    full = cell.shell("head -c 60M /dev/zero > /tmp/big; sleep 300", disk=30 * MIB)
    polite = "trap 'echo asked; exit' INT; touch up; sleep 300 & wait"
    asked = cell.shell(polite, grace_seconds=60, **cell.due_once("up"))
    assert [crowd.reason, hog.reason, full.reason, asked.reason] == [
        "processes",
        "memory",
        "disk",
        "deadline",
    ]
    assert cell.log.endswith("asked\n")


def test_daemons_and_the_container_end_with_the_command_and_with_a_stop(
    engine: str, cell: SandboxRunner
) -> None:
    token = f"daemon-{uuid.uuid4().hex}"
    assert cell.shell(make_daemon_command(token)).reason == "exited"
    deaf = f"trap '' INT TERM HUP; {make_daemon_command(token)}; touch deaf; while :; do sleep 1; done"
    assert find_processes_by_token(token) == []
    assert cell.shell(deaf, grace_seconds=0.1, **cell.due_once("deaf")).reason == "deadline"
    cell.stop.set()
    assert cell.run("sleep", "300").reason == "stopped"
    assert find_processes_by_token(token) == []
    assert list_containers(engine) == []


def test_orphans_are_reaped(cell: SandboxRunner) -> None:
    script = """
        import os, subprocess, time
        for _ in range(50):
            subprocess.run(["bash", "-c", "(true &)"])
        def count_zombies():
            stats = [open(f"/proc/{name}/stat").read() for name in os.listdir("/proc") if name.isdigit()]
            return sum(stat.rpartition(")")[2].split()[0] == "Z" for stat in stats)
        while count_zombies():
            time.sleep(0.02)
        print("reaped")
    """
    cell.python(script)
    assert cell.log == "reaped\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_harness_that_ends_leaves_neither_processes_nor_a_container(
    engine: str, cell: SandboxRunner, number: signal.Signals
) -> None:
    token = f"orphan-{uuid.uuid4().hex}"
    script = f"""
from pathlib import Path
from agent2rl import registry
from tests.helpers.sandbox_runner import SandboxRunner
cell = SandboxRunner(registry.find_sandbox({engine!r}), Path({str(cell.root)!r}))
cell.shell({(make_daemon_command(token) + "; touch up; sleep 300")!r})
"""
    harness = subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
    )
    wait_until((cell.workspace / "up").exists, seconds=60)
    assert len(find_processes_by_token(token)) > 1  # the harness itself has it too
    assert len(list_containers(engine)) == (1 if engine in WITH_DAEMON else 0)
    os.kill(harness.pid, number)
    harness.wait()
    wait_until(lambda: not find_processes_by_token(token))
    wait_until(lambda: not list_containers(engine))
    assert find_processes_by_token(token) == []
    assert list_containers(engine) == []


def test_a_container_that_a_dead_harness_created_is_removed_by_the_next_check(
    engine: str, cell: SandboxRunner
) -> None:
    if engine not in WITH_DAEMON:
        pytest.skip(f"{engine} has no containers without processes")
    known = container_engine.find_engine(engine)
    prefix, pid, started, _ = container_engine.name_container().rsplit("-", 3)
    dead = f"{prefix}-{pid}-{int(started) + 1}-0123456789ab"
    known.run("create", "--name", dead, "--network=none", container_engine.find_image(known, ""), "true")
    assert list_containers(engine) == [dead]
    container_engine.remove_orphans(known)
    assert list_containers(engine) == []


def test_an_image_that_is_not_there_is_named(engine: str, isolation: Isolation, tmp_path: Path) -> None:
    sandbox = registry.find_sandbox(f"{engine}:{tmp_path}/no-such-image")
    with pytest.raises(Exception, match="no-such-image"):
        SandboxRunner(sandbox, tmp_path).run("true")


PROGRAMS = ("bash", "cat", "touch", "ls")
SETTINGS = ("VOLUME /data", "VOLUME /workspace", 'ENTRYPOINT ["/bin/false"]', "USER 4242", "ENV CANARY=1")


def make_image_archive(folder: Path) -> Path:
    """Write a tar file of a root directory with a few programs of this machine and what they need.

    The interpreter is shown in the image, its libraries are of the image.
    """
    programs = [Path(os.path.realpath(shutil.which(name) or name)) for name in PROGRAMS]
    modules = Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so")
    linked: list[str | Path] = ["ldd", sys.executable, *programs, *modules]
    words = subprocess.run(linked, capture_output=True, text=True, check=False).stdout.split()
    libraries = {Path(word) for word in words if word.startswith(("/lib", "/usr/lib")) and ".so" in word}
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as made:
        for path in libraries:
            made.add(os.path.realpath(path), path)
        for name, program in zip(PROGRAMS, programs, strict=True):
            made.add(program, f"/bin/{name}")
        for name, mode in (("/data", 0o777), ("/root", 0o700), ("/data/of-the-image", 0o777)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            made.addfile(directory)
    return archive


@pytest.fixture
def image(engine: str, isolation: Isolation, tmp_path: Path) -> Iterator[str]:
    """An image whose volumes, entrypoint, user and variables are not the sandbox's."""
    if engine not in WITH_DAEMON or Path(sys.base_prefix).is_relative_to("/usr"):
        pytest.skip("needs a daemon's images, and a Python outside of /usr")
    known, name = container_engine.find_engine(engine), f"agent2rl-test:{uuid.uuid4().hex}"
    changes = [f"--change={setting}" for setting in SETTINGS]
    known.run("import", *changes, str(make_image_archive(tmp_path)), name)
    yield name
    known.run("image", "rm", name)


def test_an_image_keeps_every_promise_whatever_it_declares(engine: str, image: str, tmp_path: Path) -> None:
    sandbox = registry.find_sandbox(f"{engine}:{image}")
    isolation = sandbox.check()
    assert isolation.broken == isolation.not_kept == (), isolation
    cell = SandboxRunner(sandbox, tmp_path)
    exit_ = cell.shell(
        "touch /data/x 2>/dev/null || echo closed; ls /bin; echo canary: $CANARY; echo mine > file; exit 7"
    )
    assert (exit_.reason, exit_.code) == ("exited", 7), cell.log
    assert cell.log.split() == ["closed", *sorted(PROGRAMS), "canary:"]
    assert (cell.workspace / "file").read_text() == "mine\n"


def test_programs_that_a_model_wrote_run_in_it_too(engine: str, isolation: Isolation, tmp_path: Path) -> None:
    programs = [REFERENCE_PROGRAM, "def solve(x):\n    return x\n", ALWAYS_EQUAL_PROGRAM]
    with open_sandboxed_pool(tmp_path / "programs", 1, engine) as pool:
        verdicts = pool.judge_jobs([make_job(program) for program in programs])
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_a_whole_run_trains_and_is_graded_in_it(
    engine: str, isolation: Isolation, launcher: RunLauncher
) -> None:
    passed = {name: os.environ[name] for name in container_engine.PASSED_VARIABLES if name in os.environ}
    run = launcher.run(
        "say(verdict=submit(trained('first')))", "--sandbox", engine, "--budget", "60s", **passed
    )
    assert run.code == 0, run.errors
    assert run.said["verdict"]["http"] == 200, run.log
    assert run.result.score is not None
    assert run.result.isolation
    assert run.result.isolation.sandbox == engine
    wait_until(lambda: not list_containers(engine))
    assert list_containers(engine) == []
