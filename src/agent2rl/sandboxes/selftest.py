"""The sandbox's self-test: run a hostile probe in a real sandbox and report which promises hold.

The probe runs as an agent. Gradings and generated programs see other files, so these roles are started too.
It shows that the promises hold on this machine today. It does not show that there is no other way out.
"""

import asyncio
import functools
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from agent2rl.core.errors import Agent2RLError, MachineError
from agent2rl.core.records import Isolation, Limits, Promise
from agent2rl.core.sandbox import BARE_PYTHON, Command, Enclosure, Mount, Role, Sandbox, ServiceSocket
from agent2rl.net.key_gate import KeyGate
from agent2rl.net.socket_keys import write_key
from agent2rl.sandboxes import start_failures
from agent2rl.system.unix import fcntl

PROBE = Path(__file__).with_name("probe.py")
NAMES = {
    "no-root": "not root inside",
    "owner": "not root outside",
    "no-capabilities": "no capabilities",
    "workspace": "workspace, HOME and TMPDIR are writable",
    "read-only": "everything else is read-only",
    "files": "files of the host are invisible",
    "hidden": "the harness's own directories are hidden inside what is shared",
    "processes": "processes of the host are invisible",
    "environment": "the environment is clean",
    "service": "the service socket answers",
    "network": "no network but the service socket",
    "vsock": "no way to the hypervisor (AF_VSOCK)",
    "kernel-settings": "/proc/sys is not writable",
    "namespaces": "no new user namespaces",
    "tracing": "no tracing of processes",
    "daemon": "daemons die with the sandbox",
}
SHARED_HOST_NAMES = {
    "content": "the content of the host's files cannot be read",
    "hidden-content": "files in the harness's own directories cannot be read",
    "given-files": "read-only parts of the workspace cannot be changed or replaced",
    "attributes": "modes and times of the host's files cannot be changed",
    "memory": "memory and environment of the host's processes cannot be read",
    "signals": "the host's processes cannot be signalled",
    "unix-sockets": "unix sockets of the host cannot be reached",
    "abstract-sockets": "abstract sockets of the host cannot be reached",
}
"""What follows by itself where the host's files and processes are invisible, and must be tested elsewhere."""
HELD_IN_ANY_CASE = {"read-only": "read-only-files"}
"""Promises that a sandbox can lack in part, with the finding that must hold all the same."""
WRITABLE_DEVICES = {
    "read-only": "The command can write to its /dev, a directory in memory that ends with it. The rest is "
    "read-only."
}
"""The gap of sandboxes whose command owns /dev inside."""
VARIABLES = (
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "GOMP_SPINCOUNT", "VIRTUAL_ENV", "SERVICE_URL"),
    "GIT_CONFIG_NOSYSTEM",
)
PARTS = ("workspace", "scratch", "read-only", "secret", "workspace/given")
WORD = "open"
BROKEN = "Do not run agents here. Report it with the versions of the kernel and of the sandbox's program."


def run_self_test(
    name: str,
    sandbox: Sandbox,
    hidden: tuple[Path, ...] = (),
    gaps: Mapping[str, str] | None = None,
    more_names: Mapping[str, str] | None = None,
) -> Isolation:
    """Return every promise with its result; if the sandbox does not start, only that broken promise.

    `hidden` are paths of this machine that must not be visible either. `gaps` are the promises that the
    sandbox does not make, each with the reason. `more_names` are further promises to test.
    """
    try:
        findings = _try_roles(sandbox, hidden)
    except Agent2RLError as error:
        text, remedy = start_failures.explain_failure(error)
        promise = Promise(name="the sandbox starts", holds=False, hint=text, remedy=remedy)
        return Isolation(sandbox=name, isolates=True, promises=(promise,))
    names = NAMES | dict(more_names or {})
    gaps = {
        key: reason for key, reason in (gaps or {}).items() if not findings.get(HELD_IN_ANY_CASE.get(key, ""))
    }
    promises = (
        Promise(
            name=text,
            holds=not findings[key],
            hint=gaps.get(key, f"Found: {findings[key]}. {BROKEN}" if findings[key] else ""),
            promised=key not in gaps,
        )
        for key, text in names.items()
    )
    return Isolation(sandbox=name, isolates=True, promises=tuple(promises))


def _try_roles(sandbox: Sandbox, hidden: tuple[Path, ...]) -> dict[str, str]:
    """Run the probe as an agent, and start the other roles meanwhile; raise an error if one fails."""
    with ThreadPoolExecutor() as pool:
        starts = [
            pool.submit(_require_start, sandbox, "grader", sys.executable),
            pool.submit(_require_start, sandbox, "program", BARE_PYTHON, hidden),
        ]
        findings = _run_probe(sandbox, hidden)
    for start in starts:
        start.result()
    return findings


def _require_start(sandbox: Sandbox, role: Role, python: str, hidden: tuple[Path, ...] = ()) -> None:
    """Start Python in a role: each sees other files, and a sandbox may need one that is not among them."""
    with tempfile.TemporaryDirectory(prefix="agent2rl-check-") as name:
        root = Path(name).resolve()
        for part in ("workspace", "scratch"):
            (root / part).mkdir()
        enclosure = _make_enclosure(role, root, hidden)
        try:
            exit_ = sandbox.run(Command((python, "-I", "-S", "-c", "")), enclosure, threading.Event())
        except Agent2RLError as error:
            reason = error.message.removeprefix("The sandbox did not start: ")
            raise MachineError(f"The sandbox did not start as {role}: {reason}", error.hint) from error
        if exit_.code != 0:
            output = enclosure.log.read_text(encoding="utf-8", errors="replace")
            raise MachineError(f"Python did not start as {role} ({exit_.reason}): {output[-1000:]}")


def _make_enclosure(role: Role, root: Path, hidden: tuple[Path, ...]) -> Enclosure:
    return Enclosure(
        role=role,
        workspace=root / "workspace",
        scratch=root / "scratch",
        log=root / "log",
        wall_seconds=20,
        limits=Limits(memory_bytes=1 << 30, disk_bytes=1 << 30, processes=64),
        hidden=hidden,
        grace_seconds=1,
    )


def _run_probe(sandbox: Sandbox, hidden: tuple[Path, ...]) -> dict[str, str]:
    """Return what breaks each promise; empty if nothing does."""
    with tempfile.TemporaryDirectory(prefix="agent2rl-check-") as name:
        root = Path(name).resolve()
        shared, private = root / "shared", root / "shared" / "private"
        for directory in (*(root / part for part in PARTS), shared, private):
            directory.mkdir()
            directory.chmod(0o755)  # whatever the umask
        for directory in (root / "secret", private):
            (directory / "key").write_text(WORD, encoding="ascii")
            (directory / "key").chmod(0o644)
        with (
            _serve_word(root / "service", root / "other-service"),
            _listen(socket.AF_INET, ("127.0.0.1", 0)) as port,
            _listen(socket.AF_UNIX, str(root / "socket")),
            _listen(socket.AF_UNIX, f"\0{root}"),
        ):
            enclosure = replace(
                _make_enclosure("agent", root, (private, *hidden)),
                mounts=(
                    Mount(root / "read-only", "read-only"),
                    Mount(root / "workspace" / "given", "given"),
                    Mount(shared, str(shared)),
                ),
                sockets=(ServiceSocket("SERVICE_URL", root / "service"),),
            )
            setup = {
                "secret": str(root / "secret"),
                "shared": str(shared),
                "hidden": _list_inodes((private, *hidden)),
                "read_only": "read-only",
                "given": "given",
                "port": port.getsockname()[1],
                "other_service": str(root / "other-service"),
                "socket": str(root / "socket"),
                "abstract": str(root),
                "process": os.getpid(),
                "word": WORD,
                "variables": VARIABLES,
            }
            command = Command((sys.executable, "-I", str(PROBE), json.dumps(setup)))
            exit_ = sandbox.run(command, enclosure, threading.Event())
        output = enclosure.log.read_text(encoding="utf-8", errors="replace")
        if exit_.code != 0:
            raise MachineError(f"The self-test did not finish ({exit_.reason}): {output[-1000:]}")
        lock = enclosure.workspace / "daemon.lock"
        outside = {
            "owner": "" if lock.stat().st_uid != 0 else "its files belong to uid 0",
            "daemon": "" if _is_unlocked(lock) else "a daemon is still alive",
        }
        inside: dict[str, str] = json.loads(output.splitlines()[-1])
        return inside | outside


def _list_inodes(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return device and inode of each path that exists, by its given and its real path."""
    inodes = []
    for path in {alias for given in paths for alias in (given, Path(os.path.realpath(given)))}:
        with suppress(OSError):
            status = path.stat()
            inodes.append((str(path), status.st_dev, status.st_ino))
    return inodes


def _is_unlocked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def _listen(family: int, address: tuple[str, int] | str) -> Iterator[socket.socket]:
    """Listen as a service of the host. Connections are not accepted, but succeed."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        if isinstance(address, str) and not address.startswith("\0"):
            Path(address).chmod(0o777)
        listener.listen()
        yield listener


class _WordProtocol(asyncio.Protocol):
    """Answers a request with the test word."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self._transport.write(b"HTTP/1.0 200 OK\r\n\r\n" + WORD.encode())
        self._transport.close()


@contextmanager
def _serve_word(*paths: Path) -> Iterator[None]:
    """Serve the test word on unix sockets with keys, as the harness serves its services."""
    loop = asyncio.new_event_loop()
    servers = [loop.run_until_complete(_open_server(path)) for path in paths]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for server in servers:
            server.close()
        loop.close()


async def _open_server(path: Path) -> asyncio.Server:
    gate = KeyGate(write_key(path))
    open_protocol = functools.partial(gate.guard, _WordProtocol)
    server = await asyncio.get_running_loop().create_unix_server(open_protocol, path)
    path.chmod(0o666)
    return server
