"""Any OpenAI-compatible chat endpoint: `openai-api:MODEL@URL`, or `openai-api:URL` if it has one model.

    openai-api:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1

The model is remote, so this engine loads no directory and cannot grade submissions. A call keeps many
requests in flight. Transient failures are retried within limits (see `endpoint`). If one chat fails for good,
the whole call fails: no answer stands for a failure.

The key is AGENT2RL_API_KEY, else OPENAI_API_KEY, read when the engine is opened; only this module reads it.
It is sent to the URL and never shown.

If a model refuses `temperature` or `seed`, they are left out. If it refuses `max_tokens`, it gets
`max_completion_tokens` with extra tokens for reasoning. `unix:PATH` in place of the URL is a unix socket.

Not covered: streaming and tools.
"""

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from agent2rl.core.engine import Chat, Completion, OpenEngine, ReplyLogprobs, Sampling
from agent2rl.core.errors import UserError
from agent2rl.engines.openai_api.endpoint import (
    EndpointRetryPolicy,
    ModelEndpoint,
    Stops,
    parse_completion,
    parse_model_names,
    parse_weighed_reply,
)

logger = logging.getLogger(__name__)
# An event loop in its own thread, for parallel requests behind a synchronous call

ResultT = TypeVar("ResultT")


class BackgroundEventLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-api", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all running tasks, run a last one, and stop."""
        self.run(self._cancel_tasks_and_finish(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks_and_finish(self, last: Coroutine[Any, Any, None]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last


# The engine

T = TypeVar("T")

REMOTE: bool = True
"""Tells the registry, which does not import this module, that the engine loads no directory."""
API_KEY_VARIABLES = ("AGENT2RL_API_KEY", "OPENAI_API_KEY")
SOCKET_URL = "http://localhost/v1"
"""The URL for a unix socket, which needs no key."""
IN_FLIGHT = 32
CANDIDATES = 20
"""Number of first tokens to request: the maximum of most endpoints."""
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
OPTIONS = {LIMIT, "temperature", "seed"}
"""Options that reasoning models may refuse; then they are left out."""
THINKING_TOKENS = 4096
"""Extra tokens for reasoning, in addition to those of the answer."""
LISTED = 10
"""Maximum number of models that an error lists."""
ENGINE_NAME_PATTERN = re.compile(r"(?:(?P<model>\S+?)@)?(?:(?P<url>https?://\S+)|unix:(?P<socket>/\S+))")
ENGINE_NAME_HELP = "Write openai-api:MODEL@URL, e.g. openai-api:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1."


class OpenAIApiEngine:
    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str | None = None,
        patience: EndpointRetryPolicy | None = None,
        in_flight: int = IN_FLIGHT,
        socket: str | None = None,
    ) -> None:
        self.url = str(httpx.URL(url)).rstrip("/")
        self.in_flight = in_flight
        self._tells = True
        self.refused: set[str] = set()
        """Options that the model has refused so far."""
        self._endpoint = ModelEndpoint(url, key, patience or EndpointRetryPolicy(), in_flight, socket)
        self._loop = BackgroundEventLoop()
        try:
            self.model = model or self._find_only_model()
        except BaseException:
            self.close()
            raise

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        if sampling.plain:
            raise UserError("This engine asks a chat endpoint, which cannot continue plain text.")
        if sampling.max_tokens <= 0:  # servers refuse this
            return [Completion("", tokens=0) for _ in chats]
        return self._loop.run(self._request_all(chats, sampling, parse_completion))

    def generate_with_logprobs(self, chats: Sequence[Chat], sampling: Sampling) -> list[ReplyLogprobs]:
        """Generate replies with the likeliest first tokens, if the endpoint supports that; some refuse."""
        if self._tells:
            with suppress(UserError):  # if it refuses something else, the next request fails too
                return self._loop.run(self._request_all(chats, sampling, parse_weighed_reply, CANDIDATES))
        plain = self._loop.run(self._request_all(chats, sampling, parse_completion))
        self._tells = False
        return [ReplyLogprobs(completion.text, None) for completion in plain]

    def close(self) -> None:
        self._loop.close(self._endpoint.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find_only_model(self) -> str:
        names = parse_model_names(self._loop.run(self._endpoint.request_json("GET", "/models")))
        if len(names) == 1:
            return names[0]
        ellipsis = ", …" if len(names) > LISTED else ""
        raise UserError(
            f"The endpoint serves {len(names)} models: {', '.join(names[:LISTED])}{ellipsis}."
            if names
            else "The endpoint lists no models.",
            f"Name one. {ENGINE_NAME_HELP}",
        )

    async def _request_all(
        self, chats: Sequence[Chat], sampling: Sampling, read: Callable[[object, Stops], T], first: int = 0
    ) -> list[T]:
        slots = asyncio.Semaphore(self.in_flight)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._request_reply(
                            self._build_request_body(chat, sampling, index, first), sampling, slots, read
                        )
                    )
                    for index, chat in enumerate(chats)
                ]
        except ExceptionGroup as failed:  # the first failure has cancelled the rest
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _request_reply(
        self, body: Any, sampling: Sampling, slots: asyncio.Semaphore, read: Callable[[object, Stops], T]
    ) -> T:
        async with slots:
            answer = await self._post_chat_completion(body)
        return read(answer, sampling.stop)

    async def _post_chat_completion(self, body: dict[str, Any]) -> Any:
        """Send a request; if the model refuses an option, send it again without that."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self.refused}
            if LIMIT in self.refused:
                sent[NEW_LIMIT] = body[LIMIT] + THINKING_TOKENS
            try:
                return await self._endpoint.request_json("POST", "/chat/completions", sent)
            except UserError as error:
                refused = {name for name in OPTIONS & sent.keys() if re.search(rf"\b{name}\b", error.message)}
                if not refused:
                    raise
                logger.debug("%s refuses %s, retrying without", self.model, ", ".join(sorted(refused)))
                self.refused |= refused

    def _build_request_body(self, chat: Chat, sampling: Sampling, index: int, first: int) -> dict[str, Any]:
        stop = [text for text in sampling.stop if text]
        return {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in chat],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.derive_seed(index),
            **({"stop": stop} if stop else {}),
            **({"logprobs": True, "top_logprobs": first} if first else {}),
        }


def read_api_key() -> str | None:
    """Return the key that the user has set; raise UserError, without showing it, if it is invalid."""
    for name in API_KEY_VARIABLES:
        if key := os.environ.get(name, "").strip():
            if not re.fullmatch(r"[!-~]+", key):
                raise UserError(f"{name} has invalid characters.", "Set it again.")
            return key
    return None


def parse(argument: str) -> OpenEngine:
    """Return the engine of `MODEL@URL` or `URL`."""
    match = ENGINE_NAME_PATTERN.fullmatch(argument)
    if not match:
        raise UserError("The endpoint's URL must start with http:// or https://.", ENGINE_NAME_HELP)
    if match["socket"]:
        return lambda _: OpenAIApiEngine(SOCKET_URL, match["model"], socket=match["socket"])
    try:
        url = httpx.URL(match["url"])
    except httpx.InvalidURL as error:
        raise UserError(f"Invalid endpoint URL: {error}.", ENGINE_NAME_HELP) from None
    if url.userinfo or url.query or url.fragment or not url.host:
        raise UserError(
            "The endpoint's URL must have a host, and no user, query or fragment.",
            f"Put a key into {API_KEY_VARIABLES[0]}, which is never recorded. {ENGINE_NAME_HELP}",
        )

    def open_engine(_: Path) -> OpenAIApiEngine:
        return OpenAIApiEngine(str(url), match["model"], read_api_key())

    return open_engine
