"""The messages of a served world, and its OpenAPI document. OpenEnv's protocol defines their form."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr
from pydantic.json_schema import models_json_schema

from agent2rl import __version__
from agent2rl.core.errors import Agent2RLError

ErrorCode = Literal[
    "INVALID_JSON",
    "UNKNOWN_TYPE",
    "VALIDATION_ERROR",
    "EXECUTION_ERROR",  # there is no such game, no episode is running, or the world failed
    "BUDGET_USED_UP",
    "CAPACITY_REACHED",  # too many sessions; the connection is closed
    "SESSION_ERROR",  # idle for too long; the connection is closed
]


class SessionLimitReached(Agent2RLError):
    """Too many sessions are open."""


class OpenEnvMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ResetMessage(OpenEnvMessage):
    """Begin an episode."""

    seed: Annotated[StrictInt, Field(ge=0, le=1 << 64)] | None = None
    """Restarts the random order of games."""
    game: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """The game to play. Default: the next in random order."""
    episode_id: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = None
    """Your name for the episode. Over HTTP, default: a new name."""


class ActionMessage(OpenEnvMessage):
    """Take an action."""

    text: Annotated[StrictStr, Field(max_length=16384)]
    metadata: dict[str, JsonValue] = {}
    """Sent by OpenEnv's clients, and ignored."""


class ObservationMessage(OpenEnvMessage):
    """Observation after a reset or a step."""

    text: str
    game: str
    won: bool
    truncated: bool
    """The episode ended only because its step limit was reached."""
    episode_id: str | None
    marks: dict[str, float] = {}
    """Further metrics of the episode so far, if the world has any."""


class EpisodeStateMessage(OpenEnvMessage):
    """Current state of an episode."""

    episode_id: str | None
    step_count: int
    game: str | None
    reward: float
    done: bool
    won: bool


class StepRequest(OpenEnvMessage):
    """The body of `POST /step`. Further fields, which OpenEnv's clients send, are ignored."""

    model_config = ConfigDict(extra="ignore")

    action: ActionMessage
    episode_id: StrictStr | None = None
    """The episode, as named in the observations since `POST /reset`."""


class StepResult(OpenEnvMessage):
    """The answer to a reset or a step."""

    observation: ObservationMessage
    reward: float | None
    """Of this step alone; null after a reset."""
    done: bool


class ErrorDetails(OpenEnvMessage):
    message: str
    code: ErrorCode


class SocketRequest(OpenEnvMessage):
    """A message to `/ws`. `data` is a ResetMessage for `reset` and an ActionMessage for `step`."""

    type: Literal["reset", "step", "state", "close"]
    data: ResetMessage | ActionMessage | None = None


class SocketAnswer(OpenEnvMessage):
    """A message from `/ws`: one for each request except `close`, in order.

    `data` is a StepResult for `observation`, an EpisodeStateMessage for `state`, ErrorDetails for `error`.
    """

    type: Literal["observation", "state", "error"]
    data: StepResult | EpisodeStateMessage | ErrorDetails


class WorldProblem(OpenEnvMessage):
    """RFC 9457: what went wrong, and in `hint` what to do next."""

    type: str
    title: str
    status: int
    detail: str
    hint: str


def build_schemas() -> dict[str, Any]:
    return {
        "action": ActionMessage.model_json_schema(),
        "observation": ObservationMessage.model_json_schema(),
        "state": EpisodeStateMessage.model_json_schema(),
        "reset": ResetMessage.model_json_schema(),
        "step": StepRequest.model_json_schema(),
    }


# The OpenAPI document. OpenAPI has no WebSockets, so `/ws` is described as the request that opens one.

DOCUMENTED = (
    ResetMessage,
    StepRequest,
    StepResult,
    EpisodeStateMessage,
    SocketRequest,
    SocketAnswer,
    WorldProblem,
)
EPISODE_PARAMETER = {"name": "episode_id", "in": "query", "required": True, "schema": {"type": "string"}}


def build_openapi(name: str) -> dict[str, Any]:
    """Return the OpenAPI document of the application that serves the world of a task."""
    _, schemas = models_json_schema(
        [(model, "validation") for model in DOCUMENTED], ref_template="#/components/schemas/{model}"
    )
    reset = _describe_call("Begin an episode.", "StepResult", body="ResetMessage", required=False)
    step = _describe_call("Take an action in an episode.", "StepResult", body="StepRequest")
    state = _describe_call("Return the state of a running episode.", "EpisodeStateMessage")
    return {
        "openapi": "3.1.0",
        "info": {"title": f"agent2rl world: {name}", "version": __version__},
        "paths": {
            "/ws": {"get": _describe_socket()},
            "/reset": {"post": reset},
            "/step": {"post": step},
            "/state": {"get": {**state, "parameters": [EPISODE_PARAMETER]}},
            "/schema": {"get": _describe_call("Return the JSON schemas of the messages.")},
            "/metadata": {"get": _describe_call("Return the name of the world and its number of games.")},
            "/health": {"get": _describe_call("Return that the server is up.")},
            "/openapi.json": {"get": _describe_call("Return this document.")},
        },
        "components": {"schemas": schemas["$defs"]},
    }


def _describe_call(
    description: str, answer: str = "", body: str = "", required: bool = True
) -> dict[str, Any]:
    call: dict[str, Any] = {"description": description}
    if body:
        call["requestBody"] = {"required": required, "content": _describe_json(body)}
    schema = _describe_json(answer) if answer else {"application/json": {"schema": {"type": "object"}}}
    problem = {
        "description": "Problem",
        "content": _describe_json("WorldProblem", "application/problem+json"),
    }
    problems = {str(status): problem for status in ((403, 413, 422, 429, 500) if answer else ())}
    call["responses"] = {"200": {"description": "Answer", "content": schema}, **problems}
    return call


def _describe_json(model: str, kind: str = "application/json") -> dict[str, Any]:
    return {kind: {"schema": {"$ref": f"#/components/schemas/{model}"}}}


def _describe_socket() -> dict[str, Any]:
    return {
        "description": "Open a WebSocket, which is one session. Send a SocketRequest as JSON text; a "
        "SocketAnswer follows. `close`, or closing the connection, ends the session.",
        "responses": {"101": {"description": "The WebSocket is open."}},
        "x-websocket": {
            "send": {"$ref": "#/components/schemas/SocketRequest"},
            "receive": {"$ref": "#/components/schemas/SocketAnswer"},
        },
    }
