"""Reads a web page that a search has found, as text.

A model chooses what is opened, so a page must not lead into the network of whoever grades: every address
that is connected to, after each redirect too, is a public one, and the one that was looked at is the one that
is used. Size and time have limits, however it trickles. Not covered: proxies, scripts, PDF files; how long
it takes to find the address of a name.

The text is the page without scripts, styles and menus, one line for each block. A page is parsed in parts
and only as far as needed, because it may be made to be slow.
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
from agent2rl.core.errors import WorldError
from agent2rl.environments.search.backends import PAGE_CHARACTERS, names_the_benchmark

# The words of a web page: without scripts, styles and menus, a line for each block.

_SILENT = {"script", "style", "noscript", "template", "svg", "head", "nav", "footer", "iframe", "select"}
_BLOCKS = {
    *("p", "div", "br", "li", "ul", "ol", "tr", "table", "section", "article", "main", "header", "h1", "h2"),
    *("h3", "h4", "h5", "h6", "blockquote", "pre", "dd", "dt", "figcaption", "hr", "title"),
}

PART = 1 << 16
"""Characters that are read at a time, at least."""
MOST_OPEN = 1 << 12


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said: list[str] = []
        self.length = 0
        self._silent: list[str] = []
        self._count = Counter[str]()
        """How often each is in it."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _SILENT:
            self._silent.append(tag)
            self._count[tag] += 1
        elif tag == "body":  # whatever was not closed before it
            self._silent.clear()
            self._count.clear()
        self._add_separator(tag)

    def handle_endtag(self, tag: str) -> None:
        closed = "" if self._count[tag] else tag
        while closed != tag:
            closed = self._silent.pop()
            self._count[closed] -= 1
        self._add_separator(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.said.append(data)
            self.length += sum(map(len, data.split()))

    def _add_separator(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.said.append(" ")
        elif tag in _BLOCKS:
            self.said.append("\0")


def extract_text(page: str, most: int | None = None, go_on: Callable[[], object] = lambda: None) -> str:
    """The text of a page, at least `most` characters of it where it has so many, however broken its HTML is.

    `go_on` is called between its parts, and may raise.
    """
    words = _TextParser()
    start = 0
    while start < len(page) and (most is None or words.length < most):
        end = start + max(PART, len(words.rawdata))  # it looks through what is still open anew
        words.feed(page[start:end])
        start = end
        go_on()
    if len(words.rawdata) <= MOST_OPEN:
        words.close()
    lines = (" ".join(line.split()) for line in "".join(words.said).split("\0"))
    return "\n".join(line for line in lines if line)


# Reads a web page that a search has found, as text.

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
"""Beside those that are private by name: of the machines' own providers, or on the way to an IPv4 address."""


@dataclass(frozen=True)
class ServerAddress:
    """A server by its name and port."""

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
            raise WorldError(f"this address cannot be opened: {error}") from None


@dataclass(frozen=True)
class PageReader:
    own: ServerAddress | None = None
    """A server that may be reached though it is in a private network: the backend that the user named."""
    most_bytes: int = MOST_BYTES
    seconds: float = SECONDS

    def read(self, url: str) -> str:
        end = time.monotonic() + self.seconds
        for _ in range(MOST_REDIRECTS + 1):
            if names_the_benchmark(url):
                raise WorldError("the page is the benchmark's own and is withheld")
            answer = self._request_page(url, end)
            if isinstance(answer, str):
                url = urljoin(url, answer)
            else:
                return _decode_page(*answer, lambda: self._check_time_left(end))
        raise WorldError("the page leads from address to address without end")

    def _request_page(self, url: str, end: float) -> str | tuple[bytes, str]:
        """Where it leads, or its content and of what type that is."""
        place, parts = ServerAddress.from_url(url), urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = http.client.HTTPConnection(place.host, place.port, timeout=self._check_time_left(end))
        path = re.sub(r"[^!-~]", lambda sign: "".join(f"%{byte:02X}" for byte in sign[0].encode()), path)
        try:
            with self._open_connection(place, end) as line:
                connection.sock = _wrap_tls(line, parts.scheme, place)
                connection.request("GET", path, headers=_make_headers())
                answer = connection.getresponse()
                self._check_time_left(end)  # or else its headers may be cut off
                leads = answer.getheader("Location")
                if answer.status in (301, 302, 303, 307, 308) and leads:
                    return leads
                if answer.status != 200:
                    raise WorldError(f"the page answered with status {answer.status}")
                body = self._read_body(answer, end)
                return _decompress_body(body, answer.getheader("Content-Encoding", ""), self.most_bytes), (
                    answer.getheader("Content-Type", "text/html")
                )
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._check_time_left(end)
            raise WorldError(f"the page cannot be read: {type(error).__name__}") from None
        finally:
            connection.close()

    @contextmanager
    def _open_connection(self, place: ServerAddress, end: float) -> Iterator[socket.socket]:
        """A line that is cut when the time is over; its own limit of time begins anew with each byte."""
        line = self._connect_public(place, end)
        with line, line.dup() as handle:  # which stays when the line is wrapped
            cutting = threading.Timer(max(0.0, end - time.monotonic()), _shut_down_socket, (handle,))
            cutting.daemon = True
            cutting.start()
            try:
                yield line
            finally:
                cutting.cancel()
                cutting.join()

    def _connect_public(self, place: ServerAddress, end: float) -> socket.socket:
        """A connection to an address that was found to be public, and to no other that the name may have."""
        for *_, address in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM):
            if place == self.own or is_public(str(address[0])):
                return socket.create_connection(
                    (str(address[0]), place.port), timeout=self._check_time_left(end)
                )
        raise WorldError("the page lies in a private network and is not opened")

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
            raise WorldError(f"the page did not come within {self.seconds:g} s")
        return left


def _shut_down_socket(line: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        line.shutdown(socket.SHUT_RDWR)


def _wrap_tls(line: socket.socket, scheme: str, place: ServerAddress) -> socket.socket:
    if scheme == "http":
        return line
    return ssl.create_default_context().wrap_socket(line, server_hostname=place.host)


def is_public(address: str) -> bool:
    """Whether an address is one of the internet at large, however it is wrapped."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        return is_public(str(found.ipv4_mapped))
    return found.is_global and not found.is_multicast and not any(found in net for net in _INSIDE)


def _make_headers() -> dict[str, str]:
    return {
        "User-Agent": f"agent2rl/{__version__}",
        "Accept": "text/html,text/plain;q=0.9,*/*;q=0.1",
        "Accept-Encoding": "gzip, identity",
        "Connection": "close",
    }


def _decompress_body(body: bytes, coding: str, most: int) -> bytes:
    """At most so much of it: a small answer may unpack to a large one."""
    if coding.lower() in ("", "identity"):
        return body
    if coding.lower() not in ("gzip", "x-gzip", "deflate"):
        raise WorldError("the page is packed in an unknown way")
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)
    except zlib.error:
        raise WorldError("the page is packed and damaged") from None


def _decode_page(body: bytes, kind: str, go_on: Callable[[], object]) -> str:
    named = kind.partition(";")[0].strip().lower()
    if not (named.startswith("text/") or named in ("application/json", "application/xhtml+xml", "")):
        raise WorldError(f"the page is no text but {named[:40]}")
    charset = re.search(r"charset=[\"']?([\w-]+)", kind) or re.search(
        r"<meta[^>]{0,200}charset=[\"']?([\w-]+)", body[:2048].decode("latin-1")
    )
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except (LookupError, ValueError):
        text = body.decode("utf-8", "replace")
    return (extract_text(text, PAGE_CHARACTERS, go_on) if "html" in named else text)[:PAGE_CHARACTERS]
