"""The sandbox without namespaces: what it keeps holds against attacks, and what it does not is said."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Mount, ServiceSocket
from agent2rl.sandboxes import confined, landlock, selftest
from agent2rl.sandboxes.directory_access import let_user_pass
from tests.helpers.hostile_programs import (
    ALWAYS_EQUAL_PROGRAM,
    REFERENCE_PROGRAM,
    make_job,
    open_sandboxed_pool,
)
from tests.helpers.sandbox_runner import (
    SandboxRunner,
    find_processes_by_token,
    make_daemon_command,
    serve_echo,
)
from tests.helpers.waiting import wait_until

SANDBOX = registry.find_sandbox("confined")
VERSION = landlock.read_version()
IS_ROOT = os.geteuid() == 0
ORDINARY_UID = 30_000 + os.getpid() % 30_000
ROOT = Path(__file__).parents[2]
needs_tcp_rules = pytest.mark.skipif(VERSION < landlock.TCP_FROM, reason="Landlock has no TCP rules here")
needs_broker = pytest.mark.skipif(not confined.can_broker_sockets(), reason="no broker works here")
needs_scopes = pytest.mark.skipif(VERSION < landlock.SCOPES_FROM, reason="Landlock has no scopes here")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only a root harness has a user for the command")


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    if not VERSION:
        pytest.skip("this kernel has no Landlock")
    found = SANDBOX.check()
    if [promise.name for promise in found.promises] == ["the sandbox starts"]:
        pytest.skip(f"the confined sandbox cannot run here: {found.promises[0].hint}")
    return found


@pytest.fixture
def cell(isolation: Isolation, tmp_path: Path) -> SandboxRunner:
    return SandboxRunner(SANDBOX, tmp_path)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Evaluation data of the harness that every user of the machine could read."""
    folder = tmp_path / "answers"
    folder.mkdir()
    (folder / "key").write_text("42-is-the-answer")
    return folder


def list_gaps(version: int, is_root: bool, has_broker: bool = True) -> dict[str, str]:
    return confined.list_gaps(version, is_root, has_broker)


def test_every_promise_that_it_makes_holds_and_the_others_are_named(isolation: Isolation) -> None:
    assert isolation.broken == ()
    assert isolation.level == "partial"
    names = {*selftest.NAMES.values(), *selftest.SHARED_HOST_NAMES.values()}
    assert {promise.name for promise in isolation.promises} == names
    gaps = confined.list_gaps(VERSION, IS_ROOT, confined.can_broker_sockets())
    texts = selftest.NAMES | selftest.SHARED_HOST_NAMES
    assert {promise.name: promise.hint for promise in isolation.not_kept} == {
        texts[key]: reason for key, reason in gaps.items()
    }


def test_what_it_does_not_keep_depends_on_the_kernel_and_the_user() -> None:
    always = {"files", "hidden", "processes", "unix-sockets"}
    assert set(list_gaps(6, is_root=True)) == always
    assert set(list_gaps(9, is_root=True)) == always - {"unix-sockets"}
    assert set(list_gaps(6, is_root=False)) == always | {"attributes", "given-files"}
    assert set(list_gaps(5, is_root=True)) == always | {"abstract-sockets"}
    assert set(list_gaps(3, is_root=True)) == always | {"abstract-sockets", "network"}
    worst = {"abstract-sockets", "network", "read-only", "signals", "daemon", "attributes", "given-files"}
    assert set(list_gaps(1, is_root=False)) == always | worst
    assert "every user" in list_gaps(6, is_root=True)["unix-sockets"]
    assert "ssh agent" in list_gaps(6, is_root=False)["unix-sockets"]
    assert "no other host" in list_gaps(3, is_root=True)["network"]
    assert "every host" in list_gaps(6, is_root=True, has_broker=False)["network"]
    assert "can be used" in list_gaps(3, is_root=True, has_broker=False)["network"]


def test_a_kernel_without_landlock_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(landlock, "read_version", lambda: 0)
    with pytest.raises(MachineError, match="no Landlock"):
        SandboxRunner(SANDBOX, tmp_path).run("true")
    (promise,) = SANDBOX.check().broken
    assert "5.13" in promise.hint


def test_a_command_works_in_its_workspace_and_its_exit_code_comes_through(cell: SandboxRunner) -> None:
    script = """
        pwd; echo kept > file; mkdir -p a b && touch a/x && mv a/x b/x && ln -s b c && chmod +x b/x
        echo x > $TMPDIR/x && echo x > ~/x && cat c/x && git init -q repository && git -C repository status -s
        python3 -c 'import multiprocessing; multiprocessing.Lock()' && exit 7
    """
    exit_ = cell.shell(script)
    assert (exit_.reason, exit_.code) == ("exited", 7), cell.log
    assert cell.log.split()[0] == str(cell.workspace.resolve()) == str(SANDBOX.workspace(cell.workspace))
    assert (cell.workspace / "file").read_text() == "kept\n"


@needs_root
def test_no_other_user_of_the_machine_can_write_in_the_workspace(cell: SandboxRunner) -> None:
    assert cell.shell("touch mine").code == 0, cell.log
    assert cell.workspace.stat().st_mode & 0o7777 == 0o1775
    assert cell.workspace.stat().st_gid == (cell.workspace / "mine").stat().st_gid != 0


def test_python_with_its_packages_runs_and_cannot_be_changed(cell: SandboxRunner) -> None:
    script = """
        import agent2rl, pydantic
        for module in (agent2rl, pydantic):
            try:
                open(module.__file__, "a")
            except OSError as error:
                print(error.errno)
    """
    assert cell.python(script).code == 0, cell.log
    assert cell.log.split() == ["13", "13"]


def test_pip_can_ask_which_distribution_this_is(cell: SandboxRunner) -> None:
    """It tells each index. It takes the absence of a file in /etc for an answer, but not a refusal."""
    script = "from pip._internal.network.session import user_agent; print(user_agent())"
    assert cell.python(script).code == 0, cell.log
    assert cell.log.startswith("pip/")


def test_git_works_although_its_settings_for_the_machine_cannot_be_read(cell: SandboxRunner) -> None:
    done = cell.shell("git init -q tree && cd tree && git add . && git status --short && echo well")
    assert (done.code, cell.log) == (0, "well\n")


def test_mounts_are_links_that_can_be_read_and_only_writable_ones_written(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    model, outbox = tmp_path / "model", tmp_path / "outbox"
    for directory in (model, outbox):
        directory.mkdir()
    (model / "weights").write_text("w")
    mounts = (Mount(model, "models/base"), Mount(outbox, "out", writable=True))
    script = "cat models/base/weights; touch out/mine; touch models/base/x || echo closed"
    for _ in range(2):  # an agent that is started again finds the links
        assert cell.shell(script, mounts=mounts).code == 0, cell.log
    assert cell.log.startswith("w")
    assert cell.log.strip().endswith("closed")
    assert (outbox / "mine").exists()
    with pytest.raises(UserError, match="confined sandbox cannot show"):
        cell.run("true", mounts=(Mount(model, "/no/such/place"),))


def test_a_service_answers(cell: SandboxRunner, tmp_path: Path) -> None:
    script = """
        import os, urllib.request
        url, body = os.environ["SERVICE_URL"], b"x" * 300_000
        print(urllib.request.urlopen(url, timeout=20).read().decode())
        print(urllib.request.urlopen(urllib.request.Request(url, body), timeout=20).read() == body)
    """
    with serve_echo(tmp_path / "service") as service:
        cell.python(script, sockets=(ServiceSocket("SERVICE_URL", service),))
    assert cell.log == "hello\nTrue\n"


def test_evaluation_data_cannot_be_read_by_path_or_link_or_through_a_process(
    cell: SandboxRunner, answers: Path
) -> None:
    script = f"""
        cat {answers}/key; ls {answers}; ln -s {answers} mine; cat mine/key; ls mine/
        ln {answers}/key hard; cat hard; cp {answers}/key copy; cat copy
        cat /proc/{os.getpid()}/root{answers}/key /proc/{os.getpid()}/cwd/pyproject.toml
        cat /proc/{os.getpid()}/environ /proc/{os.getpid()}/mem /proc/{os.getpid()}/maps
        cat /proc/{os.getpid()}/fd/0 /proc/{os.getpid()}/fd/3
        head -c9 < {answers}/key; tail -n1 {answers}/key
        echo done
    """
    cell.shell(script)
    assert "42-is-the-answer" not in cell.log
    lines = cell.log.strip().splitlines()
    assert lines[-1] == "done"
    refusals = ("ermission denied", "not permitted", "No such file", "cross-device link")
    assert all(any(words in line for words in refusals) for line in lines[:-1]), cell.log


def test_hidden_directories_in_shared_ones_cannot_be_read(cell: SandboxRunner, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for place in ("open", "answers/more"):
        (shared / place).mkdir(parents=True)
        (shared / place / "key").write_text(place)
    (shared / "link").symlink_to("answers")
    (shared / "tape").write_text("hidden-file")
    cell.shell(
        "cat shared/open/key; cat shared/answers/more/key shared/link/more/key shared/tape",
        mounts=(Mount(shared, "shared"),),
        hidden=(shared / "answers", shared / "tape"),
    )
    assert cell.log.startswith("open")
    assert cell.log.count("ermission denied") == 3
    assert "answers/more\n" not in cell.log
    assert "hidden-file" not in cell.log


def test_nothing_outside_the_workspace_can_be_written(cell: SandboxRunner, answers: Path) -> None:
    script = f"""
        for file in {answers}/key {answers}/new {answers}/../log /etc/passwd /usr/x /tmp/x /x /run/x \\
                    /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do
            (echo x > $file) 2>/dev/null && echo "wrote $file"
        done
        rm -f {answers}/key 2>/dev/null; mv {answers} gone 2>/dev/null; mkdir {answers}/dir 2>/dev/null
        truncate -s 0 {answers}/key 2>/dev/null
        unshare -U true 2>/dev/null && echo "a new namespace"
        su -c true 2>/dev/null && echo "another user"
        echo end
    """
    cell.shell(script)
    assert cell.log == "end\n"
    if IS_ROOT or VERSION >= landlock.TRUNCATES_FROM:
        assert (answers / "key").read_text() == "42-is-the-answer"


@pytest.fixture
def host_service() -> Iterator[int]:
    """The port of another service of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@needs_tcp_rules
def test_no_other_port_and_no_other_protocol_is_reached(cell: SandboxRunner, host_service: int) -> None:
    script = f"""
        import socket
        port = {host_service}
        def tried(name, action):
            try:
                print(name, action())
            except OSError as error:
                print(name, "refused", error.errno in (1, 13))
        def connect(family, address):
            with socket.socket(family) as link:
                link.settimeout(5)
                link.connect(address)
        tried("loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
        tried("outside", lambda: connect(socket.AF_INET, ("192.0.2.1", 443)))
        tried("v6", lambda: connect(socket.AF_INET6, ("::ffff:127.0.0.1", port)))
        tried("bind", lambda: socket.create_server(("0.0.0.0", port + 1 if port < 65535 else 1024)))
        tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        tried("udp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC))
        tried("mptcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
        def open_fast():
            with socket.socket() as link:
                link.settimeout(5)
                return link.sendto(b"hello", 0x20000000, ("127.0.0.1", port))
        tried("fast open", open_fast)
    """
    assert cell.python(script).code == 0, cell.log
    names = ["loopback", "outside", "v6", "bind", "udp", "udp6", "mptcp", "fast open"]
    assert cell.log.splitlines() == [f"{name} refused True" for name in names]


@pytest.fixture
def other_address() -> str:
    """An address of this machine on another device than the loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as routed:
        try:
            routed.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        return str(routed.getsockname()[0])


@needs_broker
def test_a_service_port_is_open_on_the_loopback_device_alone(
    cell: SandboxRunner, tmp_path: Path, other_address: str
) -> None:
    script = """
        import os, socket, urllib.parse
        port = urllib.parse.urlsplit(os.environ["SERVICE_URL"]).port
        def connect(address, device=None):
            try:
                with socket.socket() as link:
                    if device is not None:
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
                    link.settimeout(1)
                    link.connect((address, port))
                    return "connected"
            except OSError as error:
                return type(error).__name__
        here = "127.0.0.1"
        print(connect(here), connect("192.0.2.1"), connect(here, b""), connect(here, b"eth0"))
        with socket.socket() as listener:
            listener.listen()
            open("port.new", "w").write(str(listener.getsockname()[1]))
            os.rename("port.new", "port")
            listener.settimeout(20)
            listener.accept()[0].sendall(b"x")
            while not os.path.exists("tried"):
                pass
            listener.settimeout(0.2)
            try:
                listener.accept()
                print("reached")
            except TimeoutError:
                print("not reached")
    """
    with serve_echo(tmp_path / "service") as service, ThreadPoolExecutor() as pool:
        service_sockets = (ServiceSocket("SERVICE_URL", service),)
        ended = pool.submit(cell.python, script, sockets=service_sockets)
        wait_until(lambda: (cell.workspace / "port").exists() or ended.done())
        port = int((cell.workspace / "port").read_text())
        with socket.create_connection(("127.0.0.1", port), 5) as link:
            assert link.recv(1) == b"x"
        with suppress(OSError):
            socket.create_connection((other_address, port), 0.5).close()
        (cell.workspace / "tried").touch()
        assert ended.result().code == 0, cell.log
    assert cell.log.splitlines() == ["connected TimeoutError PermissionError PermissionError", "not reached"]


@needs_broker
def test_on_older_kernels_only_this_machine_is_reached(
    cell: SandboxRunner, host_service: int, other_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "read_version", lambda: landlock.TCP_FROM - 1)
    script = f"""
        import socket
        for address in ("127.0.0.1", "{other_address}", "192.0.2.1"):
            try:
                with socket.socket() as link:
                    link.settimeout(0.5)
                    link.connect((address, {host_service}))
                    print("connected")
            except TimeoutError:
                print("no answer")
    """
    assert cell.python(script).code == 0, cell.log
    assert cell.log.split("\n") == ["connected", "no answer", "no answer", ""]


@needs_broker
def test_sockets_are_as_they_were_asked_for_and_the_commands_own(cell: SandboxRunner) -> None:
    """The broker is no process of the command, and answers whoever asks, also if others are killed."""
    script = """
        import multiprocessing, os, pathlib, resource, signal, socket, time
        for kind in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | kind)
            print(made.getblocking(), os.fstat(made.fileno()).st_uid == os.getuid())
        try:
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, 6).bind(("127.0.0.1", 0))
        except PermissionError:
            print("no bind")
        def ask(number):
            while True:
                socket.socket().close()
                pathlib.Path(f"answered-{number}").touch()
        asking = [multiprocessing.Process(target=ask, args=(number,)) for number in range(3)]
        for process in asking:
            process.start()
        while len(list(pathlib.Path().glob("answered-*"))) < len(asking):
            time.sleep(0.02)
        for process in asking:
            process.kill()
            process.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        held = []
        try:
            while True:
                held.append(socket.socket())
        except OSError as error:
            print(error.strerror)
        held.clear()
        socket.socket().close()
    """
    assert cell.python(script, processes=4).reason == "exited"
    lines = cell.log.splitlines()
    assert lines == ["True True", "False True", "True True", "no bind", "Too many open files"]


def test_where_no_broker_works_it_runs_without_and_says_so(
    cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "can_broker_sockets", lambda: False)
    found = SANDBOX.check()
    assert found.broken == ()
    gaps = {promise.name: promise.hint for promise in found.not_kept}
    expected = "every host" if VERSION >= landlock.TCP_FROM else "can be used"
    assert expected in gaps[selftest.NAMES["network"]]


def test_no_process_can_be_traced_and_the_hosts_not_signalled(cell: SandboxRunner) -> None:
    script = f"""
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.ptrace(16, {os.getpid()}, 0, 0), libc.ptrace(0, 0, 0, 0))
        for pid in ({os.getpid()}, 1):
            try:
                open(f"/proc/{{pid}}/mem", "rb")
                print("opened")
            except OSError:
                pass
        try:
            os.kill({os.getpid()}, 0)
            print("signalled")
        except OSError:
            print("refused")
    """
    cell.python(script)
    lines = cell.log.splitlines()
    assert lines[0] == "-1 -1"
    if IS_ROOT or VERSION >= landlock.SCOPES_FROM:
        assert lines[1:] == ["refused"]


def test_no_memory_is_left_behind(cell: SandboxRunner) -> None:
    """System V segments and files in the host's /dev/shm hold memory without any process."""
    name = f"agent2rl-{uuid.uuid4().hex}"
    script = f"""
        import ctypes, pathlib
        print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))
        folder = pathlib.Path("/dev/shm/{name}")
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "file").write_text("x")
    """
    assert cell.python(script).code == 0, cell.log
    assert cell.log == "-1\n"
    left = Path("/dev/shm", name)
    assert left.exists() != IS_ROOT  # without a user of its own, nobody knows whose files these are
    shutil.rmtree(left, ignore_errors=True)


@needs_scopes
def test_abstract_sockets_of_the_host_cannot_be_reached(cell: SandboxRunner) -> None:
    name = f"agent2rl-{uuid.uuid4().hex}"
    script = f"""
        import socket
        ours = socket.socket(socket.AF_UNIX)
        ours.bind("\\0{name}-inside")
        ours.listen()
        socket.socket(socket.AF_UNIX).connect("\\0{name}-inside")
        try:
            socket.socket(socket.AF_UNIX).connect("\\0{name}")
        except PermissionError:
            print("refused")
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        cell.python(script)
    assert cell.log == "refused\n"


@dataclass(frozen=True)
class OrdinaryUser:
    """A user that runs harnesses without root."""

    home: Path

    def run(self, script: str) -> str:
        """Run a Python script that starts sandboxes; return what it prints."""
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(self.home)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONPATH": str(ROOT)},
            user=ORDINARY_UID if IS_ROOT else None,
            group=ORDINARY_UID if IS_ROOT else None,
            extra_groups=[] if IS_ROOT else None,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def ordinary_user(isolation: Isolation) -> Iterator[OrdinaryUser]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, ExitStack() as rights:
        if IS_ROOT:
            os.chown(name, ORDINARY_UID, ORDINARY_UID)
            shown = [Path(sys.executable), Path(sys.base_prefix), ROOT / "src"]
            rights.enter_context(let_user_pass(ORDINARY_UID, shown))
        yield OrdinaryUser(Path(name))


FIND_SERVICES = r"""
import os, re, socket, urllib.request

def can_open(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return True
    except OSError:
        return False

def ask(path):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        try:
            link.connect(path)
        except OSError:
            return "no connection"  # a service of another user
        try:
            link.sendall(b"GET / HTTP/1.1\r\nHost: a-service-of-somebody-else\r\n\r\n")
            return "an answer" if link.recv(100) else "silence"
        except ConnectionError:
            return "silence"

print(urllib.request.urlopen(os.environ["SERVICE_URL"], timeout=20).read().decode(), flush=True)
paths = re.findall(r"/tmp/agent2rl-\S+/http.sock", open("/proc/net/unix").read())
for path in sorted(set(paths)):
    print("service:", ask(path), path)
    print("key:", can_open(path.replace(".sock", ".key")) or can_open(os.path.dirname(path)))
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read()
    except OSError:
        continue
    # A kernel thread has no command. The last two hold the key of their own service.
    if not command or int(pid) in (os.getpid(), os.getppid()):
        continue
    print(command)
    for name in ("environ", "auxv", "maps", "mem", "cwd", *(f"fd/{number}" for number in range(64))):
        if can_open(f"/proc/{pid}/{name}"):
            print("opened:", pid, name)
"""


@needs_scopes
def test_without_a_user_of_its_own_it_finds_the_services_of_other_runs_and_gets_no_answer(
    ordinary_user: OrdinaryUser,
) -> None:
    log = ordinary_user.run(
        f"""
        import sys
        from pathlib import Path
        from agent2rl import registry
        from agent2rl.core.sandbox import ServiceSocket
        from agent2rl.grading.server import serve_on_socket
        from agent2rl.net.socket_keys import read_key
        from tests.helpers.sandbox_runner import SandboxRunner

        async def say_hello(scope, receive, send):
            await send({{"type": "http.response.start", "status": 200, "headers": []}})
            await send({{"type": "http.response.body", "body": b"hello"}})

        with serve_on_socket(say_hello) as own, serve_on_socket(say_hello) as other:
            cell = SandboxRunner(registry.find_sandbox("confined"), Path(sys.argv[1]))
            cell.python({FIND_SERVICES!r}, sockets=(ServiceSocket("SERVICE_URL", own),))
            print(cell.log)
            print("the key is", "in the log" if read_key(other).decode() in cell.log else "not in the log")
        """
    )
    lines = log.splitlines()
    assert lines[0] == "hello"
    answers = [line.split()[1] for line in lines if line.startswith("service:")]
    assert "an" not in answers
    assert answers.count("silence") >= 2, log
    assert {line for line in lines if line.startswith("key:")} == {"key: False"}
    assert [line for line in lines if line.startswith("opened:")] == []
    assert lines[-1] == "the key is not in the log"


def test_the_promises_hold_without_root_too(ordinary_user: OrdinaryUser) -> None:
    log = ordinary_user.run(
        """
        from agent2rl import registry
        isolation = registry.find_sandbox("confined").check()
        print([(promise.name, promise.hint) for promise in isolation.broken])
        print([promise.name for promise in isolation.promises if promise.holds])
        """
    )
    broken, held = log.splitlines()
    assert broken == "[]"
    if VERSION >= landlock.TCP_FROM:
        assert selftest.NAMES["network"] in held
    assert selftest.NAMES["service"] in held


def test_with_gpus_a_command_can_name_its_threads_as_cuda_does_and_write_no_setting_of_the_kernel(
    cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's cuInit fails with error 304 if it cannot. Another device stands for a GPU."""
    monkeypatch.setattr(confined, "list_device_mounts", lambda _: [Mount(Path("/dev/zero"), "/dev/zero")])
    cell.python(
        f"""
        import pathlib, threading
        def write(path, text):
            try:
                pathlib.Path(path).write_text(text)
            except OSError as error:
                return type(error).__name__
            return "written"
        def name_thread():
            print(write(f"/proc/self/task/{{threading.get_native_id()}}/comm", "cuda"))
        thread = threading.Thread(target=name_thread)
        thread.start()
        thread.join()
        print(write("/proc/sys/kernel/core_pattern", "x"), write("/proc/{os.getpid()}/mem", "x"))
        """,
        gpus=("0",),
    )
    assert cell.log.split() == ["written", "PermissionError", "PermissionError"]


def test_daemons_die_when_the_command_ends_by_itself_and_when_it_is_killed(cell: SandboxRunner) -> None:
    token = f"daemon-{uuid.uuid4().hex}"
    assert cell.shell(make_daemon_command(token)).reason == "exited"
    assert find_processes_by_token(token) == []
    deaf = f"trap '' INT TERM HUP; {make_daemon_command(token)}; touch up; while :; do sleep 1; done"
    assert cell.shell(deaf, grace_seconds=0.1, **cell.due_once("up")).reason == "deadline"
    assert find_processes_by_token(token) == []


def test_a_command_that_kills_all_it_can_leaves_no_daemon(cell: SandboxRunner) -> None:
    """It can kill the program that started it, but not the guard."""
    if not IS_ROOT and VERSION < landlock.SCOPES_FROM:
        pytest.skip("here the command could kill the guard and this process")
    token = f"daemon-{uuid.uuid4().hex}"
    script = f"""
        import os, signal, subprocess, time
        subprocess.run(["bash", "-c", {make_daemon_command(token)!r}])
        stat = open(f"/proc/{{os.getppid()}}/stat").read()
        for pid in (os.getppid(), int(stat.rpartition(")")[2].split()[1])):
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError:
                pass
        time.sleep(60)
    """
    exit_ = cell.python(script)
    assert (exit_.reason, exit_.code) == ("exited", 137)
    assert find_processes_by_token(token) == []


def test_killing_the_harness_leaves_nothing_alive(cell: SandboxRunner) -> None:
    token = f"orphan-{uuid.uuid4().hex}"
    script = f"""
from pathlib import Path
from agent2rl import registry
from tests.helpers.sandbox_runner import SandboxRunner
cell = SandboxRunner(registry.find_sandbox("confined"), Path({str(cell.root)!r}))
cell.shell({(make_daemon_command(token) + "; sleep 300")!r})
"""
    harness = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    wait_until(lambda: find_processes_by_token(token))
    assert find_processes_by_token(token)
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    wait_until(lambda: not find_processes_by_token(token))
    assert find_processes_by_token(token) == []


def test_limits_hold_and_the_deadline_asks_first(cell: SandboxRunner) -> None:
    crowd = cell.shell("for i in $(seq 60); do sleep 300 & done; wait", processes=30)
    polite = "trap 'echo asked; exit' INT; touch up; sleep 300 & wait"
    asked = cell.shell(polite, grace_seconds=60, **cell.due_once("up"))
    assert [crowd.reason, asked.reason] == ["processes", "deadline"]
    assert cell.log.endswith("asked\n")


def test_the_environment_and_open_files_are_as_in_bubblewrap(
    cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_KEY", "canary")
    script = "import os, json; print(json.dumps([dict(os.environ), sorted(os.listdir('/proc/self/fd'))]))"
    cell.run(command=Command((sys.executable, "-c", script), {"GIVEN": "1"}))
    seen, files = json.loads(cell.log)
    expected = {"PATH", "HOME", "USER", "LANG", "TMPDIR", "GOMP_SPINCOUNT", "GIVEN"}
    assert set(seen) - {"VIRTUAL_ENV", "GIT_CONFIG_NOSYSTEM"} == expected
    assert files == ["0", "1", "2", "3"]  # the last is listdir's own


@needs_root
def test_each_sandbox_has_a_user_of_its_own_that_can_pass_through_closed_directories(
    cell: SandboxRunner, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    inner = SandboxRunner(SANDBOX, closed / "inner")
    script = "touch mine; mkdir folder; id -u; grep Cap /proc/self/status"
    assert inner.shell(script).code == 0, inner.log
    assert (inner.workspace / "mine").stat().st_uid == int(inner.log.split()[0]) != 0
    assert {line.split()[1] for line in inner.log.splitlines()[1:]} == {"0" * 16}
    assert closed.stat().st_mode & 0o777 == 0o700
    assert "system.posix_acl_access" not in os.listxattr(closed)


@needs_root
def test_what_is_given_in_the_workspace_can_neither_be_changed_nor_replaced(cell: SandboxRunner) -> None:
    cell.enclosure()
    data = cell.workspace / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("given")
    script = "echo x > data/train.jsonl; mv data other; rm -rf data; touch data/new; cat data/train.jsonl"
    cell.shell(script, mounts=(Mount(data, "data"),))
    assert cell.log.endswith("given")
    assert (data / "train.jsonl").read_text() == "given"


@needs_root
def test_a_root_without_the_capabilities_is_told_which(
    cell: SandboxRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "NEEDED_CAPABILITIES", {"SETUID": 63})
    with pytest.raises(MachineError, match="SETUID"):
        cell.run("true")


def test_programs_that_a_model_wrote_run_in_it_too(isolation: Isolation, tmp_path: Path) -> None:
    programs = [REFERENCE_PROGRAM, "def solve(x):\n    return x\n", ALWAYS_EQUAL_PROGRAM]
    with open_sandboxed_pool(tmp_path / "programs", 1, "confined") as pool:
        verdicts = pool.judge_jobs([make_job(program) for program in programs])
    assert [verdict.passed for verdict in verdicts] == [True, False, False]


def test_a_world_opens_where_its_expert_is_hidden(cell: SandboxRunner) -> None:
    """The folder can be listed there, and its files cannot be opened."""
    package = Path(selftest.__file__).parents[1]
    experts = tuple(package.glob("environments/*/expert"))
    script = """
        from agent2rl.environments.alfworld import environment as alfworld
        from agent2rl.environments.webshop import environment as webshop
        print(alfworld.AlfworldExpert)
    """
    assert cell.python(script, hidden=experts).code == 0, cell.log
    assert cell.log == "None\n"
