"""Enclosures, service sockets and hostile scripts for the tests of sandboxes."""

import functools
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from agent2rl import registry
from agent2rl.core.records import Limits
from agent2rl.core.sandbox import Command, Enclosure, Exit, Sandbox

MIB = 1 << 20


@functools.cache
def is_bubblewrap_allowed() -> bool:
    """Whether it is installed and may make namespaces here."""
    return not registry.find_sandbox("bubblewrap").check().broken


@dataclass(frozen=True)
class SandboxRunner:
    """A sandbox with directories of its own to run scripts in."""

    sandbox: Sandbox
    root: Path
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def log(self) -> str:
        return (self.root / "log").read_text(encoding="utf-8", errors="replace")

    def enclosure(self, **changes: Any) -> Enclosure:
        """A roomy one; `memory`, `disk` and `processes` change its limits, all else its fields."""
        limits = Limits(
            memory_bytes=changes.pop("memory", 2048 * MIB),
            disk_bytes=changes.pop("disk", 2048 * MIB),
            processes=changes.pop("processes", 256),
        )
        for path in (self.workspace, self.root / "scratch"):
            path.mkdir(parents=True, exist_ok=True)
        plain = Enclosure(
            role="agent",
            workspace=self.workspace,
            scratch=self.root / "scratch",
            log=self.root / "log",
            wall_seconds=60,
            limits=limits,
            grace_seconds=0.5,
        )
        return replace(plain, **changes)

    def run(self, *argv: str, command: Command | None = None, **changes: Any) -> Exit:
        return self.sandbox.run(command or Command(argv), self.enclosure(**changes), self.stop)

    def due_once(self, name: str) -> dict[str, Any]:
        """Changes that put the deadline at the moment at which the command has made this file."""
        made = self.workspace / name
        return {"wall_seconds": 0.1, "remaining_seconds": lambda: 0.0 if made.exists() else 0.1}

    def python(self, script: str, **changes: Any) -> Exit:
        return self.run(sys.executable, "-c", textwrap.dedent(script), **changes)

    def shell(self, script: str, **changes: Any) -> Exit:
        return self.run("bash", "-c", textwrap.dedent(script), **changes)


class _EchoHandler(BaseHTTPRequestHandler):
    """Says hello to GET, and gives back what POST brings."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"hello")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _UnixHttpServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("inside", 0)


@contextmanager
def serve_echo(socket: Path) -> Iterator[Path]:
    """A real HTTP server on a unix socket."""
    with _UnixHttpServer(str(socket), _EchoHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield socket
        finally:
            server.shutdown()
            thread.join()


def find_processes_by_token(token: str) -> list[int]:
    """The processes of this machine that have the token among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


def make_daemon_command(token: str) -> str:
    """Shell text that leaves a double-forked process of its own session behind, which carries the token."""
    return f"(setsid bash -c 'exec -a {token} sleep 300' & ) "
