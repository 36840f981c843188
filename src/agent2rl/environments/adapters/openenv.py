"""Serves a world by OpenEnv's protocol, for trainers that speak it: an ASGI application.

    WS   /ws         {"type": "reset", "data": {"seed": 0}} | {"type": "step", "data": {"text": "look"}}
                     | {"type": "state"} | {"type": "close"}; a session for each connection
    POST /reset      {"seed": 0, "game": …, "episode_id": …}, all optional
    POST /step       {"action": {"text": "look"}, "episode_id": …}
    GET  /state      ?episode_id=…
    GET  /schema /metadata /health

Over HTTP an episode is found again by the `episode_id` that its observation has, until it is done; OpenEnv's
own servers forget it between calls. Sessions are bounded in number, and dropped where nothing was asked of
them for a while. Whatever is sent, there is an answer. Steps are taken in the server's own loop, but those of
a slow world in threads, so that they do not hold up the others. Not covered: MCP, and OpenEnv's web page.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent2rl import __version__
from agent2rl.core.environment import World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.environments.adapters.episode_slot import StepCounter, StepsUsedUp
from agent2rl.environments.adapters.game_selector import GameSelector
from agent2rl.environments.adapters.sessions import (
    MAX_SESSIONS,
    ActionMessage,
    OpenEnvSession,
    OpenEnvSessionPool,
    ResetMessage,
    SessionLimitReached,
    build_schemas,
)

__all__ = ["BODY_BYTES", "MAX_SESSIONS", "application"]

BODY_BYTES = 64 << 10
Fault = Callable[[str], None]
STATUS = {StepsUsedUp: 403, SessionLimitReached: 429}
CODE = {StepsUsedUp: "BUDGET_USED_UP", SessionLimitReached: "CAPACITY_REACHED"}
CLOSE: dict[str, Any] = {}
"""In place of an answer: the client says goodbye."""


def application(
    world: World,
    name: str,
    counter: StepCounter | None = None,
    fault: Fault = lambda _: None,
    idle_seconds: float = 900.0,
) -> Starlette:
    """`counter` is told of every episode and step; without one, they are this process's claims.

    `fault` is told of every error that is ours.
    """
    sessions = OpenEnvSessionPool(world, GameSelector(world), counter, idle_seconds)
    face = _OpenEnvEndpoints(sessions, name, len(world.games), world.slow, fault)
    return Starlette(
        routes=[
            WebSocketRoute("/ws", face.serve_websocket),
            Route("/reset", face.reset, methods=["POST"]),
            Route("/step", face.step, methods=["POST"]),
            Route("/state", face.state),
            Route("/schema", face.schema),
            Route("/metadata", face.metadata),
            Route("/health", face.health),
        ],
    )


class _OpenEnvEndpoints:
    def __init__(self, sessions: OpenEnvSessionPool, name: str, games: int, slow: bool, fault: Fault) -> None:
        self._sessions = sessions
        self._slow = slow
        self._name = name
        self._games = games
        self._fault = fault

    # Over a WebSocket

    async def serve_websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        number = secrets.token_hex(8)
        try:
            with suppress(RuntimeError, OSError, WebSocketDisconnect):  # hung up while it was being answered
                try:
                    await self._serve_session(socket, self._sessions.open(number))
                except SessionLimitReached as error:
                    await socket.send_text(_dump_json(_format_error(CODE[SessionLimitReached], str(error))))
                await socket.close()
        finally:
            self._sessions.close_session(number)

    async def _serve_session(self, socket: WebSocket, session: OpenEnvSession) -> None:
        while True:
            try:
                async with asyncio.timeout(self._sessions.idle_seconds):
                    message = await socket.receive()
            except TimeoutError:
                await socket.send_text(
                    _dump_json(_format_error("SESSION_ERROR", "Nothing was asked for too long."))
                )
                return
            if message["type"] != "websocket.receive":
                return
            said = message.get("text")
            if self._slow:
                answer = await asyncio.to_thread(self._answer_message, session, said)
            else:
                answer = self._answer_message(session, said)
            if answer is CLOSE:
                return
            await socket.send_text(_dump_json(answer))

    def _answer_message(self, session: OpenEnvSession, text: str | None) -> dict[str, Any]:
        session.asked_at = time.monotonic()
        try:
            message = _parse_json_object(text or "")
        except ValueError as error:
            return _format_error("INVALID_JSON", f"This is no JSON object: {error}.")
        data = message.get("data", {})
        try:
            match message.get("type"):
                case "reset":
                    return {"type": "observation", "data": session.reset(ResetMessage.model_validate(data))}
                case "step":
                    return {"type": "observation", "data": session.step(ActionMessage.model_validate(data))}
                case "state":
                    return {"type": "state", "data": session.state()}
                case "close":
                    return CLOSE
        except ValidationError as error:
            return _format_error("VALIDATION_ERROR", _format_first_error(error))
        except Agent2RLError as error:
            return _format_error(CODE.get(type(error), "EXECUTION_ERROR"), str(error))
        except Exception as error:
            self._fault("world")
            return _format_error("EXECUTION_ERROR", f"A fault of the world ({type(error).__name__}).")
        return _format_error("UNKNOWN_TYPE", "The types of messages are reset, step, state and close.")

    # Over plain HTTP

    async def reset(self, request: Request) -> Response:
        def begin(body: dict[str, Any]) -> dict[str, Any]:
            asked = ResetMessage.model_validate(body)
            name = asked.episode_id or secrets.token_hex(8)
            known = self._sessions.get(name)
            session = self._sessions.open(name)
            try:
                return session.reset(asked.model_copy(update={"episode_id": name}))
            except BaseException:
                if not known:  # it began nothing, and would only take up room
                    self._sessions.close_session(name)
                raise

        return await self._answer_http(request, begin)

    async def step(self, request: Request) -> Response:
        def go_on(body: dict[str, Any]) -> dict[str, Any]:
            name = body.get("episode_id")
            seen = self._get_session(name).step(ActionMessage.model_validate(body.get("action")))
            if seen["done"]:
                self._sessions.close_session(str(name))
            return seen

        return await self._answer_http(request, go_on)

    async def state(self, request: Request) -> Response:
        name = request.query_params.get("episode_id")
        return await self._answer_http(request, lambda _: self._get_session(name).state())

    def _get_session(self, name: object) -> OpenEnvSession:
        session = self._sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise UserError(
                "No episode goes on under this `episode_id`.",
                "POST /reset answers with one; or use /ws, where a connection is a session.",
            )
        return session

    async def _answer_http(
        self, request: Request, answer: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Response:
        try:
            text = await _read_body(request)
            body = _parse_json_object(text) if text.strip() else {}
        except _BodyTooLarge:
            return _make_problem_response(413, f"A request has at most {BODY_BYTES} bytes.")
        except ValueError as error:
            return _make_problem_response(422, f"This is no JSON object: {error}.")
        try:
            return _make_response(200, await asyncio.to_thread(answer, body) if self._slow else answer(body))
        except ValidationError as error:
            return _make_problem_response(422, _format_first_error(error))
        except Agent2RLError as error:
            return _make_problem_response(STATUS.get(type(error), 422), str(error))
        except Exception as error:
            self._fault("world")
            return _make_problem_response(500, f"A fault of the world ({type(error).__name__}).")

    async def schema(self, _: Request) -> Response:
        return _make_response(200, build_schemas())

    async def metadata(self, _: Request) -> Response:
        about = f"The {self._games} training games of {self._name}."
        return _make_response(200, {"name": self._name, "description": about, "version": __version__})

    async def health(self, _: Request) -> Response:
        return _make_response(200, {"status": "healthy"})


class _BodyTooLarge(Exception):
    pass


async def _read_body(request: Request) -> str:
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > BODY_BYTES:
            raise _BodyTooLarge
    return b"".join(chunks).decode("utf-8")


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is something else")
    return found


def _dump_json(answer: dict[str, Any]) -> str:
    """In ASCII, so that there is nothing in it that cannot be sent."""
    return json.dumps(answer)


def _format_error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _format_first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return f"{where}: {first['msg']}." if where else f"{first['msg']}."


def _make_response(status: int, body: dict[str, Any], kind: str = "application/json") -> Response:
    return Response(_dump_json(body), status, media_type=kind)


def _make_problem_response(status: int, detail: str) -> Response:
    hint = "GET /schema says what is expected."
    body = {"type": "about:blank", "title": "Not possible", "status": status, "detail": detail, "hint": hint}
    return _make_response(status, body, "application/problem+json")
