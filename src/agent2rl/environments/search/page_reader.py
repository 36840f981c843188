"""Read a web page that a search has found, as text.

A model chooses which page to open, so a page must not lead into the grader's private network: every address
that is connected to, also after a redirect, must be public, and the checked address is the one that is used.
Size and total time are limited, also for a slow trickle of bytes. Not covered: proxies, scripts, PDF files;
the duration of DNS lookups.

The text is the page without scripts, styles and menus, with one line per block. A page is parsed in parts and
only as far as needed, because it may be crafted to be slow. The model reads the messages of
`ExternalServiceError`, so they are part of the measurement.
"""

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Self
from urllib.parse import urljoin, urlsplit

from agent2rl import __version__
from agent2rl.core.errors import ExternalServiceError
from agent2rl.environments.search.backends import PAGE_CHARACTERS, names_the_benchmark

# Extracting the text of a page

_SILENT = {"script", "style", "noscript", "template", "svg", "head", "nav", "footer", "iframe", "select"}
_BLOCKS = {
    *("p", "div", "br", "li", "ul", "ol", "tr", "table", "section", "article", "main", "header", "h1", "h2"),
    *("h3", "h4", "h5", "h6", "blockquote", "pre", "dd", "dt", "figcaption", "hr", "title"),
}

PART = 1 << 16
"""Minimum number of characters parsed at a time."""
MOST_OPEN = 1 << 12


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.length = 0
        self._silent: list[str] = []
        self._count = Counter[str]()
        """Number of occurrences of each tag in `_silent`."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _SILENT:
            self._silent.append(tag)
            self._count[tag] += 1
        elif tag == "body":  # also if tags before it were not closed
            self._silent.clear()
            self._count.clear()
        self._add_separator(tag)

    def handle_endtag(self, tag: str) -> None:
        # A stray end tag closes nothing. The count says so without a search through `_silent`,
        # which would be slow for a page made of many of them.
        closed = "" if self._count[tag] else tag
        while closed != tag:
            closed = self._silent.pop()
            self._count[closed] -= 1
        self._add_separator(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.texts.append(data)
            self.length += sum(map(len, data.split()))

    def _add_separator(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.texts.append(" ")
        elif tag in _BLOCKS:
            self.texts.append("\0")


def extract_text(page: str, most: int | None = None, go_on: Callable[[], object] = lambda: None) -> str:
    """Extract the text of a page, at least its first `most` characters, also from broken HTML.

    `go_on` is called between the parts, and may raise.
    """
    parser = _TextParser()
    start = 0
    while start < len(page) and (most is None or parser.length < most):
        end = start + max(PART, len(parser.rawdata))  # larger parts: it rescans pending text each time
        parser.feed(page[start:end])
        start = end
        go_on()
    # To parse a longer unfinished rest can take a time that grows with its square.
    if len(parser.rawdata) <= MOST_OPEN:
        parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.texts).split("\0"))
    return "\n".join(line for line in lines if line)


# Fetching a page

MOST_BYTES = 2 << 20
SECONDS = 15.0
MOST_REDIRECTS = 5
PORTS = {"http": 80, "https": 443}
_INSIDE = tuple(
    ipaddress.ip_network(net)
    for net in (
        "192.0.0.0/24",
        "168.63.129.16",
        "::/96",
        "fec0::/10",
        "64:ff9b::/32",
        "2002::/16",
        "2001::/32",
    )
)
"""Non-public networks besides those that `ipaddress` knows: cloud providers' own, or tunnels to IPv4."""


@dataclass(frozen=True)
class ServerAddress:
    """Host name and port of a server."""

    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> Self:
        try:
            parts = urlsplit(url)
            if parts.scheme not in PORTS or not parts.hostname or parts.username is not None:
                raise ValueError("it is no plain address of a web page")
            return cls(parts.hostname, parts.port or PORTS[parts.scheme])
        except ValueError as error:
            raise ExternalServiceError(f"this address cannot be opened: {error}") from None


@dataclass(frozen=True)
class PageReader:
    own: ServerAddress | None = None
    """A server that is allowed although it is in a private network: the backend that the user runs."""
    most_bytes: int = MOST_BYTES
    seconds: float = SECONDS

    def read(self, url: str) -> str:
        end = time.monotonic() + self.seconds
        for _ in range(MOST_REDIRECTS + 1):
            if names_the_benchmark(url):
                raise ExternalServiceError("the page is the benchmark's own and is withheld")
            answer = self._request_page(url, end)
            if isinstance(answer, str):
                url = urljoin(url, answer)
            else:
                return _decode_page(*answer, lambda: self._check_time_left(end))
        raise ExternalServiceError("the page leads from address to address without end")

    def _request_page(self, url: str, end: float) -> str | tuple[bytes, str]:
        """Return the target of a redirect, or the content and its type."""
        server, parts = ServerAddress.from_url(url), urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = http.client.HTTPConnection(server.host, server.port, timeout=self._check_time_left(end))
        # http.client refuses blanks and everything that is not ASCII.
        path = re.sub(r"[^!-~]", lambda sign: "".join(f"%{byte:02X}" for byte in sign[0].encode()), path)
        try:
            with self._open_connection(server, end) as stream:
                tls = None if parts.scheme == "http" else ssl.create_default_context()
                self._check_time_left(end)  # a socket that was shut down before it is wrapped would leak
                connection.sock = tls.wrap_socket(stream, server_hostname=server.host) if tls else stream
                connection.request("GET", path, headers=_make_headers())
                answer = connection.getresponse()
                self._check_time_left(end)  # after the timeout the headers may be incomplete
                target = answer.getheader("Location")
                if answer.status in (301, 302, 303, 307, 308) and target:
                    return target
                if answer.status != 200:
                    raise ExternalServiceError(f"the page answered with status {answer.status}")
                body = self._read_body(answer, end)
                return _decompress_body(body, answer.getheader("Content-Encoding", ""), self.most_bytes), (
                    answer.getheader("Content-Type", "text/html")
                )
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._check_time_left(end)
            raise ExternalServiceError(f"the page cannot be read: {type(error).__name__}") from None
        finally:
            connection.close()

    @contextmanager
    def _open_connection(self, server: ServerAddress, end: float) -> Iterator[socket.socket]:
        """Open a connection that is shut down at the end; a socket's own timeout restarts with each byte."""
        stream = self._connect_public(server, end)
        with stream, stream.dup() as handle:  # stays valid when the stream is wrapped
            timer = threading.Timer(max(0.0, end - time.monotonic()), _shut_down_socket, (handle,))
            timer.daemon = True
            timer.start()
            try:
                yield stream
            finally:
                timer.cancel()
                timer.join()

    def _connect_public(self, server: ServerAddress, end: float) -> socket.socket:
        """Connect to the address that was checked to be public, not to the name, which may have others."""
        for *_, address in socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM):
            # Each address is checked, since a public name may also lead to a private address.
            if server == self.own or is_public(str(address[0])):
                return socket.create_connection(
                    (str(address[0]), server.port), timeout=self._check_time_left(end)
                )
        raise ExternalServiceError("the page lies in a private network and is not opened")

    def _read_body(self, answer: http.client.HTTPResponse, end: float) -> bytes:
        body = b""
        while part := answer.read1(1 << 16):
            body += part
            self._check_time_left(end)
            if len(body) > self.most_bytes:
                return body[: self.most_bytes]
        self._check_time_left(end)
        return body

    def _check_time_left(self, end: float) -> float:
        left = end - time.monotonic()
        if left <= 0:
            raise ExternalServiceError(f"the page did not come within {self.seconds:g} s")
        return left


def _shut_down_socket(stream: socket.socket) -> None:
    with suppress(OSError):  # the other side may have closed it already
        stream.shutdown(socket.SHUT_RDWR)


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet, also if it is mapped or tunnelled."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        return is_public(str(ip.ipv4_mapped))
    return ip.is_global and not ip.is_multicast and not any(ip in net for net in _INSIDE)


def _make_headers() -> dict[str, str]:
    return {
        "User-Agent": f"agent2rl/{__version__}",
        "Accept": "text/html,text/plain;q=0.9,*/*;q=0.1",
        "Accept-Encoding": "gzip, identity",
        "Connection": "close",
    }


def _decompress_body(body: bytes, coding: str, most: int) -> bytes:
    """Decompress at most `most` bytes: a small answer may unpack to a very large one."""
    if coding.lower() in ("", "identity"):
        return body
    if coding.lower() not in ("gzip", "x-gzip", "deflate"):
        raise ExternalServiceError("the page is packed in an unknown way")
    try:
        # 32: the header says whether it is gzip or zlib.
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)
    except zlib.error:
        raise ExternalServiceError("the page is packed and damaged") from None


def _decode_page(body: bytes, kind: str, go_on: Callable[[], object]) -> str:
    media_type = kind.partition(";")[0].strip().lower()
    if not (
        media_type.startswith("text/") or media_type in ("application/json", "application/xhtml+xml", "")
    ):
        raise ExternalServiceError(f"the page is no text but {media_type[:40]}")
    charset = re.search(r"charset=[\"']?([\w-]+)", kind) or re.search(
        r"<meta[^>]{0,200}charset=[\"']?([\w-]+)", body[:2048].decode("latin-1")
    )
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except (LookupError, ValueError):
        text = body.decode("utf-8", "replace")
    return (extract_text(text, PAGE_CHARACTERS, go_on) if "html" in media_type else text)[:PAGE_CHARACTERS]
