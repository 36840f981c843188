"""A web server on loopback whose answers a test decides, request by request."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class PageRequest:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class PageResponse:
    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/html"})


def make_json_response(value: Any, status: int = 200, **headers: str) -> PageResponse:
    return PageResponse(json.dumps(value), status, {"Content-Type": "application/json", **headers})


@dataclass
class WebServer:
    url: str
    asked: list[PageRequest] = field(default_factory=list)


@contextmanager
def serve_pages(answer: Callable[[PageRequest], PageResponse]) -> Iterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            split = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            asked = PageRequest(self.command, split.path, query, dict(self.headers), body)
            web.asked.append(asked)
            page = answer(asked)
            said = page.body.encode() if isinstance(page.body, str) else page.body
            self.send_response(page.status)
            for name, value in page.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            with suppress(OSError):  # whoever asked may have had enough
                self.wfile.write(said)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web = WebServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
