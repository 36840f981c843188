"""The scripted LLM over HTTP, on a local port or a unix socket.

    POST …/messages  …/chat/completions  …/responses  …/models/M:generateContent  :streamGenerateContent
    POST …/messages/count_tokens  …/models/M:countTokens        counted roughly
    GET  …/models                                               every model exists
    GET  /script                                                the step of each conversation

Any prefix of these paths, such as /v1 or /v1beta, is ignored.
"""

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.fake_llm.messages import ProviderError, WireFormat, dump_json
from agent2rl.fake_llm.response import Kind, Outcome, RequestLog, RequestLogLine, ScriptedResponse
from agent2rl.fake_llm.script_file import DriverScript
from agent2rl.fake_llm.script_player import ScriptPlayer
from agent2rl.fake_llm.step_replies import ScriptFault
from agent2rl.fake_llm.wires import anthropic, gemini, openai
from agent2rl.net.ports import LOOPBACK, open_listening_socket

# The ASGI application

BODY_BYTES = 64 << 20
FORMATS: dict[Wire, WireFormat] = {
    "anthropic": anthropic.FORMAT,
    "openai-chat": openai.CHAT_FORMAT,
    "openai-responses": openai.RESPONSES_FORMAT,
    "gemini": gemini.FORMAT,
}
PATHS: dict[Wire, re.Pattern[str]] = {
    "anthropic": re.compile(r"/messages(?P<count>/count_tokens)?$"),
    "openai-chat": re.compile(r"/chat/completions$"),
    "openai-responses": re.compile(r"/responses$"),
    "gemini": re.compile(
        r"/models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent|(?P<count>countTokens))$"
    ),
}
MODELS = re.compile(r"/models(/(?P<model>[^/:]+))?$")
NAMES = ("scripted",)
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH"]


class ScriptedDriver:
    def __init__(
        self, script: DriverScript, log: RequestLog, name: str = "script", key: str | None = None
    ) -> None:
        """If `key` is set, only requests with that key are answered."""
        self._player, self._log, self._name, self._key = ScriptPlayer(script), log, name, key
        self._kinds: Counter[str] = Counter()
        self._tokens = TokenCounts()
        self.application = Starlette(
            routes=[
                Route("/script", self._get_state),
                Route("/{path:path}", self._handle_request, methods=METHODS),
            ]
        )

    async def _get_state(self, _: Request) -> Response:
        states = [state.model_dump() for state in self._player.list_states()]
        summary = {
            "script": self._name,
            "requests": dict(self._kinds),
            "tokens": self._tokens.model_dump(),
            "conversations": states,
        }
        return Response(dump_json(summary), media_type="application/json")

    def _log_request(self, line: RequestLogLine) -> None:
        self._kinds[line.kind] += 1
        self._tokens += line.tokens or TokenCounts()
        self._log.add_line(line)

    async def _handle_request(self, request: Request) -> Response | ScriptedResponse:
        path, began = request.url.path, time.time()
        for wire, pattern in PATHS.items():
            if request.method == "POST" and (match := pattern.search(path)):
                return await self._handle_generation(request, wire, match.groupdict(), began)
        models = MODELS.search(path) if request.method == "GET" else None
        kind: Kind = "models" if models else "unknown"
        status = 200 if models or request.method == "HEAD" or path == "/" else 404
        self._log_request(
            _build_log_line(began, kind, request, status, "answered" if status == 200 else "failed")
        )
        if models:
            return JSONResponse(_render_model_list(models["model"]))
        if status == 200:
            return JSONResponse({"script": self._name})
        trouble = ProviderError(404, "", f"The scripted LLM does not support {request.method} {path}.")
        return JSONResponse(openai.render_openai_error(trouble)[1], 404)

    async def _handle_generation(
        self, request: Request, wire: Wire, named: Mapping[str, str | None], began: float
    ) -> Response | ScriptedResponse:
        wired = FORMATS[wire]
        if self._key is not None and _extract_key(request) != self._key:
            status, answer = wired.fail(ProviderError(401, "", "The key is not valid."))
            self._log_request(_build_log_line(began, "unknown", request, status, "failed"))
            return JSONResponse(answer, status)
        try:
            body = await _read_body(request)
            if named.get("count"):
                self._log_request(_build_log_line(began, "count", request, 200, "answered"))
                count = max(1, len(dump_json(body)) // 4)
                return JSONResponse({"input_tokens" if wire == "anthropic" else "totalTokens": count})
            given = (
                {}
                if wire != "gemini"
                else {
                    "model": named["model"],
                    "stream": named["verb"] == "streamGenerateContent",
                    "alt": request.query_params.get("alt"),
                }
            )
            llm_request = wired.read({**body, **given})
            play = self._player.answer_request(llm_request)
        except (ValueError, ScriptFault) as error:
            status, answer = wired.fail(ProviderError(400, "", str(error)))
            self._log_request(_build_log_line(began, "unknown", request, status, "failed"))
            return JSONResponse(answer, status)
        return ScriptedResponse(llm_request, play, wired, request.url.path, began, self._log_request)


def _extract_key(request: Request) -> str | None:
    """Return the key from where any of the wire formats sends it."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    given = (bearer, *(request.headers.get(name) for name in ("x-api-key", "x-goog-api-key")))
    return next(filter(None, given), request.query_params.get("key"))


async def _read_body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES:
            raise ValueError(f"The request is larger than {BODY_BYTES} bytes.")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("The request is not a JSON object.")
    return body


def _render_model_list(name: str | None) -> dict[str, Any]:
    """Return a model list that OpenAI, Anthropic and Gemini clients all accept, or one entry of it."""
    entries = [
        {
            "id": one,
            "object": "model",
            "created": 0,
            "owned_by": "agent2rl",
            "type": "model",
            "display_name": one,
            "created_at": "1970-01-01T00:00:00Z",
            "name": f"models/{one}",
        }
        for one in ([name] if name else NAMES)
    ]
    if name:
        return entries[0]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"], "has_more": False}
    return {"object": "list", "data": entries, "models": entries, **ends}


def _build_log_line(
    began: float, kind: Kind, request: Request, status: int, outcome: Outcome
) -> RequestLogLine:
    return RequestLogLine(
        at=began,
        seconds=round(time.time() - began, 6),
        kind=kind,
        wire=None,
        model="",
        path=request.url.path,
        stream=False,
        status=status,
        outcome=outcome,
        tokens=None,
    )


# The server

LEAVE_SECONDS = 1
"""Grace period at shutdown for running answers; some never end."""


def serve_script(
    script: DriverScript,
    name: str,
    tell: Callable[[str], None],
    port: int = 0,
    path: Path | None = None,
    record: Path | None = None,
    key: str | None = None,
) -> None:
    """Serve until Ctrl-C. `tell` is called with the address."""
    with closing(RequestLog(record)) as log, _bind_listener(port, path) as (listener, address):
        server = _build_server(ScriptedDriver(script, log, name, key))
        tell(address)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


@contextmanager
def run_in_thread(
    script: DriverScript, path: Path | None = None, record: Path | None = None, key: str | None = None
) -> Iterator[str]:
    """Run a server in a thread and yield its address."""
    with closing(RequestLog(record)) as log, _bind_listener(0, path) as (listener, address):
        server = _build_server(ScriptedDriver(script, log, key=key))
        thread = threading.Thread(target=server.run, args=([listener],), name="scripted-llm", daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def _build_server(driver: ScriptedDriver) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            driver.application,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # a stream that the script cuts is not an error worth logging
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
    )


@contextmanager
def _bind_listener(port: int, path: Path | None) -> Iterator[tuple[socket.socket, str]]:
    listener = _bind_unix_socket(path) if path else open_listening_socket(port)
    try:
        yield listener, f"unix:{path}" if path else f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    finally:
        listener.close()
        if path:
            path.unlink(missing_ok=True)


def _bind_unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(
            f"The socket {path} cannot be used: {error.strerror or error}.", "Choose another path."
        ) from error
    return listener
