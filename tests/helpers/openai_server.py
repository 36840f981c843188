"""A real OpenAI-compatible server on loopback, answered by any engine, which can be told to fail.

Each fault in `faults` takes the place of one answer to a chat, in turn; then the engine answers again.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from agent2rl.core.engine import Chat, ChatMessage, Engine, Sampling
from tests.helpers.http_server import serve_app

FaultReply = Callable[[Any], Awaitable[None]]
"""Given the server's `send`, answers in place of the engine."""


class ChatRequest(BaseModel, extra="forbid"):
    model: str
    messages: list[Any]
    max_tokens: int
    temperature: float
    seed: int
    stop: list[str] = []
    logprobs: bool = False
    top_logprobs: int = 0

    def chat(self) -> Chat:
        return tuple(ChatMessage(said["role"], said["content"]) for said in self.messages)

    def sampling(self) -> Sampling:
        return Sampling(self.max_tokens, self.temperature, self.seed, tuple(self.stop))


class OpenAIServer:
    def __init__(self, engine: Engine, models: tuple[str, ...]) -> None:
        self.url = ""
        self.faults: deque[FaultReply] = deque()
        self.pause_seconds = 0.0
        """How long each chat takes, besides the engine's time."""
        self.tells: Callable[[ChatRequest], Any] | None = None
        """What it says of how likely tokens were, where it is asked; None: nothing."""
        self.questions: list[ChatRequest] = []
        self.keys: list[str | None] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._engine = engine
        self._turn = threading.Lock()
        """An engine answers one call at a time."""
        self._api = FastAPI(openapi_url=None)
        self._api.get("/v1/models")(lambda: {"data": [{"id": name} for name in models]})
        self._api.post("/v1/chat/completions")(self._complete)

    def _complete(self, question: ChatRequest) -> Response:
        self.questions.append(question)
        with self._turn:
            (reply,) = self._engine.generate([question.chat()], question.sampling())
        said = {"role": "assistant", "content": reply.text}
        told = {"logprobs": self.tells(question)} if question.logprobs and self.tells else {}
        answer = {
            "choices": [{"index": 0, "message": said, "finish_reason": "stop", **told}],
            "usage": {"completion_tokens": reply.tokens},
        }
        return Response(json.dumps(answer), media_type="application/json")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.keys.append(headers.get("authorization"))
        if not scope["path"].endswith("/chat/completions"):
            return await self._api(scope, receive, send)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.pause_seconds)
            if self.faults:
                await self.faults.popleft()(send)
            else:
                await self._api(scope, receive, send)
        finally:
            self._in_flight -= 1


def make_fault_reply(status: int, body: object = "", **headers: str) -> FaultReply:
    """Any answer: text as it is, everything else as JSON."""

    async def fault(send: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": text.encode()})

    return fault


async def drop_connection(send: Any) -> None:
    """Hang up without a word."""
    send.__self__.transport.abort()


async def cut_off_reply(send: Any) -> None:
    """Hang up in the middle of an answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
    await send({"type": "http.response.body", "body": b'{"choices": [', "more_body": True})
    send.__self__.transport.close()


@contextmanager
def serve_engine(engine: Engine, *models: str) -> Iterator[OpenAIServer]:
    served = OpenAIServer(engine, models or ("tiny",))
    with serve_app(served) as url:
        served.url = f"{url}/v1"
        yield served
