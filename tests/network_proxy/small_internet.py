"""A proxy with a small internet behind it: a name server and one web site, all on loopback."""

import asyncio
import contextlib
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent2rl.core.network import (
    NetworkLine,
    NetworkRecord,
    NetworkRequest,
    join_network_lines,
    parse_network_policy,
)
from agent2rl.net.socket_keys import connect_to_socket
from agent2rl.network_proxy.host_dialing import Streams, UpstreamProxy
from agent2rl.network_proxy.host_rules import HostRules, PackageMirror
from agent2rl.network_proxy.request_log import NetworkLimits, NetworkRequestLog
from agent2rl.network_proxy.server import NetworkProxy, serve_network_proxy

PUBLIC = "93.184.215.14"
WAIT_SECONDS = 60
"""Only a proxy that hangs waits so long."""


class _SiteHandler(socketserver.BaseRequestHandler):
    server: "WebSite"

    def handle(self) -> None:
        self.request.settimeout(WAIT_SECONDS)
        data = b""
        with contextlib.suppress(OSError):
            while not _is_whole(data) and (more := self.request.recv(65536)):
                data += more
            self.server.received.append(data)
            if data[:1] == b"\x16":
                self.request.sendall(b"FROM THE SITE")
                while self.request.recv(65536):
                    pass
                self.server.ended.set()
            elif data.startswith(b"GET /silent "):
                self.server.ended.wait(WAIT_SECONDS)
            elif data.startswith(b"GET /redirect "):
                location = b"Location: http://inside.example.org/\r\n"
                self.request.sendall(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + location + b"\r\n")
            else:
                size = 200_000 if data.startswith(b"GET /large ") else 2
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
                self.request.sendall(head + b"ok" * (size // 2))


def _is_whole(data: bytes) -> bool:
    """Return whether this is a TLS message, or a request with its whole body."""
    if data[:1] == b"\x16":
        return True
    head, end, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if b"content-length" in line
    ]
    return bool(end) and len(body) >= sum(lengths)


class WebSite(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SiteHandler)
        self.received: list[bytes] = []
        self.ended = threading.Event()


@dataclass
class SmallInternet:
    """`addresses` are the answers of its name server, one after the other; the last one stays."""

    site: WebSite
    path: Path = Path()
    addresses: dict[str, list[list[str]]] = field(default_factory=dict)
    lines: list[NetworkLine] = field(default_factory=list)
    """The record."""
    resolved: list[str] = field(default_factory=list)
    dialed: list[str] = field(default_factory=list)
    black_holes: tuple[str, ...] = ()
    """Addresses that never answer."""
    log: NetworkRequestLog | None = None

    @property
    def requests(self) -> list[NetworkRequest]:
        """The requests that have ended."""
        lines = [each.root for each in tuple(self.lines)]
        return [each for each in lines if isinstance(each, NetworkRequest) and each.outcome != "open"]

    async def resolve(self, host: str, port: int) -> list[str]:  # noqa: ARG002
        self.resolved.append(host)
        answers = self.addresses.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def dial(self, address: str, port: int) -> Streams:  # noqa: ARG002
        self.dialed.append(address)
        if address in self.black_holes:
            await asyncio.Event().wait()
        return await asyncio.open_connection("127.0.0.1", self.site.server_address[1])

    def connect(self) -> socket.socket:
        client = connect_to_socket(self.path)
        client.settimeout(WAIT_SECONDS)
        return client

    def ask(self, *parts: bytes) -> bytes:
        """Send bytes and return everything that comes back until the proxy closes the connection."""
        with self.connect() as client:
            for part in parts:
                client.sendall(part)
            return read_all(client)

    def get(self, url: str, *headers: str) -> bytes:
        host = url.removeprefix("http://").partition("/")[0]
        lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        return self.ask("\r\n".join(lines).encode())

    def open_tunnel(self, target: str) -> socket.socket:
        """A connection after CONNECT, whose answer is read."""
        client = self.connect()
        client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer and (more := client.recv(4096)):
            answer += more
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return client


@contextmanager
def open_internet(
    policy: str,
    addresses: dict[str, list[list[str]]] | None = None,
    limits: NetworkLimits | None = None,
    mirrors: tuple[PackageMirror, ...] = (),
    upstream: UpstreamProxy | None = None,
    earlier: NetworkRecord | None = None,
    record: Callable[[NetworkLine], None] | None = None,
) -> Iterator[SmallInternet]:
    with WebSite() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        internet = SmallInternet(site, addresses=addresses or {})
        internet.log = NetworkRequestLog(record or internet.lines.append, limits, earlier)
        rules = HostRules(parse_network_policy(policy), mirrors)
        proxy = NetworkProxy(rules, internet.log, upstream, internet.resolve, internet.dial)
        try:
            with serve_network_proxy(proxy) as internet.path:
                yield internet
        finally:
            site.ended.set()
            site.shutdown()
            thread.join()


def read_all(client: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(65536):
            data += more
    return data


def make_client_hello(host: str | None) -> bytes:
    """What a TLS client says first."""
    context: Any = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def wait_for_requests(internet: SmallInternet, count: int) -> list[NetworkRequest]:
    """A request is recorded when it has ended, which may be after the client has its answer."""
    deadline = time.monotonic() + 60
    while len(internet.requests) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return internet.requests


def wait_for_unrecorded(internet: SmallInternet, count: int) -> NetworkRecord:
    deadline = time.monotonic() + 60
    while (record := join_network_lines(internet.lines)).unrecorded < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return record
