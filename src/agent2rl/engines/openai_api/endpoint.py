"""One OpenAI-compatible HTTP endpoint: sends requests with retries, and parses its answers.

Transient failures (a busy server, a server error, a lost connection, silence) are retried with exponential
backoff and jitter, or after the server's Retry-After if that is longer; attempts and total time are
limited. Anything else is an error at once, in the server's words. An answer that cannot be parsed is a
WorldError, never an empty reply. A reply without text is accepted only where the server says that it was
cut off by its length: the model spent its tokens on hidden reasoning. Where a server counts no tokens,
words are counted.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from agent2rl import __version__
from agent2rl.core.engine import Completion, ReplyLogprobs
from agent2rl.core.errors import (
    Agent2RLError,
    RetriesExhausted,
    TransientError,
    UserError,
    WorldError,
    parse_retry_after,
)

TRANSIENT_STATUS_CODES = {408, 409, 429}
"""Besides all that begin with 5."""
MAX_ERROR_CHARACTERS = 300
"""Characters of a server's error that are passed on."""
CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 << 20
"""Of an answer: no reply is so long, and memory has an end."""


@dataclass(frozen=True)
class EndpointRetryPolicy:
    attempts: int = 8
    first_seconds: float = 0.5
    """The first pause; each further one is twice as long, and each is shortened by up to a half at random."""
    longest_seconds: float = 60.0
    answer_seconds: float = 600.0
    """The time of one attempt."""
    total_seconds: float = 1800.0
    """The time of all attempts, pauses included."""

    def backoff_seconds(self, attempt: int) -> float:
        whole = min(self.first_seconds * 2.0 ** (attempt - 1), self.longest_seconds)
        return whole * random.uniform(0.5, 1.0)


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
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=limits) if socket else None,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # `answer_seconds` limits the rest
        )

    async def request_json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that the endpoint answers with, in the end."""
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
            await asyncio.sleep(pause)
        wish = f" It wants to be left alone for {last.seconds:g} s." if last.seconds else ""
        tried = "once" if attempt == 1 else f"{attempt} times"
        raise RetriesExhausted(
            f"{self._client.base_url} was asked {tried} in {passed:.0f} s without success: {last}.{wish}",
            "Is it up and at this address? Try again later.",
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
            raise WorldError(
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
            raise WorldError(
                f"The endpoint's answer is not JSON: {self._summarize_error(response)}."
            ) from None
        if isinstance(answer, dict) and answer.get("error"):  # some say so with a status of success
            raise WorldError(f"The endpoint answers with an error: {self._summarize_error(response)}.")
        return answer

    async def _read_response(self, method: str, path: str, body: Any) -> httpx.Response:
        """Read to its end, or to where it is too long."""
        said = bytearray()
        async with self._client.stream(method, path, json=body) as response:
            async for part in response.aiter_bytes():
                said += part
                if len(said) > MAX_ANSWER_BYTES:
                    raise WorldError(f"The endpoint's answer is longer than {MAX_ANSWER_BYTES >> 20} MiB.")
        wait = {name: value for name, value in response.headers.items() if name == "retry-after"}
        return httpx.Response(response.status_code, headers=wait, content=bytes(said))

    def _build_refusal_error(self, response: httpx.Response) -> Agent2RLError:
        said = self._summarize_error(response)
        match response.status_code:
            case 401 | 403:
                how = "the key" if self._key else "a request without a key"
                return UserError(
                    f"The endpoint refuses {how}: {said}.",
                    "Set AGENT2RL_API_KEY or OPENAI_API_KEY to its key.",
                )
            case 404:
                return UserError(
                    f"The endpoint does not find what it is asked for: {said}.",
                    "Is the model's name right? The URL usually ends in /v1.",
                )
            case status if status >= 400:
                return UserError(f"The endpoint refuses the request: {said}.")
        return WorldError(
            f"The endpoint answers with neither a reply nor an error: {said}.", "Is the URL the right one?"
        )

    def _summarize_error(self, response: httpx.Response) -> str:
        """The status and what the server says, in one line of limited length."""
        said: object = response.text
        with suppress(ValueError, RecursionError, TypeError, KeyError):
            said = response.json()["error"]
            said = said["message"] if isinstance(said, dict) else said
        return f"{response.status_code} {self._redact_text(str(said))}".strip().rstrip(".")

    def _redact_text(self, text: str) -> str:
        """One line, not too long, without the key, which a server may well repeat."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:MAX_ERROR_CHARACTERS]


# What the endpoint's answers say. One that does not say it is an error of the world, never an empty
# reply.

AnswerT = TypeVar("AnswerT", bound=BaseModel)
Stops = tuple[str, ...]


class EndpointMessage(BaseModel):
    content: Any = None
    refusal: Any = None


class TokenCandidate(BaseModel):
    token: str
    logprob: float = Field(le=1e-3)
    """Rounded, a certain one may come out a little above 0."""


class TokenPosition(BaseModel):
    """One place of a reply, and which tokens might have stood there."""

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
    # A lone surrogate cannot be written down as UTF-8.
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    for stop in filter(None, stops):  # some servers leave it in
        text = text.partition(stop)[0]
    counted = reply.usage.completion_tokens if reply.usage else None
    return Completion(text, tokens=len(text.split()) if counted is None else counted)


def parse_weighed_reply(answer: object, stops: Stops) -> ReplyLogprobs:
    """A server that does not tell first tokens leaves them out, or says something else in their place."""
    try:
        told = EndpointLogprobs.model_validate(_validate_answer(EndpointReply, answer).choices[0].logprobs)
    except ValidationError:
        told = EndpointLogprobs()
    candidates = told.content[0].top_logprobs if told.content else []
    first = {one.token: one.logprob for one in candidates}
    return ReplyLogprobs(parse_completion(answer, stops).text, first or None)


def parse_model_names(answer: object) -> list[str]:
    return [model.id for model in _validate_answer(EndpointModelList, answer).data]


def _extract_text(choice: EndpointChoice) -> str:
    for said in (choice.message.content, choice.message.refusal):
        if isinstance(said, str):
            return said
    if choice.message.content is not None:
        raise WorldError(f"The endpoint's reply is a {type(choice.message.content).__name__}, not text.")
    if choice.finish_reason == "length":
        return ""
    raise WorldError(
        f"The endpoint's reply has no text; it ended with {choice.finish_reason!r}.",
        "A reply that was filtered or is a tool call cannot be used.",
    )


def _validate_answer(kind: type[AnswerT], answer: object) -> AnswerT:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise WorldError(f"The endpoint's answer is malformed: {where}: {first['msg']}.") from None
