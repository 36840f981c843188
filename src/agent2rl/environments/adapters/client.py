"""Play in the world that the harness serves at `$ENVIRONMENT_URL`, as an `Environment`.

    parts = (EVALUATOR.prompt, EVALUATOR.action, EVALUATOR.sampling, EVALUATOR.get_kind)
    setup = WorldSetup(ServedWorld, *parts)
    grpo_in_world(model, tokenizer, setup, open_world().games, settings, progress)

The harness counts these steps itself, so the record lists them as served. The adapters do not report them
a second time. Each ServedWorld has one WebSocket connection, which stays open from episode to episode. The
server allows 256 at once and closes one that is idle for 15 minutes; the next reset opens another.
"""

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import StepsUsedUp
from agent2rl.environments.adapters.openenv_messages import SessionLimitReached
from agent2rl.net.socket_keys import connect_to_socket

ACTION_CHARACTERS = 8192
"""Longer actions are cut. The grader cuts them after 1,000 characters."""
ANSWER_SECONDS = 120.0
"""Default time limit for an answer. A step in a world of live searches may take a minute."""


class ConnectionLost(ExternalServiceError):
    """The connection to the served world was closed."""


class ServedWorld:
    """One connection to a served world; plays one episode at a time."""

    def __init__(self, url: str | None = None, answer_seconds: float = ANSWER_SECONDS) -> None:
        """`url` is that of the server, by default `$ENVIRONMENT_URL`; or `unix:PATH` of its socket."""
        self._url = url or os.environ.get("ENVIRONMENT_URL") or ""
        if not self._url.startswith(("http://", "https://", "unix:")):
            raise UserError(
                f"Invalid URL of a served world: {self._url!r}."
                if self._url
                else "ENVIRONMENT_URL is not set: not inside a run of a task with a world.",
                "Pass the URL of a served world, such as http://127.0.0.1:8000.",
            )
        self._answer_seconds = answer_seconds
        self._connection: ClientConnection | None = None
        self._closing = ExitStack()
        self._process = os.getpid()

    def reset(self, example: Example) -> EnvironmentStep:
        """Start the episode of a training game; only the id of the example is sent."""
        if self._connection is not None and self._process == os.getpid():
            with suppress(ConnectionLost):  # it may have been idle for too long: open another
                return self._request_step("reset", {"game": example.id})
        self._closing, self._process = ExitStack(), os.getpid()
        self._connection = self._closing.enter_context(self._open_connection())
        return self._request_step("reset", {"game": example.id})

    def step(self, action: str) -> EnvironmentStep:
        if self._connection is None or self._process != os.getpid():
            raise UserError("No episode is running: it has not begun, or it is lost.", "Call reset first.")
        text = action[:ACTION_CHARACTERS].encode("utf-8", "replace").decode()
        return self._request_step("step", {"text": text})

    def close(self) -> None:
        """Close the connection; another reset opens a new one."""
        self._connection = None
        if self._process == os.getpid():  # else the connection belongs to the parent process
            self._closing.close()

    def _open_connection(self) -> ClientConnection:
        try:
            if self._url.startswith("unix:"):
                link = connect_to_socket(Path(self._url.removeprefix("unix:")))
                return connect("ws://world/ws", sock=link, compression=None, ping_interval=None, proxy=None)
            address = "ws" + self._url.removeprefix("http").rstrip("/") + "/ws"
            return connect(address, compression=None, ping_interval=None, proxy=None)
        except (OSError, WebSocketException) as error:
            raise ExternalServiceError(
                f"Cannot connect to the served world at {self._url}: {type(error).__name__}: {error}.",
                "Check the URL. In a run it is $ENVIRONMENT_URL.",
            ) from error

    def _request_step(self, kind: str, data: dict[str, str]) -> EnvironmentStep:
        answer = self._request(kind, data)
        observation = answer["observation"]
        return EnvironmentStep(
            observation["text"],
            answer["reward"] or 0.0,
            done=answer["done"],
            won=observation["won"],
            cut=observation["truncated"],
            marks=observation["marks"],
        )

    def _request(self, kind: str, data: dict[str, str]) -> dict[str, Any]:
        """Send a request and return the data of the answer; raise if it is an error."""
        assert self._connection is not None
        try:
            with suppress(ConnectionClosed):  # the server's last message may say why, and is still to be read
                self._connection.send(json.dumps({"type": kind, "data": data}, ensure_ascii=False))
            answer = json.loads(self._connection.recv(timeout=self._answer_seconds))
        except TimeoutError:
            self.close()  # a late answer must not be taken for that to the next request
            raise ExternalServiceError(
                f"The served world did not answer within {self._answer_seconds:g} s.",
                "The episode is lost. Call reset to start another.",
            ) from None
        except (OSError, WebSocketException):
            self.close()
            raise ConnectionLost(
                "The connection to the served world was closed.",
                "The episode is lost. Call reset to start another.",
            ) from None
        if answer["type"] == "error":
            self._raise_error(**answer["data"])
        return dict(answer["data"])

    def _raise_error(self, code: str, message: str) -> None:
        match code:
            case "BUDGET_USED_UP":
                raise StepsUsedUp
            case "CAPACITY_REACHED":
                self.close()
                raise SessionLimitReached(message)
            case "SESSION_ERROR":
                self.close()
                raise ConnectionLost(message, "Call reset to start another episode.")
            case _:
                raise UserError(f"The served world refused the request: {message}")
