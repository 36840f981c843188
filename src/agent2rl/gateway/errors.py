"""The gateway's own responses in each wire format: refusals, failures, and the list of models.

A refusal has a status that no client retries. Its `hint` tells an agent what to do instead.
"""

import json
from collections.abc import Sequence
from typing import Any

from agent2rl.core.errors import Agent2RLError
from agent2rl.core.llm import Outcome, Wire

ANTHROPIC = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
OPENAI = {403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
GEMINI = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class RequestRefused(Agent2RLError):
    """The gateway does not forward this request."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status


class UpstreamFailure(Agent2RLError):
    """The provider did not answer, or not completely."""

    def __init__(self, outcome: Outcome, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.outcome = outcome
        self.status = status


def render_error_body(wire: Wire, status: int, message: str) -> bytes:
    """Return the body of an error response."""
    message = f"agent2rl gateway: {message}"
    match wire:
        case "anthropic":
            kind = ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
            body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
        case "gemini":
            kind = GEMINI.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
            body = {"error": {"code": status, "message": message, "status": kind}}
        case _:
            kind = OPENAI.get(status, "invalid_request_error" if status < 500 else "server_error")
            body = {"error": {"message": message, "type": kind, "param": None, "code": f"gateway_{status}"}}
    return json.dumps(body).encode()


def render_model_list(wire: Wire, names: Sequence[str], is_single: bool) -> bytes:
    """Return the body with the list of the run's models, or with one of them.

    One form serves OpenAI and Anthropic clients, which use the same path.
    """
    if wire == "gemini":
        entries: list[dict[str, Any]] = [
            {
                "name": f"models/{name}",
                "displayName": name,
                "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
            }
            for name in names
        ]
        listed: dict[str, Any] = {"models": entries}
    else:
        entries = [
            {
                "id": name,
                "object": "model",
                "type": "model",
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": "agent2rl",
                "display_name": name,
            }
            for name in names
        ]
        edges = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        listed = {"object": "list", "data": entries, **edges}
    return json.dumps(entries[0] if is_single else listed).encode()
