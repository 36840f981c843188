"""One HTTP endpoint, asked with patience.

What may pass by itself (a busy server, a fault of the server, a lost connection, silence) is asked again
after a pause that doubles and varies, or after the longer one that the server names in Retry-After. Both the
number of attempts and their whole time have a limit. What will not pass is an error at once, in the server's
words.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from agent2rl import __version__
from agent2rl.core.errors import Agent2RLError, UserError, WorldError
from agent2rl.core.transient_errors import RetriesExhausted, TransientError, parse_retry_after

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
