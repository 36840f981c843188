"""The real sandbox, from the inside with bad intentions and from the outside with a watch."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import uuid
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, ServiceSocket, url_placeholder
from agent2rl.sandboxes import resource_limits, selftest
from tests.helpers.sandbox_runner import (
    MIB,
    SandboxRunner,
    find_processes_by_token,
    make_daemon_command,
    serve_echo,
)
from tests.helpers.waiting import wait_until

SANDBOX = registry.find_sandbox("bubblewrap")
GET = "urllib.request.urlopen({url}, timeout=20).read().decode()"


def read_bwrap_help() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return ""
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    found = SANDBOX.check()
    if [promise.name for promise in found.promises] == ["the sandbox starts"]:
        pytest.skip(f"bubblewrap cannot run here: {found.promises[0].hint}")
    return found


@pytest.fixture
def cell(isolation: Isolation, tmp_path: Path) -> SandboxRunner:
    return SandboxRunner(SANDBOX, tmp_path)


def test_every_promise_is_tried_and_holds(isolation: Isolation) -> None:
    assert isolation.isolates
    assert len(isolation.promises) >= 16
    assert isolation.broken == ()


class NotHiding:
    """The same sandbox without the hiding."""

    def workspace(self, workspace: Path) -> PurePosixPath:
        return SANDBOX.workspace(workspace)

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        return selftest.run_self_test("not hiding", self, hidden)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        return SANDBOX.run(command, replace(enclosure, hidden=()), stop)


def test_the_promise_of_hidden_directories_is_broken_where_nothing_is_hidden(isolation: Isolation) -> None:
    assert [promise.name for promise in NotHiding().check().broken] == [selftest.NAMES["hidden"]]


def test_the_promise_holds_for_the_directories_that_a_run_names(isolation: Isolation) -> None:
    """A library of this Python stands for a directory of the harness that lies in there."""
    named = (Path(sysconfig.get_path("purelib")) / "agent2rl-no-such-place", Path(pytest.__file__).parent)
    assert SANDBOX.check(named).broken == ()
    shown = selftest.run_self_test("hides its own alone", HidesOnlyItsOwn(named))
    assert shown.broken == ()
    shown = selftest.run_self_test("hides its own alone", HidesOnlyItsOwn(named), named)
    assert [promise.name for promise in shown.broken] == [selftest.NAMES["hidden"]]


@dataclass(frozen=True)
class HidesOnlyItsOwn(NotHiding):
    """Forgets some places, as a sandbox with a hole would."""

    forgotten: tuple[Path, ...]

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        kept = tuple(path for path in enclosure.hidden if path not in self.forgotten)
        return SANDBOX.run(command, replace(enclosure, hidden=kept), stop)


def test_a_harness_with_a_strict_umask_makes_no_difference(isolation: Isolation) -> None:
    before = os.umask(0o077)
    try:
        assert SANDBOX.check().broken == ()
    finally:
        os.umask(before)


def test_a_missing_bubblewrap_is_a_broken_promise_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (promise,) = SANDBOX.check().broken
    assert "apt-get install bubblewrap" in promise.hint
    with pytest.raises(MachineError, match="not installed"):
        SandboxRunner(SANDBOX, tmp_path).run("true")


def test_a_bubblewrap_that_fails_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no permission to create a namespace >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MachineError, match="no permission to create a namespace"):
        SandboxRunner(SANDBOX, tmp_path / "cell").run("true")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_comes_through_and_signals_are_128_and_more(
    cell: SandboxRunner, script: str, code: int
) -> None:
    exit_ = cell.shell(script)
    assert (exit_.reason, exit_.code, exit_.detail) == ("exited", code, "")


def test_a_command_that_does_not_exist_is_127_and_named(cell: SandboxRunner) -> None:
    assert cell.run("no-such-program").code == 127
    assert "no-such-program" in cell.log


def test_the_command_starts_in_the_workspace_and_what_it_writes_stays(cell: SandboxRunner) -> None:
    assert str(SANDBOX.workspace(cell.workspace)) == "/workspace"
    assert cell.shell("pwd; echo kept > file; hostname").code == 0
    assert cell.log.split() == ["/workspace", "agent2rl"]
    assert (cell.workspace / "file").read_text() == "kept\n"


def test_the_environment_is_built_from_nothing(cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_KEY", "canary")
    command = Command(
        (sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"), {"GIVEN": "1"}
    )
    cell.run(command=command)
    seen = json.loads(cell.log)
    assert set(seen) - {"VIRTUAL_ENV"} == {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "TMPDIR",
        "GOMP_SPINCOUNT",
        "GIVEN",
    }
    assert seen["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_secrets_are_in_nobodys_arguments(cell: SandboxRunner) -> None:
    secret = uuid.uuid4().hex
    script = "import os, pathlib, time; pathlib.Path('up').touch(); time.sleep(300)"
    command = Command((sys.executable, "-c", script), {"SECRET": secret})
    thread = threading.Thread(target=cell.run, kwargs={"command": command})
    thread.start()
    wait_until((cell.workspace / "up").exists)
    seen = find_processes_by_token(secret)
    cell.stop.set()
    thread.join()
    assert seen == []


def test_the_command_inherits_no_open_files_and_no_input(cell: SandboxRunner) -> None:
    cell.run("ls", "-l", "/proc/self/fd")
    seen = [line.split() for line in cell.log.splitlines()[1:]]
    assert [words[-3] for words in seen] == ["0", "1", "2", "3"]  # the last is ls's own
    assert seen[0][-1] == "/dev/null"


def test_python_and_its_libraries_are_there_and_read_only(cell: SandboxRunner) -> None:
    script = """
        import agent2rl, pydantic, pathlib, sys
        for place in (pathlib.Path(agent2rl.__file__), pathlib.Path(pydantic.__file__)):
            try:
                place.open("a")
            except OSError as error:
                print(error.errno)
    """
    assert cell.python(script).code == 0
    assert set(cell.log.split()) <= {"13", "30"}
    assert len(cell.log.split()) == 2


def test_mounts_appear_where_they_should_and_only_writable_ones_can_be_written(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    model, notes, outbox = tmp_path / "model", tmp_path / "notes.txt", tmp_path / "outbox"
    for directory in (model, outbox):
        directory.mkdir()
    (model / "weights").write_text("w")
    notes.write_text("n")
    mounts = (
        Mount(model, "models/base"),
        Mount(notes, "/etc/agent/notes.txt"),
        Mount(outbox, "/out", writable=True),
        Mount(model, "/tmp/deep/model"),
        Mount(model, "/home/agent/model"),
    )
    script = """
        cat models/base/weights /etc/agent/notes.txt /tmp/deep/model/weights /home/agent/model/weights; echo
        for place in models/base /tmp/deep/model /home/agent/model /etc/agent; do
            touch $place/x 2>/dev/null && echo bad
        done
        echo more >> /etc/agent/notes.txt && echo bad
        touch models/mine && touch /out/mine && echo good
    """
    cell.shell(script, mounts=mounts)
    assert cell.log.split()[0] == "wnww"
    assert cell.log.split()[-1] == "good"
    assert "bad" not in cell.log.split()
    assert (outbox / "mine").exists()


def test_hidden_directories_are_empty_and_closed(cell: SandboxRunner, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "open").mkdir(parents=True)
    (shared / "answers" / "more").mkdir(parents=True)
    (shared / "answers" / "key").write_text("42")
    cell.shell(
        "ls -R /shared; touch /shared/answers/x || echo closed",
        mounts=(Mount(shared, "/shared"),),
        hidden=(shared / "answers", tmp_path / "absent"),
    )
    assert "key" not in cell.log
    assert "more" not in cell.log
    assert "open" in cell.log
    assert cell.log.strip().endswith("closed")


def test_a_hidden_directory_is_hidden_by_whichever_path_it_is_named_or_reached(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    for place in (shared / "inside", elsewhere):
        place.mkdir(parents=True)
        (place / "key").write_text("42")
    (tmp_path / "link-into").symlink_to(shared / "inside")
    (shared / "link-within").symlink_to("inside")
    (shared / "link-out").symlink_to(elsewhere)
    (tmp_path / "second-name").symlink_to(shared)
    cell.shell(
        "cat /shared/*/key /again/*/key 2>/dev/null; ls /shared /again",
        mounts=(Mount(shared, "/shared"), Mount(tmp_path / "second-name", "/again")),
        hidden=(tmp_path / "link-into", shared / "link-out"),
    )
    assert "42" not in cell.log
    assert cell.log.count("inside") == 2


def test_a_hidden_file_is_empty_and_cannot_be_written(cell: SandboxRunner, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("tape.jsonl", "open.txt"):
        (shared / name).write_text("42\n")
    cell.shell(
        "cat /shared/tape.jsonl; stat -c %s /shared/*; echo x >> /shared/tape.jsonl || echo closed",
        mounts=(Mount(shared, "/shared"),),
        hidden=(shared / "tape.jsonl",),
    )
    assert cell.log.split("\n")[:2] == ["3", "0"]
    assert "closed" in cell.log


def test_a_mount_below_a_hidden_directory_appears_whatever_the_order_of_mounts(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    (shared / "runs" / "one" / "workspace").mkdir(parents=True)
    (shared / "runs" / "one" / "record").write_text("secret")
    (shared / "runs" / "one" / "workspace" / "mine").write_text("given")
    inner, outer = Mount(shared / "runs" / "one" / "workspace", "/s/runs/one/workspace"), Mount(shared, "/s")
    for mounts in ((outer, inner), (inner, outer)):
        cell.shell("find /s -type f", mounts=mounts, hidden=(shared / "runs", shared / "runs" / "one"))
        assert cell.log.split() == ["/s/runs/one/workspace/mine"]
        (cell.root / "log").unlink()


def test_the_interpreter_runs_though_the_directory_it_lies_in_is_hidden(cell: SandboxRunner) -> None:
    programs = Path(sys.executable).parent
    script = f"import os, pydantic; print(len(os.listdir({str(programs)!r})))"
    assert cell.python(script, hidden=(programs,)).code == 0, cell.log
    assert int(cell.log) < len(list(programs.iterdir()))


def test_what_every_sandbox_shows_cannot_be_hidden_and_that_is_said(cell: SandboxRunner) -> None:
    for place in (Path(sys.prefix), Path("/usr")):
        with pytest.raises(UserError, match="AGENT2RL_CACHE"):
            cell.run("true", hidden=(place,))
        with pytest.raises(UserError, match="AGENT2RL_CACHE"):
            SANDBOX.check((place,))


def test_an_agent_is_not_given_a_directory_that_is_to_be_hidden(cell: SandboxRunner, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(UserError, match="models/base"):
        cell.run("true", mounts=(Mount(data, "models/base"),), hidden=(data,))
    assert cell.run("true", mounts=(Mount(data, "data"),), hidden=(data,), role="grader").code == 0


def test_no_command_line_and_no_environment_names_a_path_of_the_host(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    script = """
        from pathlib import Path
        for name in ("cmdline", "environ"):
            for file in Path("/proc").glob(f"[0-9]*/{name}"):
                try:
                    print(file, file.read_bytes())
                except OSError as error:
                    print(file, error.strerror)
    """
    model = tmp_path / "model"
    model.mkdir()
    with serve_echo(tmp_path / "service") as service:
        cell.python(
            script, mounts=(Mount(model, "models/base"),), sockets=(ServiceSocket("SERVICE_URL", service),)
        )
    seen = {line.split()[0] for line in cell.log.splitlines()}
    assert {f"/proc/{pid}/{name}" for pid in (1, 2, 3) for name in ("cmdline", "environ")} <= seen
    assert "--args" in cell.log
    assert str(tmp_path) not in cell.log


def test_a_link_left_in_the_workspace_does_not_lead_a_mount_astray(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    cell.enclosure()
    elsewhere, model = tmp_path / "elsewhere", tmp_path / "model"
    elsewhere.mkdir()
    model.mkdir()
    (cell.workspace / "models").symlink_to(elsewhere)
    with pytest.raises(UserError, match="models/base"):
        cell.run("true", mounts=(Mount(model, "models/base"),))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("target", ["../out", "a/../../out", "/usr/../out"])
def test_a_mount_target_cannot_climb(cell: SandboxRunner, tmp_path: Path, target: str) -> None:
    with pytest.raises(UserError, match="contains"):
        cell.run("true", mounts=(Mount(tmp_path, target),))


def test_a_mount_whose_source_is_missing_is_named(cell: SandboxRunner, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing-here"):
        cell.run("true", mounts=(Mount(tmp_path / "nothing-here", "x"),))


def test_the_host_cannot_be_found(cell: SandboxRunner, tmp_path: Path) -> None:
    canary = tmp_path / f"canary-{uuid.uuid4().hex}"
    canary.write_text("secret")
    cell.shell(f"find / -name '{canary.name}' 2>/dev/null; ls /home /run /mnt /srv /var 2>&1")
    assert canary.name not in cell.log.split("\n")[0]
    assert "agent" in cell.log


def test_kernel_settings_devices_and_system_files_cannot_be_written(cell: SandboxRunner) -> None:
    script = """
        for file in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches \
                    /proc/sysrq-trigger \
                    /etc/passwd /etc/hosts /usr/x /x /run/x /run/sockets/x /dev/x /home/x /workspace/../x; do
            (echo x > $file) 2>/dev/null && echo "wrote $file"
        done
        mknod device b 8 0 2>/dev/null && echo "made a device"
        mount -t tmpfs none /tmp 2>/dev/null && echo mounted
        unshare -U true 2>/dev/null && echo "a new namespace"
        chroot / true 2>/dev/null && echo chrooted
        echo x > /tmp/x && echo x > ~/x && echo x > /dev/shm/x && echo x > /dev/null && echo fine
    """
    cell.shell(script)
    assert cell.log.split("\n")[-2:] == ["fine", ""]
    assert len(cell.log.strip().split("\n")) == 1, cell.log


def test_a_grader_sees_the_cores_of_the_machine_and_an_agent_does_not(cell: SandboxRunner) -> None:
    """vLLM binds its threads by them. A GPU shows an agent all of /sys."""
    for role in ("grader", "agent"):
        cell.shell("ls /sys/devices/system/cpu/online; echo x > /sys/devices/system/cpu/x", role=role)
    shown = [line for line in cell.log.splitlines() if line == "/sys/devices/system/cpu/online"]
    assert len(shown) == (2 if Path("/dev/nvidiactl").exists() else 1)
    assert cell.shell("lscpu --parse=CPU,NODE", role="grader").code == 0


@pytest.mark.skipif("--size" not in read_bwrap_help(), reason="bwrap before 0.7.0 cannot cap it")
def test_shared_memory_is_bounded(cell: SandboxRunner) -> None:
    cell.shell("head -c 200M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x", memory=400 * MIB)
    assert int(cell.log.split()[-1]) <= 100 * MIB


def test_only_the_service_answers(cell: SandboxRunner, tmp_path: Path) -> None:
    script = f"""
        import os, socket, urllib.request
        print({GET.format(url='os.environ["GRADING"]')})
        for address in ("192.0.2.1", "10.0.0.1", "169.254.169.254", "8.8.8.8"):
            try:
                socket.create_connection((address, 80), timeout=5)
                print("reached", address)
            except OSError as error:
                print(error.errno)
        try:
            socket.getaddrinfo("example.org", 80)
            print("resolved")
        except socket.gaierror:
            print("no names")
        print(socket.gethostbyname(socket.gethostname()))
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("GRADING", service),))
    assert cell.log.split("\n") == ["hello", "101", "101", "101", "101", "no names", "127.0.0.1", ""]


def test_twenty_megabytes_go_through_a_service_both_ways(cell: SandboxRunner, tmp_path: Path) -> None:
    script = """
        import hashlib, os, urllib.request
        body = os.urandom(20_000_000)
        back = urllib.request.urlopen(urllib.request.Request(os.environ["ECHO"], body), timeout=60).read()
        print(hashlib.sha256(back).digest() == hashlib.sha256(body).digest())
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("ECHO", service),))
    assert cell.log == "True\n"


def test_a_service_takes_many_at_once_and_keeps_connections(cell: SandboxRunner, tmp_path: Path) -> None:
    script = """
        import concurrent.futures, http.client, os, urllib.parse
        place = urllib.parse.urlsplit(os.environ["ECHO"])
        def talk(number):
            link = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
            words = set()
            for _ in range(5):
                link.request("POST", "/", str(number))
                words.add(link.getresponse().read().decode())
            return words == {str(number)}
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            print(sum(pool.map(talk, range(200))))
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("ECHO", service),))
    assert cell.log == "200\n"


def test_a_command_is_told_where_a_service_is_in_files_variables_arguments_and_stdin(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    url = url_placeholder("A_URL")
    script = "cat; echo; cat ~/.tool/config; echo $TOOL_URL $1; stat -c %U ~/.tool/config; curl -s $TOOL_URL"
    command = Command(
        ("bash", "-c", script, "bash", url),
        {"TOOL_URL": url},
        files={".tool/config": f"base = {url}/v1\n"},
        input=f"ask {url} \N{SNOWMAN}",
    )
    with serve_echo(tmp_path / "service") as socket:
        for _ in range(2):  # started again, it finds its files as they were meant
            cell.run(command=command, sockets=(ServiceSocket("A_URL", socket),))
    first, again = cell.log[: len(cell.log) // 2], cell.log[len(cell.log) // 2 :]
    for log in (first, again):
        known = re.search(r"ask (http://127\.0\.0\.1:\d+) \N{SNOWMAN}", log)
        assert known
        assert f"base = {known[1]}/v1\n{known[1]} {known[1]}\nagent\nhello" in log


def test_an_interrupt_can_be_for_the_first_process_alone(cell: SandboxRunner) -> None:
    tool = """
import pathlib, signal, time
heard = pathlib.Path("heard")
signal.signal(signal.SIGINT, lambda *_: heard.touch())
pathlib.Path("up").touch()
while not heard.exists():
    time.sleep(0.02)
print("tool heard", flush=True)
"""
    # A leader that is interrupted alone leaves the tool a moment to show that it was not.
    leader = 'trap "echo leader heard; $1; exit 3" INT; python3 -c "$0" & wait'
    kinds: tuple[Literal["group", "leader"], ...] = ("group", "leader")
    for interrupt in kinds:
        then = "wait" if interrupt == "group" else "sleep 0.2"
        command = Command(("bash", "-c", leader, tool, then), interrupt=interrupt)
        cell.run(command=command, grace_seconds=60, **cell.due_once("up"))
        assert "leader heard" in cell.log
        assert ("tool heard" in cell.log) == (interrupt == "group")
        (cell.root / "log").unlink()
        (cell.workspace / "up").unlink()
        (cell.workspace / "heard").unlink(missing_ok=True)


def test_two_services_lead_to_different_places_and_a_closed_one_hangs_up(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    script = f"""
        import os, urllib.request
        print({GET.format(url='os.environ["OPEN"]')}, os.environ["OPEN"] != os.environ["SHUT"])
        try:
            {GET.format(url='os.environ["SHUT"]')}
        except OSError as error:
            print("hung up")
    """
    with serve_echo(tmp_path / "shut"):
        pass
    with serve_echo(tmp_path / "open") as service:
        cell.python(
            script, sockets=(ServiceSocket("OPEN", service), ServiceSocket("SHUT", tmp_path / "shut"))
        )
    assert cell.log == "hello True\nhung up\n"


def test_at_the_deadline_the_command_is_asked_first(cell: SandboxRunner) -> None:
    script = """
        import pathlib, time
        try:
            pathlib.Path("up").touch()
            time.sleep(300)
        except KeyboardInterrupt:
            pathlib.Path("asked").write_text("yes")
    """
    exit_ = cell.python(script, grace_seconds=60, **cell.due_once("up"))
    assert (exit_.reason, exit_.code) == ("deadline", None)
    assert "killed" not in exit_.detail
    assert (cell.workspace / "asked").read_text() == "yes"


def test_who_ignores_the_deadline_is_killed_with_its_daemons(cell: SandboxRunner) -> None:
    token = f"daemon-{uuid.uuid4().hex}"
    exit_ = cell.shell(
        f"trap '' INT TERM HUP; {make_daemon_command(token)}; echo up; touch up; while :; do sleep 1; done",
        **cell.due_once("up"),
    )
    assert (exit_.reason, exit_.code) == ("deadline", None)
    assert "killed" in exit_.detail
    assert cell.log == "up\n"
    assert find_processes_by_token(token) == []


def test_daemons_die_when_the_command_ends_by_itself(cell: SandboxRunner) -> None:
    token = f"daemon-{uuid.uuid4().hex}"
    assert cell.shell(make_daemon_command(token)).reason == "exited"
    assert find_processes_by_token(token) == []


def test_a_stop_ends_it(cell: SandboxRunner) -> None:
    threading.Timer(0.7, cell.stop.set).start()
    exit_ = cell.run("sleep", "300")
    assert (exit_.reason, exit_.code) == ("stopped", None)


def test_a_fork_bomb_ends_the_command_and_not_the_machine(cell: SandboxRunner) -> None:
    token = f"bomb-{uuid.uuid4().hex}"
    exit_ = cell.shell(
        f"for i in $(seq 500); do bash -c 'exec -a {token} sleep 300' & done; wait", processes=100
    )
    assert exit_.reason == "processes"
    assert "the limit is 100" in exit_.detail
    assert find_processes_by_token(token) == []


def test_as_many_processes_as_the_limit_says_may_live(cell: SandboxRunner) -> None:
    exit_ = cell.shell("for i in $(seq 19); do sleep 1 & done; wait", processes=20)
    assert (exit_.reason, exit_.code) == ("exited", 0)


def test_a_memory_hog_is_ended(cell: SandboxRunner) -> None:
    script = """
        import time
        held = []
        for _ in range(40):
            held.append(b"x" * (20 << 20))
            time.sleep(0.02)
        time.sleep(300)
    """
    exit_ = cell.python(script, memory=200 * MIB)
    assert exit_.reason == "memory"
    assert "0.20 GiB" in exit_.detail


WAIT_FOR_CHECKS = """
import os, time

def wait_for_checks():
    # The first to end may have begun before.
    end = count_checks() + 2
    while count_checks() < end:
        time.sleep(0.02)

def count_checks():
    return os.path.getsize("checks") if os.path.exists("checks") else 0
"""


@pytest.fixture
def checks_noted(cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command see in a file how often its limits have been checked."""
    check = resource_limits.LimitGuard.check_limits

    def check_and_note(self: resource_limits.LimitGuard, *arguments: Any) -> Any:
        breach = check(self, *arguments)
        with (cell.workspace / "checks").open("a") as file:
            file.write(".")
        return breach

    monkeypatch.setattr(resource_limits.LimitGuard, "check_limits", check_and_note)


@pytest.mark.usefixtures("checks_noted")
def test_memory_that_workers_share_counts_once(cell: SandboxRunner) -> None:
    script = """
held = b"x" * (120 << 20)
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        time.sleep(300)
    children.append(child)
wait_for_checks()
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""
    assert cell.python(WAIT_FOR_CHECKS + script, memory=400 * MIB).reason == "exited"


def test_a_process_that_ends_while_memory_is_summed_counts_nothing() -> None:
    child = subprocess.Popen(["sleep", "300"])
    try:
        listed = resource_limits.read_process(child.pid)
        assert listed is not None
        assert resource_limits.read_proportional_bytes(listed) > 0
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
    assert resource_limits.read_proportional_bytes(listed) == 0
    child.wait()
    assert resource_limits.read_proportional_bytes(listed) == 0


@pytest.mark.usefixtures("checks_noted")
def test_the_most_memory_that_it_held_is_told(cell: SandboxRunner) -> None:
    script = """
held = b"x" * (300 << 20)
wait_for_checks()
del held
wait_for_checks()
"""
    assert 300 * MIB < cell.python(WAIT_FOR_CHECKS + script).peak_memory_bytes < 400 * MIB


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/home/agent"])
def test_filling_the_disk_quota_ends_it_wherever_it_writes(cell: SandboxRunner, place: str) -> None:
    exit_ = cell.shell(f"head -c 60M /dev/zero > {place}/big; sleep 300", disk=30 * MIB)
    assert exit_.reason == "disk"
    assert "0.03 GiB" in exit_.detail


def test_nothing_on_the_disk_hides_in_a_closed_directory(cell: SandboxRunner) -> None:
    exit_ = cell.shell(
        "mkdir closed && head -c 60M /dev/zero > closed/x && chmod 0 closed; sleep 300", disk=30 * MIB
    )
    assert exit_.reason == "disk"


def test_nothing_on_the_disk_hides_in_the_depth(cell: SandboxRunner) -> None:
    script = """
        import os, time
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
        time.sleep(300)
    """
    exit_ = cell.python(script, wall_seconds=300)
    assert exit_.reason == "disk"
    assert "nested" in exit_.detail


def test_a_workspace_that_is_reached_through_a_link_is_counted_too(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    cell.enclosure()
    (tmp_path / "link").symlink_to(cell.workspace)
    fill = "head -c 60M /dev/zero > big; sleep 300"
    assert cell.shell(fill, workspace=tmp_path / "link", disk=30 * MIB).reason == "disk"


def test_links_out_of_the_workspace_are_not_counted(cell: SandboxRunner) -> None:
    exit_ = cell.shell(
        "ln -s /usr usr; ln -s / all; head -c 10M /dev/zero > x; ln x y; sleep 3", disk=15 * MIB
    )
    assert (exit_.reason, exit_.code) == ("exited", 0)


def test_the_log_is_capped_and_says_so(cell: SandboxRunner) -> None:
    exit_ = cell.shell("echo first; head -c 300M /dev/zero; echo last")
    size = (cell.root / "log").stat().st_size
    assert exit_.code == 0
    assert 256 * MIB < size < 257 * MIB
    with (cell.root / "log").open("rb") as log:
        assert log.read(6) == b"first\n"
        log.seek(-200, os.SEEK_END)
        assert b"dropped" in log.read()


def test_a_flood_of_output_does_not_hold_up_the_deadline(cell: SandboxRunner) -> None:
    exit_ = cell.shell("trap '' INT; yes", wall_seconds=1)
    assert exit_.reason == "deadline"
    assert exit_.wall_seconds < 30


def test_a_second_run_adds_to_the_log(cell: SandboxRunner) -> None:
    cell.run("echo", "one")
    cell.run("echo", "two")
    assert cell.log == "one\ntwo\n"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_of_a_run_stays_open(cell: SandboxRunner, tmp_path: Path) -> None:
    cell.run("true")
    files, threads = open_files(), threading.active_count()
    cell.run("true")
    cell.run("sleep", "300", wall_seconds=0.3)
    # There may be fewer: those of other tests end at any time.
    assert open_files() <= files
    assert threading.active_count() <= threads


def test_two_at_once_do_not_meet(isolation: Isolation, tmp_path: Path) -> None:
    script = """if True:
        import os, socket, time
        from pathlib import Path
        places = (Path("/workspace"), Path("/tmp"), Path("/dev/shm"))
        for place in places:
            (place / os.environ["TOKEN"]).touch()
        port, name = socket.socket(), socket.socket(socket.AF_UNIX)
        port.bind(("127.0.0.1", 5555))
        name.bind(b"\\0the same name")
        Path("up").touch()
        while not Path("go").exists():
            time.sleep(0.05)
        for place in places:
            print(sorted(entry.name for entry in place.iterdir() if entry.name.startswith("token")))
        print(sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()))
    """
    cells = {name: SandboxRunner(SANDBOX, tmp_path / name) for name in ("left", "right")}

    def live(name: str) -> None:
        cells[name].run(command=Command((sys.executable, "-c", script), {"TOKEN": f"token-{name}"}))

    threads = [threading.Thread(target=live, args=(name,)) for name in cells]
    for thread in threads:
        thread.start()
    for cell in cells.values():
        wait_until((cell.workspace / "up").exists)
    for cell in cells.values():
        (cell.workspace / "go").touch()
    for thread in threads:
        thread.join()
    for name, cell in cells.items():
        shown = "['token-{0}']\n['token-{0}']\n['token-{0}']\n[1, 2, 3]\n"
        assert cell.log == shown.format(name)


def test_killing_the_harness_leaves_nothing_alive(cell: SandboxRunner) -> None:
    token = f"orphan-{uuid.uuid4().hex}"
    script = f"""
import threading
from pathlib import Path
from agent2rl import registry
from tests.helpers.sandbox_runner import SandboxRunner
cell = SandboxRunner(registry.find_sandbox("bubblewrap"), Path({str(cell.root)!r}))
cell.shell({(make_daemon_command(token) + "; sleep 300")!r})
"""
    root = str(Path(__file__).parents[2])
    harness = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    wait_until(lambda: find_processes_by_token(token))
    assert find_processes_by_token(token)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    wait_until(lambda: not find_processes_by_token(token))
    assert find_processes_by_token(token) == []


def test_what_clears_the_table_with_pkill_keeps_its_services(cell: SandboxRunner, tmp_path: Path) -> None:
    script = f"""
        import os, signal, urllib.request
        me = os.getpid()
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            if pid not in (1, me):
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGINT)
        print({GET.format(url='os.environ["SERVICE_URL"]')})
    """
    with serve_echo(tmp_path / "service") as service:
        exit_ = cell.python(script, sockets=(ServiceSocket("SERVICE_URL", service),))
    assert (exit_.reason, exit_.code, cell.log) == ("exited", 0, "hello\n")


def test_a_grader_and_an_agent_are_different_users_where_the_harness_is_root(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    other = SandboxRunner(SANDBOX, tmp_path / "other")
    cell.run("touch", "mine")
    other.run("touch", "mine", role="grader")
    owners = {(each.workspace / "mine").stat().st_uid for each in (cell, other)}
    assert 0 not in owners
    assert len(owners) == (2 if os.geteuid() == 0 else 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root harness drops to another user")
def test_a_mount_that_only_root_can_read_is_named_with_its_mend(cell: SandboxRunner, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(MachineError, match=r"chmod -R o\+rX"):
        cell.run("true", mounts=(Mount(closed, "closed"),))


SINCE = {
    "--perms": (0, 5, 0),
    "--clearenv": (0, 5, 0),
    "--size": (0, 7, 0),
    "--disable-userns": (0, 8, 0),
}
"""The options that bwrap got after 0.4.0, and since when."""
OLD_BWRAP = """\
#!{python}
import os, re, sys
lacking, version, bwrap = {lacking!r}, {version!r}, {bwrap!r}
if sys.argv[1] == "--version":
    sys.exit(print("bubblewrap " + version))
if sys.argv[1] == "--help":
    words = (line.split(maxsplit=1) for line in os.popen(bwrap + " --help"))
    sys.exit(print(*(line[0] for line in words if line and line[0] not in lacking), sep="\\n"))
descriptor = sys.argv[sys.argv.index("--args") + 1]
with open("/proc/self/fd/" + descriptor, "rb") as file:
    given = file.read().decode().split("\\0")
for option in given:
    if option in lacking:
        sys.exit("bwrap: Unknown option " + option)
os.execv(bwrap, ["bwrap", *sys.argv[1:]])
"""


def make_old_bwrap(folder: Path, version: str, *lacking: str) -> None:
    """Write a program that refuses what a version of bwrap does not know, and is the installed one else."""
    program = folder / "bwrap"
    number = tuple(map(int, version.split(".")))
    unknown = {*lacking, *(option for option, since in SINCE.items() if number < since)}
    bwrap = shutil.which("bwrap")
    text = OLD_BWRAP.format(python=sys.executable, lacking=unknown, version=version, bwrap=bwrap)
    program.write_text(text)
    program.chmod(0o755)


@pytest.mark.parametrize("version", ["0.4.0", "0.5.0", "0.6.1", "0.7.0"])
def test_versions_that_lack_options_keep_every_promise_too(
    isolation: Isolation, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_old_bwrap(tmp_path, version)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = SANDBOX.check()
    assert [promise.hint for promise in found.broken] == []
    assert len(found.promises) == len(isolation.promises)


def test_where_shared_memory_cannot_be_capped_the_limit_of_disk_counts_it(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_old_bwrap(tmp_path, "0.4.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cell = SandboxRunner(SANDBOX, tmp_path / "cell")
    assert cell.shell("echo x > /dev/shm/x && cat /dev/shm/x").code == 0, cell.log
    ended = cell.shell("head -c 200M /dev/zero > /dev/shm/y; sleep 60", disk=100 * MIB)
    assert ended.reason == "disk"


def test_a_hidden_file_is_empty_in_old_versions_too(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_old_bwrap(tmp_path, "0.4.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    test_a_hidden_file_is_empty_and_cannot_be_written(SandboxRunner(SANDBOX, tmp_path / "cell"), tmp_path)


def test_a_version_that_is_too_old_is_named_with_the_needed_one(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_old_bwrap(tmp_path, "0.2.1", "--json-status-fd")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (promise,) = SANDBOX.check().broken
    assert "bwrap 0.2.1 is too old: the sandbox needs 0.4.0 or newer" in promise.hint
    assert "conda-forge" in promise.remedy
