"""Serve a world over OpenEnv's protocol, for trainers that speak it: an ASGI application.

    WS   /ws         {"type": "reset", "data": {"seed": 0}} | {"type": "step", "data": {"text": "look"}}
                     | {"type": "state"} | {"type": "close"}; one session per connection
    POST /reset      {"seed": 0, "game": …, "episode_id": …}, all optional
    POST /step       {"action": {"text": "look"}, "episode_id": …}
    GET  /state      ?episode_id=…
    GET  /openapi.json /schema /metadata /health

Over HTTP the `episode_id` in the observation identifies the episode until it is done; OpenEnv's own servers
forget it between calls. The number of sessions is limited, and idle ones are dropped. Every message gets an
answer, also an invalid one. Steps run in the server's event loop, except that those of a slow world run in
threads, so that they do not block the others. Not covered: MCP, and OpenEnv's web page.
"""

import asyncio
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent2rl import __version__
from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import EpisodeSlot, GameSelector, StepCounter, StepsUsedUp
from agent2rl.environments.adapters.openenv_messages import (
    ActionMessage,
    EpisodeStateMessage,
    ErrorCode,
    ObservationMessage,
    ResetMessage,
    SessionLimitReached,
    StepRequest,
    build_openapi,
    build_schemas,
)
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

# Sessions: one episode slot per client, limited in number and dropped when idle

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Sessions that may be open at the same time."""


class OpenEnvSession:
    """Answer a client's messages one at a time, also if they arrive concurrently."""

    def __init__(self, slot: EpisodeSlot, games: GameSelector) -> None:
        self.last_used_at = time.monotonic()
        self._lock = threading.Lock()
        self._slot = slot
        self._games = games
        self._order: Iterator[Example] = games.iter_shuffled()
        self._episode: str | None = None

    def reset(self, message: ResetMessage) -> dict[str, Any]:
        with self._lock:
            if message.seed is not None:
                self._order = self._games.iter_shuffled(message.seed)
            game = next(self._order) if message.game is None else self._games.find_game(message.game)
            step = self._slot.reset(game)
            self._episode = message.episode_id
            return self._format_observation(step, None)

    def step(self, message: ActionMessage) -> dict[str, Any]:
        with self._lock:
            step = self._slot.step(message.text)
            return self._format_observation(step, step.reward)

    def state(self) -> dict[str, Any]:
        slot = self._slot
        return EpisodeStateMessage(
            episode_id=self._episode,
            step_count=slot.steps,
            game=slot.game.id if slot.game else None,
            reward=slot.reward,
            done=slot.over,
            won=slot.won,
        ).model_dump()

    def is_idle(self, since: float) -> bool:
        return self.last_used_at < since and not self._lock.locked()

    def close(self) -> None:
        with self._lock:
            self._slot.close()

    def _format_observation(self, step: EnvironmentStep, reward: float | None) -> dict[str, Any]:
        game = self._slot.game.id if self._slot.game else ""
        observation = ObservationMessage(
            text=step.observation,
            game=game,
            won=step.won,
            truncated=step.cut,
            episode_id=self._episode,
            marks=dict(step.marks),
        )
        return {"observation": observation.model_dump(), "reward": reward, "done": step.done}


class OpenEnvSessionPool:
    """Open sessions by name. Idle ones are closed to make room."""

    def __init__(
        self, world: World, games: GameSelector, counter: StepCounter | None, idle_seconds: float
    ) -> None:
        self.idle_seconds = idle_seconds
        self._world, self._games, self._counter = world, games, counter
        self._sessions: dict[str, OpenEnvSession] = {}
        self._lock = threading.RLock()

    def open(self, name: str) -> OpenEnvSession:
        """Return the session with this name; create it if needed."""
        with self._lock:
            return self.get(name) or self._create_session(name)

    def _create_session(self, name: str) -> OpenEnvSession:
        if len(self._sessions) >= MAX_SESSIONS:
            raise SessionLimitReached(
                f"Too many sessions: {MAX_SESSIONS} are open, which is the limit.",
                f"Close some, or wait: idle ones are dropped after {self.idle_seconds:g} s.",
            )
        slot = (
            EpisodeSlot(self._world.environment(), self._counter)
            if self._counter
            else ROLLOUT_REPORTER.open_slot(self._world)
        )
        session = self._sessions[name] = OpenEnvSession(slot, self._games)
        return session

    def get(self, name: str) -> OpenEnvSession | None:
        with self._lock:
            self._close_idle_sessions()
            session = self._sessions.get(name)
            if session:
                session.last_used_at = time.monotonic()
            return session

    def close_session(self, name: str) -> None:
        with self._lock:
            session = self._sessions.pop(name, None)
        if session:  # outside the lock: closing waits for the answer in progress, other sessions must not
            session.close()

    def _close_idle_sessions(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        for name in [name for name, session in self._sessions.items() if session.is_idle(oldest)]:
            logger.debug("Dropping session %s: idle for over %g s", name, self.idle_seconds)
            self.close_session(name)


# The application

__all__ = ["BODY_BYTES", "MAX_SESSIONS", "application"]

BODY_BYTES = 64 << 10
Fault = Callable[[str], None]
STATUS = {StepsUsedUp: 403, SessionLimitReached: 429}
CODE: dict[type[Agent2RLError], ErrorCode] = {
    StepsUsedUp: "BUDGET_USED_UP",
    SessionLimitReached: "CAPACITY_REACHED",
}
CLOSE: dict[str, Any] = {}
"""Returned in place of an answer when the client closes the session."""


def application(
    world: World,
    name: str,
    counter: StepCounter | None = None,
    fault: Fault = lambda _: None,
    idle_seconds: float = 900.0,
) -> Starlette:
    """Build the ASGI application that serves a world.

    `counter` counts every episode and step; without one, this process reports them as its own rollouts.
    `fault` is called for every internal error.
    """
    sessions = OpenEnvSessionPool(world, GameSelector(world), counter, idle_seconds)
    endpoints = _OpenEnvEndpoints(sessions, name, len(world.games), world.slow, fault)
    return Starlette(
        routes=[
            WebSocketRoute("/ws", endpoints.serve_websocket),
            Route("/reset", endpoints.reset, methods=["POST"]),
            Route("/step", endpoints.step, methods=["POST"]),
            Route("/state", endpoints.state),
            Route("/schema", endpoints.schema),
            Route("/metadata", endpoints.metadata),
            Route("/health", endpoints.health),
            Route("/openapi.json", endpoints.openapi),
        ],
        exception_handlers={HTTPException: _answer_http_error},
    )


class _OpenEnvEndpoints:
    def __init__(self, sessions: OpenEnvSessionPool, name: str, games: int, slow: bool, fault: Fault) -> None:
        self._sessions = sessions
        self._slow = slow
        self._name = name
        self._games = games
        self._fault = fault

    # WebSocket

    async def serve_websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        session_id = secrets.token_hex(8)
        try:
            with suppress(RuntimeError, OSError, WebSocketDisconnect):  # the client may disconnect any time
                try:
                    await self._serve_session(socket, self._sessions.open(session_id))
                except SessionLimitReached as error:
                    await socket.send_text(_dump_json(_format_error(CODE[SessionLimitReached], str(error))))
                await socket.close()
        finally:
            self._sessions.close_session(session_id)

    async def _serve_session(self, socket: WebSocket, session: OpenEnvSession) -> None:
        while True:
            try:
                async with asyncio.timeout(self._sessions.idle_seconds):
                    message = await socket.receive()
            except TimeoutError:
                await socket.send_text(
                    _dump_json(_format_error("SESSION_ERROR", "The session was idle for too long."))
                )
                return
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            if self._slow:
                answer = await asyncio.to_thread(self._answer_message, session, text)
            else:
                answer = self._answer_message(session, text)
            if answer is CLOSE:
                return
            await socket.send_text(_dump_json(answer))

    def _answer_message(self, session: OpenEnvSession, text: str | None) -> dict[str, Any]:
        session.last_used_at = time.monotonic()
        try:
            message = _parse_json_object(text or "")
        except ValueError as error:
            return _format_error("INVALID_JSON", f"The message is not a JSON object: {error}.")
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
            logger.debug("The world raised an error", exc_info=True)
            self._fault("world")
            return _format_error("EXECUTION_ERROR", f"Internal error in the world ({type(error).__name__}).")
        return _format_error("UNKNOWN_TYPE", "Unknown message type. Use reset, step, state or close.")

    # Plain HTTP

    async def reset(self, request: Request) -> Response:
        def begin(body: dict[str, Any]) -> dict[str, Any]:
            message = ResetMessage.model_validate(body)
            name = message.episode_id or secrets.token_hex(8)
            existing = self._sessions.get(name)
            session = self._sessions.open(name)
            try:
                return session.reset(message.model_copy(update={"episode_id": name}))
            except BaseException:
                if not existing:  # no episode began, so the new session would only count toward the limit
                    self._sessions.close_session(name)
                raise

        return await self._answer_http(request, begin)

    async def step(self, request: Request) -> Response:
        def act(body: dict[str, Any]) -> dict[str, Any]:
            request = StepRequest.model_validate(body)
            result = self._get_session(request.episode_id).step(request.action)
            if result["done"]:
                self._sessions.close_session(str(request.episode_id))
            return result

        return await self._answer_http(request, act)

    async def state(self, request: Request) -> Response:
        name = request.query_params.get("episode_id")
        return await self._answer_http(request, lambda _: self._get_session(name).state())

    def _get_session(self, name: object) -> OpenEnvSession:
        session = self._sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise UserError(
                "No episode is running with this `episode_id`.",
                "POST /reset returns one; or use /ws, where each connection is a session.",
            )
        return session

    async def _answer_http(
        self, request: Request, answer: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Response:
        try:
            text = await _read_body(request)
            body = _parse_json_object(text) if text.strip() else {}
        except _BodyTooLarge:
            return _make_problem_response(413, f"The request is larger than {BODY_BYTES} bytes.")
        except ValueError as error:
            return _make_problem_response(422, f"The request is not a JSON object: {error}.")
        try:
            return _make_response(200, await asyncio.to_thread(answer, body) if self._slow else answer(body))
        except ValidationError as error:
            return _make_problem_response(422, _format_first_error(error))
        except Agent2RLError as error:
            return _make_problem_response(STATUS.get(type(error), 422), str(error))
        except Exception as error:
            logger.debug("The world raised an error", exc_info=True)
            self._fault("world")
            return _make_problem_response(500, f"Internal error in the world ({type(error).__name__}).")

    async def schema(self, _: Request) -> Response:
        return _make_response(200, build_schemas())

    async def metadata(self, _: Request) -> Response:
        description = f"The {self._games} training games of {self._name}."
        return _make_response(200, {"name": self._name, "description": description, "version": __version__})

    async def openapi(self, _: Request) -> Response:
        return _make_response(200, build_openapi(self._name))

    async def health(self, _: Request) -> Response:
        return _make_response(200, {"status": "healthy"})


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _make_problem_response(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")


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
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is of type {type(value).__name__}")
    return value


def _dump_json(answer: dict[str, Any]) -> str:
    """Dump as ASCII, so that lone surrogates cannot break the encoding."""
    return json.dumps(answer)


def _format_error(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _format_first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return f"{where}: {first['msg']}." if where else f"{first['msg']}."


def _make_response(status: int, body: dict[str, Any], kind: str = "application/json") -> Response:
    return Response(_dump_json(body), status, media_type=kind)


def _make_problem_response(status: int, detail: str) -> Response:
    hint = "GET /openapi.json describes every call."
    body = {
        "type": "about:blank",
        "title": "Request failed",
        "status": status,
        "detail": detail,
        "hint": hint,
    }
    return _make_response(status, body, "application/problem+json")
