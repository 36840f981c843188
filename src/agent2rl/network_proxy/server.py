"""The proxy itself: HTTP CONNECT and plain HTTP on a unix socket of the run.

    sandbox                     harness
    client  -- head -->         parse (h11), host and port against the rules
                                resolve once, check the address, connect to that address
            <-- 200 --          CONNECT only
            -- ClientHello -->  its server name must be the host of CONNECT
            <== bytes ==>       counted, until one side ends, a limit is reached or the run is over

Every connection carries one request, so that each request is checked on its own: bytes after the first
request are never read as another one. Each request is recorded before it is sent and when it ends.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import h11

from agent2rl.net.key_gate import KeyGate
from agent2rl.net.socket_keys import make_socket_directory, write_key
from agent2rl.network_proxy.connections import ClientConnection, HostConnection
from agent2rl.network_proxy.host_dialing import (
    Dial,
    HostDialer,
    Resolve,
    UpstreamProxy,
    describe_failure,
    dial_public_address,
    resolve_host,
)
from agent2rl.network_proxy.host_rules import PORTS, HostRules, PackageMirror, PolicyRefusal
from agent2rl.network_proxy.request_log import NetworkRequestLog, ProxiedRequest

logger = logging.getLogger(__name__)

AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]@]*)(?::([0-9]{1,5}))?")
HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"host"),
    }
)
"""Headers that are not passed on. The proxy frames bodies itself and names the host itself."""
START_SECONDS = 30.0
RUN_ENDED = "The run ended."
MOST_REFUSALS = 2
"""Connections that are open or being refused, as a multiple of the limit. Further ones are closed at once."""


@dataclass(frozen=True)
class RequestTarget:
    host: str
    port: int
    tunnel: bool
    path: str = ""

    @property
    def full_authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        default = PORTS["https" if self.tunnel else "http"]
        return self.full_authority.removesuffix(f":{default}")


class NetworkProxy:
    """Serves one run. `resolve` and `dial` replace the system's DNS and TCP connections to public hosts."""

    def __init__(
        self,
        rules: HostRules,
        log: NetworkRequestLog,
        upstream: UpstreamProxy | None = None,
        resolve: Resolve = resolve_host,
        dial: Dial = dial_public_address,
    ) -> None:
        self._rules = rules
        self._log = log
        is_open = rules.policy.kind == "open"
        self._dialer = HostDialer(upstream, resolve, dial, is_open, log.limits.connect_seconds)
        self._clients: set[asyncio.Task[None]] = set()

    async def serve(self, path: Path, started: Callable[[], None], stop: asyncio.Event) -> None:
        """Serve on a unix socket until `stop` is set, to those who have its key (`net.socket_keys`).

        Every connection is closed when this returns.
        """
        gate = KeyGate(write_key(path))

        def open_streams() -> asyncio.Protocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve_client)

        server = await asyncio.get_running_loop().create_unix_server(
            lambda: gate.guard(open_streams), path, backlog=self._log.limits.connections
        )
        started()
        await stop.wait()
        server.close()
        gate.close()
        for task in tuple(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._log.record_unrecorded()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= MOST_REFUSALS * self._log.limits.connections:
            self._log.count_unrecorded()
            writer.close()
            return
        self._clients.add(task)
        client = ClientConnection(reader, writer, self._log)
        try:
            # Only the end of the run cancels a client. asyncio would log that as an error.
            with suppress(asyncio.CancelledError):
                await self._serve_request(client)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve_request(self, client: ClientConnection) -> None:
        """Serve one request and record how it ended."""
        request = ProxiedRequest()
        outcome, reason = "failed", "The client closed the connection."
        try:
            self._log.require_connection(len(self._clients))
            if not await self._answer_request(client, request):
                return
            outcome, reason = "done", ""
        except PolicyRefusal as refusal:
            outcome = "cut" if request.sent_bytes or request.received_bytes else "refused"
            reason = f"{refusal.reason} {refusal.detail}".strip()
            await client.refuse(refusal)
        except TimeoutError:
            reason = f"Nothing was sent for {self._log.limits.idle_seconds:g} s."
            await client.refuse(PolicyRefusal(reason, 504))
        except (OSError, h11.ProtocolError) as error:
            reason = f"{type(error).__name__}: {error}"
            text = f"{request.host} cannot be reached: {describe_failure(error)}."
            await client.refuse(PolicyRefusal(text, 502))
        except asyncio.CancelledError:
            outcome, reason = "cut", RUN_ENDED
            raise
        except Exception as error:
            logger.debug("the network proxy failed", exc_info=True)
            reason = f"Internal error of agent2rl: {type(error).__name__}: {error}"
        finally:
            if request.method or outcome != "failed":
                self._log.record_end(request, outcome, reason)

    async def _answer_request(self, client: ClientConnection, request: ProxiedRequest) -> bool:
        """Answer a request; return False if the client closed the connection without one."""
        head = await client.read_head()
        if head is None:
            return False
        request.method = head.method.decode("ascii", "replace")
        target = _parse_target(head, request)
        self._log.admit_request(request)
        mirror = self._rules.find_mirror(target.host, target.port, target.tunnel)
        if mirror is None:
            self._rules.require_allowed(target.host, target.port, target.tunnel)
        _require_same_host(head, target)
        self._log.record_begin(request)
        streams, upstream = await self._dialer.connect(target.host, target.port, target.tunnel, mirror)
        server = HostConnection(*streams, request, self._log)
        try:
            idle_seconds = self._log.limits.idle_seconds
            async with asyncio.timeout(idle_seconds) as idle:
                server.watch_progress(idle, idle_seconds)
                if target.tunnel:
                    await self._open_tunnel(client, server, target, mirror)
                else:
                    await self._forward(client, server, head, target, upstream)
        finally:
            server.close()
        return True

    async def _open_tunnel(
        self,
        client: ClientConnection,
        server: HostConnection,
        target: RequestTarget,
        mirror: PackageMirror | None,
    ) -> None:
        # A client sends its ClientHello only when the tunnel stands, so it can be checked only
        # then.
        await client.accept_tunnel()
        hello = await client.read_client_hello(target.host, needs_name=not (mirror and mirror.has_address))
        await server.send(hello)
        await _run_both(
            _pump(client.read, server.send, server.end), _pump(server.read, client.send, client.end)
        )

    async def _forward(
        self,
        client: ClientConnection,
        server: HostConnection,
        head: h11.Request,
        target: RequestTarget,
        upstream: UpstreamProxy | None,
    ) -> None:
        """Pass a plain request on, and its answer back."""
        path = f"http://{target.authority}{target.path}" if upstream else target.path
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._log.limits.head_bytes)
        headers = [
            (b"Host", target.authority.encode()),
            *_select_headers(head.headers),
            *(upstream.headers if upstream else ()),
            (b"Connection", b"close"),
        ]
        sent = connection.send(h11.Request(method=head.method, target=path.encode(), headers=headers))
        await server.send(sent or b"")
        async for event in client.read_body():
            await server.send(connection.send(event) or b"")
        await self._return_answer(client, server, connection)

    async def _return_answer(
        self, client: ClientConnection, server: HostConnection, connection: h11.Connection
    ) -> None:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await server.read())
            elif isinstance(event, h11.Response):
                server.request.status = event.status_code
                headers = [*_select_headers(event.headers), (b"Connection", b"close")]
                response = h11.Response(status_code=event.status_code, reason=event.reason, headers=headers)
                await client.send_event(response)
            elif isinstance(event, h11.Data):
                await client.send_event(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await client.send_event(h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the host closed the connection")


def _parse_target(head: h11.Request, request: ProxiedRequest) -> RequestTarget:
    """Return where a request goes, and note it in the record of the request."""
    text = head.target.decode("ascii", "replace")
    if head.method == b"CONNECT":
        authority, path, tunnel = text, "", True
    elif text.lower().startswith("http://"):
        authority, slash, path = re.fullmatch(r"([^/?#]*)([/?]?)(.*)", text[7:], re.DOTALL).groups()  # type: ignore[union-attr]
        path, tunnel = f"{'/' if slash != '/' else ''}{slash}{path}", False
    else:
        request.host, request.path = "", text
        raise PolicyRefusal(
            "This is a proxy: send http:// URLs in absolute form, and CONNECT for https://.", 400
        )
    request.path = None if tunnel else path
    parts = AUTHORITY.fullmatch(authority)
    request.host = parts[1].lower() if parts else authority
    if parts is None or (tunnel and not parts[2]):
        raise PolicyRefusal(f"{authority!r} is not a host with a port.", 400)
    port = int(parts[2]) if parts[2] else PORTS["http"]
    request.port = port
    return RequestTarget(request.host.removeprefix("[").removesuffix("]"), port, tunnel, path)


def _require_same_host(head: h11.Request, target: RequestTarget) -> None:
    """Raise PolicyRefusal if the Host header names another host than the request line."""
    named = [value.decode("ascii", "replace").lower() for name, value in head.headers if name == b"host"]
    allowed = {target.authority, target.full_authority, *((target.host,) if target.tunnel else ())}
    if not allowed.issuperset(named):
        raise PolicyRefusal("The Host header names another host than the request line.", 400)


def _select_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are passed on. A chunked body stays chunked."""
    pairs = [(name.lower(), value) for name, value in headers]
    listed = b",".join(value.lower() for name, value in pairs if name == b"connection")
    dropped = HOP_BY_HOP | {name.strip() for name in listed.split(b",")}
    chunked = any(name == b"transfer-encoding" for name, _ in pairs)
    if chunked:
        dropped |= {b"content-length"}
    kept = [(name, value) for name, value in pairs if name not in dropped]
    return [*kept, (b"transfer-encoding", b"chunked")] if chunked else kept


async def _pump(
    read: Callable[[], Awaitable[bytes]],
    send: Callable[[bytes], Awaitable[None]],
    end: Callable[[], None],
) -> None:
    while data := await read():
        await send(data)
    end()


async def _run_both(first: Awaitable[None], second: Awaitable[None]) -> None:
    """Wait for both; an error in one cancels the other."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def serve_network_proxy(proxy: NetworkProxy) -> Iterator[Path]:
    """Serve the proxy from a thread and yield its socket. At the end, all its connections are closed."""
    with make_socket_directory() as path, _run_proxy(proxy, path):
        yield path


@contextmanager
def _run_proxy(proxy: NetworkProxy, path: Path) -> Iterator[None]:
    started = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(proxy.serve(path, started.set, stop))

    thread = threading.Thread(target=serve, name="network-proxy", daemon=True)
    thread.start()
    try:
        if not started.wait(START_SECONDS):
            raise RuntimeError("the network proxy did not start")
        yield
    finally:
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(stop.set)
        thread.join()
