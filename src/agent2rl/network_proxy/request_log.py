"""Count, limit and record the requests of a run."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent2rl.core.network import NetworkRequest
from agent2rl.network_proxy.host_rules import RequestRefused, is_model_hub

LONGEST_METHOD, LONGEST_HOST, LONGEST_PATH, LONGEST_REASON = 40, 300, 2000, 500


@dataclass(frozen=True)
class NetworkLimits:
    """Limits of one run's network."""

    received_bytes: int = 50 * 10**9
    sent_bytes: int = 10**9
    requests: int = 20_000
    """Refused ones count, too."""
    requests_per_minute: int = 1_200
    connections: int = 64
    """Open at the same time."""
    head_bytes: int = 32 << 10
    """Request line and headers together."""
    head_seconds: float = 15.0
    """For the whole head of a request, and for the first message in a tunnel."""
    connect_seconds: float = 20.0
    idle_seconds: float = 120.0
    """Without a byte in either direction."""


@dataclass
class ProxiedRequest:
    """A request in progress."""

    at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    method: str = ""
    host: str = ""
    port: int | None = None
    path: str | None = None
    status: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    counted: bool = False
    """Whether it counts towards the limit of requests, so that it has a place in the record."""

    def make_record(self, outcome: str, reason: str) -> NetworkRequest:
        return NetworkRequest(
            at=self.at,
            seconds=round(time.monotonic() - self.began, 3),
            method=_clean_text(self.method, LONGEST_METHOD),
            host=_clean_text(self.host, LONGEST_HOST),
            port=self.port,
            path=None if self.path is None else _clean_text(self.path, LONGEST_PATH),
            status=self.status,
            outcome=outcome,
            reason=_clean_text(reason, LONGEST_REASON),
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            model_hub=is_model_hub(self.host),
        )


def _clean_text(text: str, most: int) -> str:
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else "�" for each in cut)


class RequestLog:
    """The requests of a run and its limits. Requests before a crash of the harness count, too."""

    def __init__(
        self,
        record: Callable[[NetworkRequest], None],
        limits: NetworkLimits | None = None,
        earlier: Iterable[NetworkRequest] = (),
    ) -> None:
        self.limits = limits or NetworkLimits()
        self.requests: list[NetworkRequest] = list(earlier)
        self.unrecorded = 0
        self._record = record
        self._counted = len(self.requests)
        self._recent: deque[float] = deque()
        self._received = sum(each.received_bytes for each in self.requests)
        self._sent = sum(each.sent_bytes for each in self.requests)

    def require_connection(self, connections: int) -> None:
        """Raise RequestRefused if more connections are open than the limit allows."""
        most = self.limits.connections
        if connections > most:
            raise RequestRefused(f"More than {most} connections at the same time.", 429)

    def admit_request(self, request: ProxiedRequest) -> None:
        """Count a new request; raise RequestRefused if it is over a limit."""
        now, limits = time.monotonic(), self.limits
        if not self._count_request(request):
            raise RequestRefused(f"The run's limit of {limits.requests:,} requests is used up.", 429)
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if len(self._recent) >= limits.requests_per_minute:
            raise RequestRefused(
                f"More than {limits.requests_per_minute:,} requests in a minute. Wait and try again.", 429
            )
        self._recent.append(now)
        self._require_bytes_left()

    def _count_request(self, request: ProxiedRequest) -> bool:
        """Count a request once; return False if the limit is reached."""
        if not request.counted and self._counted < self.limits.requests:
            request.counted = True
            self._counted += 1
        return request.counted

    def count_sent(self, request: ProxiedRequest, count: int) -> None:
        request.sent_bytes += count
        self._sent += count
        self._require_bytes_left()

    def count_received(self, request: ProxiedRequest, count: int) -> None:
        request.received_bytes += count
        self._received += count
        self._require_bytes_left()

    def _require_bytes_left(self) -> None:
        limits = self.limits
        if self._received > limits.received_bytes:
            raise RequestRefused(
                f"The run's download limit of {limits.received_bytes / 1e9:g} GB is used up."
            )
        if self._sent > limits.sent_bytes:
            raise RequestRefused(f"The run's upload limit of {limits.sent_bytes / 1e9:g} GB is used up.")

    def record_request(self, request: ProxiedRequest, outcome: str, reason: str = "") -> None:
        """Record the end of a request. Beyond the limit, requests are refused, and only their number is kept.

        Malformed requests count too: otherwise they could fill the record, and others would be missing in it.
        """
        if not self._count_request(request):
            self.unrecorded += 1
            return
        made = request.make_record(outcome, reason)
        self.requests.append(made)
        self._record(made)
