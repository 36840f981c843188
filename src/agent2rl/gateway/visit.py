"""One request while it is under way, and what goes on record of it."""

import time
from collections import OrderedDict
from collections.abc import Mapping

from agent2rl.core.llm import Exchange, Outcome, Tokens, Wire
from agent2rl.gateway.asking import Asked
from agent2rl.gateway.counting import Count
from agent2rl.gateway.forms import Lost, Refused
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import BYTES_A_TOKEN, FAILED
from agent2rl.gateway.prices import Prices
from agent2rl.gateway.upstream import Answer
from agent2rl.gateway.wires import Call

LONG, WORDS = 200, 500
"""Characters of names and of messages that go on record."""
REMEMBERED = 256
HUNG_UP = 499
JSON = {"content-type": "application/json"}


class Repeats:
    """Knows a request that was asked before and failed, by its body."""

    def __init__(self) -> None:
        self._failed: OrderedDict[int, tuple[int, float]] = OrderedDict()

    def before(self, mark: int) -> tuple[int, float | None]:
        """How often, and since when it has been waited for an answer."""
        return self._failed.get(mark, (0, None))

    def ended(self, mark: int, times: int, since: float | None) -> None:
        """`since` is None where it was answered."""
        self._failed.pop(mark, None)
        if since is not None:
            self._failed[mark] = (times, since)
            if len(self._failed) > REMEMBERED:
                self._failed.popitem(last=False)


class Visit:
    """What it comes to is decided before the agent has the last of its answer: it may ask again at once."""

    def __init__(self, path: str, tongue: Wire, key: Key | None, repeats: Repeats) -> None:
        self.at, self.began = time.time(), time.monotonic()
        self.tongue = tongue
        """The wire format of whoever asks."""
        self.wire: Wire | None = None
        self.model = ""
        self.sent = b""
        """The body, as it came."""
        self.went_up = False
        """The provider may have seen it."""
        self.status = HUNG_UP
        self.outcome: Outcome = "abandoned"
        """Until something else has come of it."""
        self.headers: Mapping[str, str] = JSON
        self.begun = False
        """The answer."""
        self.message = ""
        self.count: Count | None = None
        self.most = Tokens()
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

    def routed(self, call: Call) -> None:
        self.tongue = call.wire
        self.wire = call.wire if call.kind == "generate" else None
        self._stream = call.stream

    def asked(self, call: Call, asked: Asked, sent: bytes) -> None:
        self.sent, self._stream = sent, asked.stream
        self.most = Tokens(input=len(asked.body) // BYTES_A_TOKEN, output=asked.most_output)
        self._mark = hash((call.wire, call.kind, asked.model, sent))
        self._retries, self._since = self._repeats.before(self._mark)

    def answering(self, answer: Answer, replayed: bool) -> None:
        self.begun, self.status, self.headers = True, answer.status, answer.headers
        self.message, self._replayed = answer.note, replayed

    def heard(self) -> None:
        if self._first is None:
            self._first = time.monotonic() - self.began

    def ended(self, outcome: Outcome, status: int | None = None, message: str = "") -> None:
        self.outcome = outcome
        if self._mark is not None and outcome != "refused":
            failed_at = time.monotonic() if outcome in FAILED else None
            self._repeats.ended(self._mark, self._retries + 1, failed_at)
        self.status = self.status if status is None else status
        self.message = "; ".join(filter(None, (self.message, message)))

    def finished(self) -> None:
        """The whole answer has passed."""
        if self.count and self.count.error:
            self.ended("provider-error", message=self.count.error)
        elif self.wire and self.count and not self.count.ended:
            self.ended("cut", message="The provider's answer is over without its end.")
        else:
            self.ended("answered")

    def refused(self, error: Refused) -> None:
        self.ended("refused", error.status, str(error))

    def lost(self, error: Lost) -> None:
        self.ended(error.outcome, None if self.begun else error.status, str(error))

    @property
    def told(self) -> Tokens | None:
        """The tokens of a generation, as far as the provider has told them."""
        return self.count.tokens if self.count and self.wire else None

    # When it is over

    def exchange(self, prices: Prices) -> tuple[Exchange, tuple[float, float] | None]:
        """What goes on record, and the time that was lost."""
        seconds = time.monotonic() - self.began
        lost = self._lost(self.began + seconds)
        tokens = self.told
        exchange = Exchange(
            at=self.at,
            wire=self.wire,
            model=self._clean(self.model, LONG),
            path=self._clean(self._path, LONG),
            stream=self._stream,
            status=self.status,
            outcome=self.outcome,
            seconds=seconds,
            first_seconds=self._first,
            stalled_seconds=lost[1] - lost[0] if lost else 0.0,
            retries=self._retries,
            tokens=tokens,
            guessed=self._guessed(tokens),
            usd=prices.usd(self.model, tokens) if tokens else None,
            replayed=self._replayed,
            message=self._clean(self.message, WORDS),
        )
        return exchange, lost

    def _lost(self, now: float) -> tuple[float, float] | None:
        if self.outcome == "abandoned" and self._mark is not None:
            waited = self.began if self._first is None else None  # the agent itself had waited long enough
            self._repeats.ended(self._mark, self._retries + 1, waited)
        begin = self.began if self._since is None else self._since
        if self.outcome in FAILED:
            return begin, now
        return None if self._since is None else (begin, self.began)

    def _guessed(self, told: Tokens | None) -> Tokens | None:
        """Of an answer that began and was not counted to its end, or that nobody waited for."""
        untold = self.outcome in ("cut", "stalled", "abandoned") or (self.outcome == "answered" and not told)
        if not (self.wire and self.went_up and untold and (self.begun or self.outcome == "abandoned")):
            return None
        read = 0 if told and told.input else len(self.sent) // BYTES_A_TOKEN
        said = (self.count.said if self.count else 0) // BYTES_A_TOKEN
        guessed = Tokens(input=read, output=max(0, said - (told.output if told else 0)))
        return guessed if guessed.total else None

    def _clean(self, text: str, most: int) -> str:
        """What can be written down: the agent may have said anything."""
        text = text.encode("utf-8", "replace").decode()[:most]
        return self._key.redact_text(text) if self._key else text
