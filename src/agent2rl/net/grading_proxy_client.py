"""Client of the grading proxy, which gives a grading child searches, pages and a judge.

The child has neither network nor API keys. The harness serves a proxy for it on a unix socket, in
a directory that the child sees, with the socket's key. A request that fails raises a
`ExternalServiceError` with the reason.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field

from agent2rl.core.errors import ExternalServiceError
from agent2rl.core.records import Record
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.net.socket_keys import SOCKET_NAME

MOUNT_NAME = "grading-proxy"
"""Directory of the socket in the child's workspace."""
PROXY_VARIABLE = "AGENT2RL_GRADING_PROXY"
"""Environment variable with the path of that directory."""
TIMEOUT_SECONDS = 3600.0
"""The harness has its own, shorter timeouts for everything that it requests."""


class ProxyInfo(Record):
    """The services that the proxy offers."""

    search: str | None = None
    record_sha256: str | None = None
    """Hash of the file that searches are recorded in or answered from, as it is now."""
    corpus_sha256: str | None = None
    """Hash of the searched documents, if they are the user's own."""
    judge: str | None = None


class SearchReply(Record):
    results: tuple[tuple[str, str, str], ...]
    """Id, title and snippet of each result."""


class PageReply(Record):
    page: str


class JudgeQuestion(Record):
    """A question to the judge."""

    messages: tuple[tuple[Literal["system", "user", "assistant"], str], ...]
    """Role and content of each message."""
    max_tokens: int = Field(default=1024, ge=1, le=8192)
    attempt: int = 0
    """The same question with a new number is asked again; with the same number the answer is cached."""
    choices: tuple[str, ...] = ()
    """Possible first tokens of the answer. If set, the reply includes the probability of each."""


class JudgeReply(Record):
    text: str
    likely: dict[str, float] | None = None
    """The probability of each choice for which the judge reports one; None if unknown."""


class ProxyError(ExternalServiceError):
    """A request to the proxy failed. `kind` is the type of failure."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class GradingProxyClient:
    """The child's side of the proxy. Thread-safe."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket.resolve()  # a socket's path must be short, and a link to it need not be
        # One connection per request: it is cheap on a local socket, and none stays open.
        limits = httpx.Limits(max_connections=48, max_keepalive_connections=0)
        transport = KeyedTransport(self._socket, limits)
        self._client = httpx.Client(
            transport=transport, base_url="http://grading-proxy", timeout=TIMEOUT_SECONDS, trust_env=False
        )

    def read_info(self) -> ProxyInfo:
        return ProxyInfo.model_validate(self._send_request("GET", "/about"))

    def search(self, query: str) -> SearchReply:
        return SearchReply.model_validate(self._send_request("POST", "/search", {"query": query}))

    def open(self, id: str) -> PageReply:  # noqa: A002
        return PageReply.model_validate(self._send_request("POST", "/open", {"id": id}))

    def ask_judge(self, question: JudgeQuestion) -> JudgeReply:
        reply = self._send_request("POST", "/chat", question.model_dump(mode="json"))
        return JudgeReply.model_validate(reply)

    def keep_reply(self, question: JudgeQuestion) -> None:
        """Mark the judge's reply as parseable, so that the question need not be asked again."""
        self._send_request("POST", "/keep", question.model_dump(mode="json"))

    def _send_request(self, method: str, path: str, body: Any = None) -> Any:
        if not self._socket.exists():
            raise ProxyError("the harness cannot be reached (its socket does not exist)")
        try:
            response = self._client.request(method, path, json=body)
            payload = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ProxyError(f"the harness cannot be reached ({type(error).__name__})") from error
        if response.status_code != 200:
            problem = payload if isinstance(payload, dict) else {}
            raise ProxyError(str(problem.get("error", "no reason given")), str(problem.get("kind", "")))
        return payload


def find_grading_proxy() -> GradingProxyClient | None:
    """Return the client of this grading's proxy, the same each time; None if there is no proxy."""
    directory = os.environ.get(PROXY_VARIABLE)
    return _connect_to(Path(directory).absolute() / SOCKET_NAME) if directory else None


@cache
def _connect_to(socket: Path) -> GradingProxyClient:
    return GradingProxyClient(socket)
