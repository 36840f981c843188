"""One request while it is under way, and what goes on record of it."""

import time
from collections import OrderedDict
from collections.abc import Mapping

from agent2rl.core.llm import LlmExchange, Outcome, TokenCounts, Wire
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import BYTES_PER_TOKEN, FAILED_OUTCOMES
from agent2rl.gateway.prices import Prices
from agent2rl.gateway.request_parsing import ParsedRequest, RouteMatch
from agent2rl.gateway.token_counting import TokenCounter
from agent2rl.gateway.upstream import UpstreamResponse

MAX_NAME_CHARACTERS, MAX_MESSAGE_CHARACTERS = 200, 500
"""Characters of names and of messages that go on record."""
MAX_REMEMBERED = 256
CLIENT_CLOSED_STATUS = 499
JSON_HEADERS = {"content-type": "application/json"}


class FailedRequestLog:
    """Knows a request that was asked before and failed, by its body."""

    def __init__(self) -> None:
        self._failed: OrderedDict[int, tuple[int, float]] = OrderedDict()

    def find_failures(self, mark: int) -> tuple[int, float | None]:
        """How often, and since when it has been waited for an answer."""
        return self._failed.get(mark, (0, None))

    def record_outcome(self, mark: int, times: int, since: float | None) -> None:
        """`since` is None where it was answered."""
        self._failed.pop(mark, None)
        if since is not None:
            self._failed[mark] = (times, since)
            if len(self._failed) > MAX_REMEMBERED:
                self._failed.popitem(last=False)


class InFlightRequest:
    """What it comes to is decided before the agent has the last of its answer: it may ask again at once."""

    def __init__(self, path: str, tongue: Wire, key: Key | None, repeats: FailedRequestLog) -> None:
        self.at, self.began = time.time(), time.monotonic()
        self.tongue = tongue
        """The wire format of whoever asks."""
        self.wire: Wire | None = None
        self.model = ""
        self.sent = b""
        """The body, as it came."""
        self.went_up = False
        """The provider may have seen it."""
        self.status = CLIENT_CLOSED_STATUS
        self.outcome: Outcome = "abandoned"
        """Until something else has come of it."""
        self.headers: Mapping[str, str] = JSON_HEADERS
        self.begun = False
        """The answer."""
        self.message = ""
        self.count: TokenCounter | None = None
        self.most = TokenCounts()
        """What it may cost."""
        self._path, self._key, self._repeats = path, key, repeats
        self._stream = self._replayed = False
        self._first: float | None = None
        self._mark: int | None = None
        """By which it is known again."""
        self._retries = 0
        self._since: float | None = None
        """When the same failed before."""

    # As it goes on

    def set_route(self, call: RouteMatch) -> None:
        self.tongue = call.wire
        self.wire = call.wire if call.kind == "generate" else None
        self._stream = call.stream

    def set_request(self, call: RouteMatch, asked: ParsedRequest, sent: bytes) -> None:
        self.sent, self._stream = sent, asked.stream
        self.most = TokenCounts(input=len(asked.body) // BYTES_PER_TOKEN, output=asked.most_output)
        self._mark = hash((call.wire, call.kind, asked.model, sent))
        self._retries, self._since = self._repeats.find_failures(self._mark)

    def begin_answer(self, answer: UpstreamResponse, replayed: bool) -> None:
        self.begun, self.status, self.headers = True, answer.status, answer.headers
        self.message, self._replayed = answer.note, replayed

    def mark_first_byte(self) -> None:
        if self._first is None:
            self._first = time.monotonic() - self.began

    def set_outcome(self, outcome: Outcome, status: int | None = None, message: str = "") -> None:
        self.outcome = outcome
        if self._mark is not None and outcome != "refused":
            failed_at = time.monotonic() if outcome in FAILED_OUTCOMES else None
            self._repeats.record_outcome(self._mark, self._retries + 1, failed_at)
        self.status = self.status if status is None else status
        self.message = "; ".join(filter(None, (self.message, message)))

    def finish_answer(self) -> None:
        """The whole answer has passed."""
        if self.count and self.count.error:
            self.set_outcome("provider-error", message=self.count.error)
        elif self.wire and self.count and not self.count.ended:
            self.set_outcome("cut", message="The provider's answer is over without its end.")
        else:
            self.set_outcome("answered")

    def record_refusal(self, error: RequestRefused) -> None:
        self.set_outcome("refused", error.status, str(error))

    def record_failure(self, error: UpstreamFailure) -> None:
        self.set_outcome(error.outcome, None if self.begun else error.status, str(error))

    @property
    def told(self) -> TokenCounts | None:
        """The tokens of a generation, as far as the provider has told them."""
        return self.count.tokens if self.count and self.wire else None

    # When it is over

    def build_exchange(self, prices: Prices) -> tuple[LlmExchange, tuple[float, float] | None]:
        """What goes on record, and the time that was lost."""
        seconds = time.monotonic() - self.began
        lost = self._find_lost_time(self.began + seconds)
        tokens = self.told
        exchange = LlmExchange(
            at=self.at,
            wire=self.wire,
            model=self._clean_text(self.model, MAX_NAME_CHARACTERS),
            path=self._clean_text(self._path, MAX_NAME_CHARACTERS),
            stream=self._stream,
            status=self.status,
            outcome=self.outcome,
            seconds=seconds,
            first_seconds=self._first,
            stalled_seconds=lost[1] - lost[0] if lost else 0.0,
            retries=self._retries,
            tokens=tokens,
            guessed=self._estimate_tokens(tokens),
            usd=prices.usd(self.model, tokens) if tokens else None,
            replayed=self._replayed,
            message=self._clean_text(self.message, MAX_MESSAGE_CHARACTERS),
        )
        return exchange, lost

    def _find_lost_time(self, now: float) -> tuple[float, float] | None:
        if self.outcome == "abandoned" and self._mark is not None:
            waited = self.began if self._first is None else None  # the agent itself had waited long enough
            self._repeats.record_outcome(self._mark, self._retries + 1, waited)
        begin = self.began if self._since is None else self._since
        if self.outcome in FAILED_OUTCOMES:
            return begin, now
        return None if self._since is None else (begin, self.began)

    def _estimate_tokens(self, told: TokenCounts | None) -> TokenCounts | None:
        """Of an answer that began and was not counted to its end, or that nobody waited for."""
        untold = self.outcome in ("cut", "stalled", "abandoned") or (self.outcome == "answered" and not told)
        if not (self.wire and self.went_up and untold and (self.begun or self.outcome == "abandoned")):
            return None
        read = 0 if told and told.input else len(self.sent) // BYTES_PER_TOKEN
        said = (self.count.said if self.count else 0) // BYTES_PER_TOKEN
        guessed = TokenCounts(input=read, output=max(0, said - (told.output if told else 0)))
        return guessed if guessed.total else None

    def _clean_text(self, text: str, most: int) -> str:
        """What can be written down: the agent may have said anything."""
        text = text.encode("utf-8", "replace").decode()[:most]
        return self._key.redact_text(text) if self._key else text
