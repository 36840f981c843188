"""Count, limit and record the requests of a run.

A request gets a line in the record before anything of it is sent, another one whenever some more bytes have
passed, and a last one at its end. So the record of a killed harness has every request that was let out, and
nearly all bytes. After a line that cannot be written, nothing is let out any more.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from agent2rl.core.network import (
    NetworkLine,
    NetworkRecord,
    NetworkRequest,
    UnrecordedRequests,
    is_model_hub,
)
from agent2rl.network_proxy.host_rules import PolicyRefusal

logger = logging.getLogger(__name__)

LONGEST_METHOD, LONGEST_HOST, LONGEST_PATH, LONGEST_REASON = 40, 300, 2000, 500
HARNESS_ENDED = "The harness ended before the request did."


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
    unrecorded_sent_bytes: int = 10**6
    unrecorded_received_bytes: int = 16 * 10**6
    """Bytes of an open request that are not in the record yet."""


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
    id: int | None = None
    """Its number in the record; None while it does not count towards the limit of requests."""
    recorded_sent: int = 0
    recorded_received: int = 0
    """Bytes on its last line in the record."""

    def make_record(self, outcome: str, reason: str = "") -> NetworkRequest:
        return NetworkRequest(
            id=self.id,
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


class NetworkRequestLog:
    """The requests of a run and its limits. Those of earlier harnesses of the run count, too.

    `record` appends a line to the record, whole or not at all; its OSError closes the network. `report_fault`
    then gets one sentence for people.
    """

    def __init__(
        self,
        record: Callable[[NetworkLine], None],
        limits: NetworkLimits | None = None,
        earlier: NetworkRecord | None = None,
        report_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        earlier = earlier or NetworkRecord()
        self.limits = limits or NetworkLimits()
        self.requests: list[NetworkRequest] = []
        """Those that have ended."""
        self.unrecorded = self._unrecorded_on_disk = earlier.unrecorded
        self.fault = ""
        """Why the record is not whole."""
        self._record = record
        self._report_fault = report_fault
        self._counted = len(earlier.requests)
        self._last_id = max((each.id or 0 for each in earlier.requests), default=0)
        self._recent: deque[float] = deque()
        self._received = sum(each.received_bytes for each in earlier.requests)
        self._sent = sum(each.sent_bytes for each in earlier.requests)
        for request in earlier.requests:
            self._take_over(request)

    def _take_over(self, request: NetworkRequest) -> None:
        """Keep a request of an earlier harness. One that was open is over now."""
        if request.outcome == "open":
            request = request.model_copy(update={"outcome": "cut", "reason": HARNESS_ENDED})
            self._write(request)
        self.requests.append(request)

    def require_connection(self, connections: int) -> None:
        """Raise PolicyRefusal if more connections are open than the limit allows."""
        most = self.limits.connections
        if connections > most:
            raise PolicyRefusal(f"More than {most} connections at the same time.", 429)

    def admit_request(self, request: ProxiedRequest) -> None:
        """Count a new request; raise PolicyRefusal if it is over a limit."""
        now, limits = time.monotonic(), self.limits
        self._require_record()
        if not self._count_request(request):
            raise PolicyRefusal(f"The run's limit of {limits.requests:,} requests is used up.", 429)
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if len(self._recent) >= limits.requests_per_minute:
            raise PolicyRefusal(
                f"More than {limits.requests_per_minute:,} requests in a minute. Wait and try again.", 429
            )
        self._recent.append(now)
        if self._received >= limits.received_bytes:
            raise self._refuse_download()
        if self._sent >= limits.sent_bytes:
            raise self.refuse_upload()

    def _count_request(self, request: ProxiedRequest) -> bool:
        """Count a request once; return False if the limit is reached."""
        if request.id is None and self._counted < self.limits.requests:
            self._counted += 1
            self._last_id += 1
            request.id = self._last_id
        return request.id is not None

    def record_begin(self, request: ProxiedRequest) -> None:
        """Record a request before anything of it is sent."""
        self._write(request.make_record("open"))
        self._require_record()

    def count_sent(self, request: ProxiedRequest, count: int) -> int:
        """Count bytes before they are sent, and return how many of them the limit allows."""
        self._require_record()
        allowed = min(count, max(0, self.limits.sent_bytes - self._sent))
        request.sent_bytes += allowed
        self._sent += allowed
        self._record_progress(request)
        return allowed

    def count_received(self, request: ProxiedRequest, count: int) -> None:
        request.received_bytes += count
        self._received += count
        self._record_progress(request)
        if self._received > self.limits.received_bytes:
            raise self._refuse_download()

    def refuse_upload(self) -> PolicyRefusal:
        return PolicyRefusal(f"The run's upload limit of {self.limits.sent_bytes / 1e9:g} GB is used up.")

    def _refuse_download(self) -> PolicyRefusal:
        limit = self.limits.received_bytes / 1e9
        return PolicyRefusal(f"The run's download limit of {limit:g} GB is used up.")

    def _record_progress(self, request: ProxiedRequest) -> None:
        """Record an open request again if many bytes have passed since its last line."""
        sent = request.sent_bytes - request.recorded_sent
        received = request.received_bytes - request.recorded_received
        limits = self.limits
        if sent > limits.unrecorded_sent_bytes or received > limits.unrecorded_received_bytes:
            request.recorded_sent, request.recorded_received = request.sent_bytes, request.received_bytes
            self._write(request.make_record("open"))
        self._require_record()

    def record_end(self, request: ProxiedRequest, outcome: str, reason: str = "") -> None:
        """Record the end of a request. Beyond the limit, requests are refused, and only their number is kept.

        Malformed requests count too: otherwise they could fill the record, and others would be missing in it.
        """
        if not self._count_request(request):
            self.count_unrecorded()
            return
        made = request.make_record(outcome, reason)
        self.requests.append(made)
        self._write(made)

    def count_unrecorded(self) -> None:
        """Count a request that has no line. The number is written when it has grown by a tenth."""
        self.unrecorded += 1
        if self.unrecorded >= 1.1 * self._unrecorded_on_disk:
            self.record_unrecorded()

    def record_unrecorded(self) -> None:
        if self.unrecorded > self._unrecorded_on_disk:
            self._unrecorded_on_disk = self.unrecorded
            self._write(UnrecordedRequests(at=time.time(), unrecorded=self.unrecorded))

    def _write(self, line: NetworkRequest | UnrecordedRequests) -> None:
        if self.fault:  # a line after a missing one would make the record look whole
            return
        try:
            self._record(NetworkLine(line))
        except OSError as error:
            cause = os.strerror(error.errno) if error.errno else type(error).__name__
            self.fault = f"A line of network.jsonl could not be written ({cause})."
            logger.warning("%s Further requests of the agent are refused.", self.fault)
            self._report_fault(self.fault)

    def _require_record(self) -> None:
        """Raise PolicyRefusal if requests cannot be recorded any more."""
        if self.fault:
            raise PolicyRefusal(
                "The record of requests cannot be written, so no request is let out any more.", 503
            )
