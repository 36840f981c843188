"""What a grading child may ask the harness for: searches, pages, a judge's word.

The child has neither network nor keys. The harness has a desk for it (`grading.desk`), on a unix socket in a
directory that the child sees. What cannot be answered is a `WorldError` with the reason.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field

from agent2rl.core.errors import WorldError
from agent2rl.core.records import Record

MOUNT_NAME = "desk"
"""Where the child sees the socket's directory, in its workspace."""
SOCKET = "http.sock"
PROXY_VARIABLE = "AGENT2RL_DESK"
"""Names that directory to whoever grades."""
TIMEOUT_SECONDS = 3600.0
"""The harness has its own, shorter limits for everything that it asks."""


class ProxyInfo(Record):
    """What the desk has to offer."""

    search: str | None = None
    record_sha256: str | None = None
    """Of the file that searches are kept in or answered from, as it is now."""
    corpus_sha256: str | None = None
    """Of the documents that are searched, where they are the user's own."""
    judge: str | None = None


class SearchReply(Record):
    results: tuple[tuple[str, str, str], ...]
    """Id, title and snippet of each."""


class PageReply(Record):
    page: str


class JudgeQuestion(Record):
    """A question to the judge."""

    messages: tuple[tuple[Literal["system", "user", "assistant"], str], ...]
    """Role and content of each."""
    max_tokens: int = Field(default=1024, ge=1, le=8192)
    attempt: int = 0
    """The same question with another number is put anew; with the same one it is answered as before."""
    choices: tuple[str, ...] = ()
    """What the answer may begin with, where one of these is wanted: then it is said how likely each is."""


class JudgeReply(Record):
    text: str
    likely: dict[str, float] | None = None
    """The probability of each choice that the judge gives any; None where that is not known."""


class ProxyError(WorldError):
    """The desk has no answer. `kind` tells one sort of failure from another."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class GradingProxyClient:
    """The child's side. May be asked by many threads at once."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket.resolve()  # a socket's path must be short, and a link to it need not be
        # A connection for each question: the desk is near, and nothing is left open.
        limits = httpx.Limits(max_connections=48, max_keepalive_connections=0)
        transport = httpx.HTTPTransport(uds=str(self._socket), limits=limits)
        self._client = httpx.Client(
            transport=transport, base_url="http://desk", timeout=TIMEOUT_SECONDS, trust_env=False
        )

    def read_info(self) -> ProxyInfo:
        return ProxyInfo.model_validate(self._send_request("GET", "/about"))

    def search(self, query: str) -> SearchReply:
        return SearchReply.model_validate(self._send_request("POST", "/search", {"query": query}))

    def open(self, id: str) -> PageReply:  # noqa: A002
        return PageReply.model_validate(self._send_request("POST", "/open", {"id": id}))

    def ask_judge(self, asked: JudgeQuestion) -> JudgeReply:
        return JudgeReply.model_validate(self._send_request("POST", "/chat", asked.model_dump(mode="json")))

    def keep_reply(self, asked: JudgeQuestion) -> None:
        """What the judge has said to this can be read: it need not be asked again."""
        self._send_request("POST", "/keep", asked.model_dump(mode="json"))

    def _send_request(self, method: str, path: str, body: Any = None) -> Any:
        if not self._socket.exists():
            raise ProxyError("the harness cannot be asked (it is not there)")
        try:
            answer = self._client.request(method, path, json=body)
            said = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ProxyError(f"the harness cannot be asked ({type(error).__name__})") from error
        if answer.status_code != 200:
            told = said if isinstance(said, dict) else {}
            raise ProxyError(str(told.get("error", "no reason given")), str(told.get("kind", "")))
        return said


def find_grading_proxy() -> GradingProxyClient | None:
    """The desk of this grading, the same each time; None where there is none."""
    place = os.environ.get(PROXY_VARIABLE)
    return _connect_to(Path(place).absolute() / SOCKET) if place else None


@cache
def _connect_to(socket: Path) -> GradingProxyClient:
    return GradingProxyClient(socket)
