"""Any OpenAI-compatible chat endpoint: `openai-api:MODEL@URL`, or `openai-api:URL` where it has one model.

    openai-api:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1

The model is elsewhere, so this engine loads no directory and cannot grade submissions. A call keeps many
requests in flight; what may pass by itself is tried again within bounds (see `endpoint`), and one chat that
fails for good fails the call: no answer stands for a failure.

The key is AGENT2RL_API_KEY, else OPENAI_API_KEY, read when the engine is opened; this module is the one home
of that. It is sent to the URL and shown nowhere.

A model that refuses `temperature` or `seed` is asked without, and one that refuses `max_tokens` with
`max_completion_tokens` and room to think. `unix:PATH` in place of the URL is a server at a unix socket.

Not covered: streaming and tools.
"""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from agent2rl.core.engine import Chat, Completion, OpenEngine, Sampling, Weighed
from agent2rl.core.errors import UserError
from agent2rl.engines.openai_api.answers import Stops, completion, model_names, weighed
from agent2rl.engines.openai_api.endpoint import Endpoint, Patience
from agent2rl.engines.openai_api.loop import Loop

T = TypeVar("T")

REMOTE: bool = True
"""It loads no directory, so that the registry can say so without importing it."""
KEYS = ("AGENT2RL_API_KEY", "OPENAI_API_KEY")
AT_SOCKET = "http://localhost/v1"
"""What is asked for at a unix socket, which needs no key."""
IN_FLIGHT = 32
CANDIDATES = 20
"""First tokens that are asked for: the most that endpoints give."""
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
OPTIONS = {LIMIT, "temperature", "seed"}
"""What models that think before they answer may refuse; then it is left out."""
THINKING = 4096
"""Tokens for that, beyond those of the answer."""
LISTED = 10
"""Models that an error names."""
NAME = re.compile(r"(?:(?P<model>\S+?)@)?(?:(?P<url>https?://\S+)|unix:(?P<socket>/\S+))")
WRITE = "Write openai-api:MODEL@URL, e.g. openai-api:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1."


class OpenAIAPI:
    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str | None = None,
        patience: Patience | None = None,
        in_flight: int = IN_FLIGHT,
        socket: str | None = None,
    ) -> None:
        self.url = str(httpx.URL(url)).rstrip("/")
        self.in_flight = in_flight
        self._tells = True
        self.refused: set[str] = set()
        """What the model does not take, as far as it has said so."""
        self._endpoint = Endpoint(url, key, patience or Patience(), in_flight, socket)
        self._loop = Loop()
        try:
            self.model = model or self._only_model()
        except BaseException:
            self.close()
            raise

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        if sampling.max_tokens <= 0:  # which servers refuse
            return [Completion("", tokens=0) for _ in chats]
        return self._loop.run(self._all(chats, sampling, completion))

    def weigh(self, chats: Sequence[Chat], sampling: Sampling) -> list[Weighed]:
        """With the likeliest first tokens, where the endpoint tells them; some refuse to be asked."""
        if self._tells:
            with suppress(UserError):  # if it is something else that is refused, the next line says so
                return self._loop.run(self._all(chats, sampling, weighed, CANDIDATES))
        plain = self._loop.run(self._all(chats, sampling, completion))
        self._tells = False
        return [Weighed(said.text, None) for said in plain]

    def close(self) -> None:
        self._loop.close(self._endpoint.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _only_model(self) -> str:
        names = model_names(self._loop.run(self._endpoint.ask("GET", "/models")))
        if len(names) == 1:
            return names[0]
        more = ", …" if len(names) > LISTED else ""
        raise UserError(
            f"The endpoint serves {len(names)} models: {', '.join(names[:LISTED])}{more}."
            if names
            else "The endpoint names no model.",
            f"Name one. {WRITE}",
        )

    async def _all(
        self, chats: Sequence[Chat], sampling: Sampling, read: Callable[[object, Stops], T], first: int = 0
    ) -> list[T]:
        places = asyncio.Semaphore(self.in_flight)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._reply(self._request(chat, sampling, index, first), sampling, places, read)
                    )
                    for index, chat in enumerate(chats)
                ]
        except ExceptionGroup as failed:  # the first failure has cancelled the rest
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _reply(
        self, body: Any, sampling: Sampling, places: asyncio.Semaphore, read: Callable[[object, Stops], T]
    ) -> T:
        async with places:
            answer = await self._ask(body)
        return read(answer, sampling.stop)

    async def _ask(self, body: dict[str, Any]) -> Any:
        """Without what the endpoint's model does not take, once it has said so."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self.refused}
            if LIMIT in self.refused:
                sent[NEW_LIMIT] = body[LIMIT] + THINKING
            try:
                return await self._endpoint.ask("POST", "/chat/completions", sent)
            except UserError as error:
                named = {name for name in OPTIONS & sent.keys() if re.search(rf"\b{name}\b", error.message)}
                if not named:
                    raise
                self.refused |= named

    def _request(self, chat: Chat, sampling: Sampling, index: int, first: int) -> dict[str, Any]:
        stop = [text for text in sampling.stop if text]
        return {
            "model": self.model,
            "messages": [{"role": said.role, "content": said.content} for said in chat],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed_of(index),
            **({"stop": stop} if stop else {}),
            **({"logprobs": True, "top_logprobs": first} if first else {}),
        }


def key_of_environment() -> str | None:
    """The key that the user has set. One that no header can carry is refused here, without being shown."""
    for name in KEYS:
        if key := os.environ.get(name, "").strip():
            if not re.fullmatch(r"[!-~]+", key):
                raise UserError(f"{name} holds characters that no key has.", "Set it again.")
            return key
    return None


def parse(argument: str) -> OpenEngine:
    """The engine of `MODEL@URL` or `URL`."""
    match = NAME.fullmatch(argument)
    if not match:
        raise UserError("The endpoint has no URL that begins with http:// or https://.", WRITE)
    if match["socket"]:
        return lambda _: OpenAIAPI(AT_SOCKET, match["model"], socket=match["socket"])
    try:
        url = httpx.URL(match["url"])
    except httpx.InvalidURL as error:
        raise UserError(f"The endpoint's URL is none: {error}.", WRITE) from None
    if url.userinfo or url.query or url.fragment or not url.host:
        raise UserError(
            "The endpoint's URL holds a user, a query or a fragment, or no host.",
            f"A key belongs into {KEYS[0]}, where no record shows it. {WRITE}",
        )

    def open_engine(_: Path) -> OpenAIAPI:
        return OpenAIAPI(str(url), match["model"], key_of_environment())

    return open_engine
