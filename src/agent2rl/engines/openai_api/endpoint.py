"""One OpenAI-compatible HTTP endpoint: sends requests with retries, and parses its answers.

Transient failures (a busy server, a server error, a lost connection, silence) are retried with exponential
backoff and jitter, or after the server's Retry-After if that is longer; attempts and total time are
limited. Anything else is an error at once, in the server's words. An answer that cannot be parsed is an
ExternalServiceError, never an empty reply. A reply without text is accepted only if the server says that it
was cut off by its length: the model spent its tokens on hidden reasoning. If a server reports no tokens,
words are counted.
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from ssl import SSLContext
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from agent2rl import __version__
from agent2rl.core.engine import Completion, ReplyLogprobs
from agent2rl.core.errors import (
    Agent2RLError,
    ExternalServiceError,
    RetriesExhausted,
    TransientError,
    UserError,
    parse_retry_after,
)
from agent2rl.net.keyed_transports import AsyncKeyedTransport

logger = logging.getLogger(__name__)

TRANSIENT_STATUS_CODES = {408, 409, 429}
"""In addition to all 5xx."""
MAX_ERROR_CHARACTERS = 300
"""Maximum characters of a server's error that are shown."""
CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 << 20
"""Maximum size of an answer, to limit memory; no real reply is this long."""


@dataclass(frozen=True)
class EndpointRetryPolicy:
    attempts: int = 8
    first_seconds: float = 0.5
    """First pause; it doubles each time, and jitter shortens each by up to a half."""
    longest_seconds: float = 60.0
    answer_seconds: float = 600.0
    """Timeout of one attempt."""
    total_seconds: float = 1800.0
    """Timeout of all attempts together, including pauses."""

    def backoff_seconds(self, attempt: int) -> float:
        longest = min(self.first_seconds * 2.0 ** (attempt - 1), self.longest_seconds)
        return longest * random.uniform(0.5, 1.0)


@cache
def _load_certificates() -> SSLContext:
    """Load the certificates of authorities once for all endpoints: reading them takes 20 to 50 ms."""
    return httpx.create_ssl_context()


class ModelEndpoint:
    def __init__(
        self,
        url: str,
        key: str | None,
        patience: EndpointRetryPolicy,
        connections: int,
        socket: str | None = None,
    ) -> None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._key = key
        self._patience = patience
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"User-Agent": f"agent2rl/{__version__}"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            limits=limits,
            transport=AsyncKeyedTransport(Path(socket), limits) if socket else None,
            verify=_load_certificates(),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # `answer_seconds` limits the rest
        )

    async def request_json(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request with retries and return the answer's JSON."""
        begin = time.monotonic()
        for attempt in range(1, self._patience.attempts + 1):
            left = self._patience.total_seconds - (time.monotonic() - begin)
            try:
                return await self._attempt_request(
                    method, path, body, min(left, self._patience.answer_seconds)
                )
            except TransientError as failure:
                last = failure
            passed = time.monotonic() - begin
            pause = max(self._patience.backoff_seconds(attempt), last.seconds)
            if attempt == self._patience.attempts or passed + pause >= self._patience.total_seconds:
                break
            logger.debug("Attempt %d failed (%s), retrying in %.1f s", attempt, last, pause)
            await asyncio.sleep(pause)
        retry_after = f" It requests a pause of {last.seconds:g} s." if last.seconds else ""
        times = "once" if attempt == 1 else f"{attempt} times"
        raise RetriesExhausted(
            f"{self._client.base_url} was asked {times} in {passed:.0f} s without success: "
            f"{last}.{retry_after}",
            "Check that it runs at this address, or try again later.",
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _attempt_request(self, method: str, path: str, body: Any, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                response = await self._read_response(method, path, body)
        except TimeoutError:
            raise TransientError(f"no answer within {seconds:.3g} s") from None
        except httpx.TransportError as error:
            raise TransientError(self._redact_text(f"{type(error).__name__}: {error}".rstrip(": "))) from None
        except httpx.RequestError as error:
            raise ExternalServiceError(
                f"The endpoint's answer cannot be read: {self._redact_text(str(error))}"
            ) from None
        if response.status_code in TRANSIENT_STATUS_CODES or response.status_code >= 500:
            raise TransientError(
                self._summarize_error(response), parse_retry_after(response.headers.get("Retry-After", ""))
            )
        if not response.is_success:
            raise self._build_refusal_error(response)
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            raise ExternalServiceError(
                f"The endpoint's answer is not JSON: {self._summarize_error(response)}."
            ) from None
        if isinstance(answer, dict) and answer.get("error"):  # some say so with a status of success
            raise ExternalServiceError(
                f"The endpoint answers with an error: {self._summarize_error(response)}."
            )
        return answer

    async def _read_response(self, method: str, path: str, body: Any) -> httpx.Response:
        """Read the whole answer; raise ExternalServiceError if it is too long."""
        content = bytearray()
        async with self._client.stream(method, path, json=body) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    raise ExternalServiceError(
                        f"The endpoint's answer is longer than {MAX_ANSWER_BYTES >> 20} MiB."
                    )
        wait = {name: value for name, value in response.headers.items() if name == "retry-after"}
        return httpx.Response(response.status_code, headers=wait, content=bytes(content))

    def _build_refusal_error(self, response: httpx.Response) -> Agent2RLError:
        reason = self._summarize_error(response)
        match response.status_code:
            case 401 | 403:
                refused = "the key" if self._key else "a request without a key"
                return UserError(
                    f"The endpoint refuses {refused}: {reason}.",
                    "Set AGENT2RL_API_KEY or OPENAI_API_KEY to its key.",
                )
            case 404:
                return UserError(
                    f"The endpoint does not find the model or the path: {reason}.",
                    "Check the model's name and the URL, which usually ends in /v1.",
                )
            case status if status >= 400:
                return UserError(f"The endpoint refuses the request: {reason}.")
        return ExternalServiceError(
            f"The endpoint answers with neither a reply nor an error: {reason}.", "Check the URL."
        )

    def _summarize_error(self, response: httpx.Response) -> str:
        """Return the status and the server's message in one line of limited length."""
        message: object = response.text
        with suppress(ValueError, RecursionError, TypeError, KeyError):
            message = response.json()["error"]
            message = message["message"] if isinstance(message, dict) else message
        return f"{response.status_code} {self._redact_text(str(message))}".strip().rstrip(".")

    def _redact_text(self, text: str) -> str:
        """Return one line of limited length without the key, which a server may repeat."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:MAX_ERROR_CHARACTERS]


# Parsing answers: an invalid one is an ExternalServiceError, never an empty reply

AnswerT = TypeVar("AnswerT", bound=BaseModel)
Stops = tuple[str, ...]


class EndpointMessage(BaseModel):
    content: Any = None
    refusal: Any = None


class TokenCandidate(BaseModel):
    token: str
    logprob: float = Field(le=1e-3)
    """Rounding may put a certain token a little above 0."""


class TokenPosition(BaseModel):
    """One position of a reply, and the candidate tokens for it."""

    top_logprobs: list[TokenCandidate] = []


class EndpointLogprobs(BaseModel):
    content: list[TokenPosition] | None = None


class EndpointChoice(BaseModel):
    message: EndpointMessage
    finish_reason: str | None = None
    logprobs: Any = None


class EndpointUsage(BaseModel):
    completion_tokens: int | None = Field(default=None, ge=0)


class EndpointReply(BaseModel):
    choices: list[EndpointChoice] = Field(min_length=1)
    usage: EndpointUsage | None = None


class EndpointModelEntry(BaseModel):
    id: str


class EndpointModelList(BaseModel):
    data: list[EndpointModelEntry]


def parse_completion(answer: object, stops: Stops) -> Completion:
    reply = _validate_answer(EndpointReply, answer)
    text = _extract_text(reply.choices[0])
    # A lone surrogate cannot be encoded as UTF-8.
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    for stop in filter(None, stops):  # some servers leave it in
        text = text.partition(stop)[0]
    counted = reply.usage.completion_tokens if reply.usage else None
    return Completion(text, tokens=len(text.split()) if counted is None else counted)


def parse_weighed_reply(answer: object, stops: Stops) -> ReplyLogprobs:
    """Parse a reply with first tokens; a server without them omits the field or sends something else."""
    choice = _validate_answer(EndpointReply, answer).choices[0]
    try:
        logprobs = EndpointLogprobs.model_validate(choice.logprobs)
    except ValidationError:
        logprobs = EndpointLogprobs()
    candidates = logprobs.content[0].top_logprobs if logprobs.content else []
    first = {candidate.token: candidate.logprob for candidate in candidates}
    return ReplyLogprobs(parse_completion(answer, stops).text, first or None)


def parse_model_names(answer: object) -> list[str]:
    return [model.id for model in _validate_answer(EndpointModelList, answer).data]


def _extract_text(choice: EndpointChoice) -> str:
    for text in (choice.message.content, choice.message.refusal):
        if isinstance(text, str):
            return text
    if choice.message.content is not None:
        raise ExternalServiceError(
            f"The endpoint's reply is a {type(choice.message.content).__name__}, not text."
        )
    if choice.finish_reason == "length":
        return ""
    raise ExternalServiceError(
        f"The endpoint's reply has no text; it ended with {choice.finish_reason!r}.",
        "A reply that was filtered or is a tool call cannot be used.",
    )


def _validate_answer(kind: type[AnswerT], answer: object) -> AnswerT:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise ExternalServiceError(f"The endpoint's answer is malformed: {where}: {first['msg']}.") from None
