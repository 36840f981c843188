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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent2rl import __version__
from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import EpisodeSlot, GameSelector, StepCounter, StepsUsedUp
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

# The sessions of a served world: a seat for each client, as many as there may be, for as long as they are
# used.

MAX_SESSIONS = 256
"""Sessions at once."""


class SessionLimitReached(Agent2RLError):
    """Too many sessions are open."""


class OpenEnvMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ResetMessage(OpenEnvMessage):
    """Begins an episode."""

    seed: Annotated[StrictInt, Field(ge=0, le=1 << 64)] | None = None
    """Begins the random order of games anew."""
    game: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """The game to play; else the next in random order."""
    episode_id: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = None


class ActionMessage(OpenEnvMessage):
    """An action."""

    text: Annotated[StrictStr, Field(max_length=16384)]
    metadata: dict[str, JsonValue] = {}
    """OpenEnv's clients send it; nothing reads it."""


class ObservationMessage(OpenEnvMessage):
    """What is seen."""

    text: str
    game: str
    won: bool
    truncated: bool
    """Done only because the steps are used up."""
    episode_id: str | None


class EpisodeStateMessage(OpenEnvMessage):
    """How an episode stands."""

    episode_id: str | None
    step_count: int
    game: str | None
    reward: float
    done: bool
    won: bool


def build_schemas() -> dict[str, Any]:
    return {
        "action": ActionMessage.model_json_schema(),
        "observation": ObservationMessage.model_json_schema(),
        "state": EpisodeStateMessage.model_json_schema(),
        "reset": ResetMessage.model_json_schema(),
    }


class OpenEnvSession:
    """Answers one question after another, whoever asks at once."""

    def __init__(self, seat: EpisodeSlot, games: GameSelector) -> None:
        self.asked_at = time.monotonic()
        self._answering = threading.Lock()
        self._seat = seat
        self._games = games
        self._order: Iterator[Example] = games.iter_shuffled()
        self._episode: str | None = None

    def reset(self, asked: ResetMessage) -> dict[str, Any]:
        with self._answering:
            if asked.seed is not None:
                self._order = self._games.iter_shuffled(asked.seed)
            game = next(self._order) if asked.game is None else self._games.find_game(asked.game)
            step = self._seat.reset(game)
            self._episode = asked.episode_id
            return self._format_observation(step, None)

    def step(self, asked: ActionMessage) -> dict[str, Any]:
        with self._answering:
            step = self._seat.step(asked.text)
            return self._format_observation(step, step.reward)

    def state(self) -> dict[str, Any]:
        seat = self._seat
        return EpisodeStateMessage(
            episode_id=self._episode,
            step_count=seat.steps,
            game=seat.game.id if seat.game else None,
            reward=seat.reward,
            done=seat.over,
            won=seat.won,
        ).model_dump()

    def is_idle(self, since: float) -> bool:
        return self.asked_at < since and not self._answering.locked()

    def close(self) -> None:
        with self._answering:
            self._seat.close()

    def _format_observation(self, step: EnvironmentStep, reward: float | None) -> dict[str, Any]:
        game = self._seat.game.id if self._seat.game else ""
        seen = ObservationMessage(
            text=step.observation, game=game, won=step.won, truncated=step.cut, episode_id=self._episode
        )
        return {"observation": seen.model_dump(), "reward": reward, "done": step.done}


class OpenEnvSessionPool:
    """By name. One that nothing was asked of for a while makes room for the next."""

    def __init__(
        self, world: World, games: GameSelector, counter: StepCounter | None, idle_seconds: float
    ) -> None:
        self.idle_seconds = idle_seconds
        self._world, self._games, self._counter = world, games, counter
        self._open: dict[str, OpenEnvSession] = {}
        self._lock = threading.RLock()

    def open(self, name: str) -> OpenEnvSession:
        """The one of this name, or else a new one."""
        with self._lock:
            return self.get(name) or self._create_session(name)

    def _create_session(self, name: str) -> OpenEnvSession:
        if len(self._open) >= MAX_SESSIONS:
            raise SessionLimitReached(
                f"{MAX_SESSIONS} sessions are open, which is as many as there may be.",
                f"Close some, or wait: they are dropped after {self.idle_seconds:g} s without a question.",
            )
        seat = (
            EpisodeSlot(self._world, self._counter)
            if self._counter
            else ROLLOUT_REPORTER.open_slot(self._world)
        )
        session = self._open[name] = OpenEnvSession(seat, self._games)
        return session

    def get(self, name: str) -> OpenEnvSession | None:
        with self._lock:
            self._close_idle_sessions()
            session = self._open.get(name)
            if session:
                session.asked_at = time.monotonic()
            return session

    def close_session(self, name: str) -> None:
        with self._lock:
            session = self._open.pop(name, None)
        if session:  # what it is about to answer comes first, and others need not wait for it
            session.close()

    def _close_idle_sessions(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        for name in [name for name, session in self._open.items() if session.is_idle(oldest)]:
            self.close_session(name)


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
