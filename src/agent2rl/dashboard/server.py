"""Serves the dashboard over HTTP: the app with its routes, the token check and security headers, and the
server loop.

    GET /                              all runs; filters, sort order and search words are in the URL
    GET /runs/<id>                     one run: its status at once, its analysis when it is ready
    GET /runs/<id>/code                its code at any revision, and the changes between any two
    GET /runs/<id>/examples            the model's answer to each example; /examples/<n> turn by turn
    GET /runs/<id>/transcript, /log    what the agent said and did, and what it printed
    GET /compare?run=A&run=B           two or more runs side by side
    GET /leaderboard                   statistics over many runs, filtered as in /
    GET /events, /runs/<id>/events     server-sent events: something has changed

The server is read-only and reads nothing but run directories. Requests from other web sites are refused:
without a token the Host header must name this computer, which stops DNS rebinding, and where others can reach
the server it requires a token.
"""

import hmac
import ipaddress
import logging
import multiprocessing
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.dashboard import multi_run_pages, single_run_pages
from agent2rl.dashboard.rendering import link, render_response
from agent2rl.dashboard.run_filter import group_by_name
from agent2rl.dashboard.state import Dashboard
from agent2rl.net.ports import open_listening_socket

logger = logging.getLogger(__name__)

# Token check and security headers.

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "agent2rl-token"


def add_guards(app: FastAPI, token: str) -> None:
    @app.middleware("http")
    async def check_and_add_headers(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = _check_access(request, token) or await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(UserError)
    async def handle_user_error(_: Request, error: UserError) -> Response:
        return _render_fault(str(error), 404)

    @app.exception_handler(Agent2RLError)
    async def handle_internal_error(_: Request, error: Agent2RLError) -> Response:
        return _render_fault(str(error), 500)

    @app.exception_handler(sqlite3.Error)
    async def handle_index_error(_: Request, __: Exception) -> Response:
        return _render_fault("The run index is being rebuilt. Try again in a moment.", 503)

    for kind in (OSError, ValueError, ArithmeticError, RecursionError):
        app.add_exception_handler(kind, _handle_damaged_record)

    @app.exception_handler(404)
    async def handle_unknown_page(_: Request, __: Exception) -> Response:
        return _render_fault("This page does not exist.", 404)

    @app.exception_handler(422)
    async def handle_invalid_parameter(_: Request, __: Exception) -> Response:
        return _render_fault("Invalid value in the URL.", 422)


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_access(request: Request, token: str) -> Response | None:
    """Return an error or redirect, or None if the request may proceed.

    Without a token, the Host header must name this computer; with one, whoever has the token may enter.
    Cross-site requests are refused: a web site could not read the response, but it could load this computer.
    """
    site, mode, target = (request.headers.get(f"sec-fetch-{name}", "") for name in ("site", "mode", "dest"))
    # A link on another web site may lead here; anything else that it loads from here may not.
    if site in ("cross-site", "same-site") and (mode, target) != ("navigate", "document"):
        return PlainTextResponse("Refused: cross-site request.", 403)
    if not token:
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        is_local = is_loopback(name.removeprefix("[").removesuffix("]"))
        return None if is_local else PlainTextResponse("Refused: unknown Host header.", 403)
    from_query, from_cookie = request.query_params.get("token", ""), request.cookies.get(COOKIE, "")
    if hmac.compare_digest(from_query.encode(), token.encode()):
        rest = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        path = "/" + request.url.path.lstrip("/\\")  # a second slash would make it another host
        redirect = RedirectResponse(link(path, **group_by_name(rest)), 303)
        redirect.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return redirect
    if hmac.compare_digest(from_cookie.encode(), token.encode()):
        return None
    return PlainTextResponse("Token required. Open the URL that `agent2rl view` printed.", 403)


async def _handle_damaged_record(_: Request, error: Exception) -> Response:
    """Handle unexpected errors that damaged files cause."""
    logger.warning("cannot show a page", exc_info=error)
    return _render_fault(
        f"This page cannot be shown: a file of the run is damaged ({type(error).__name__}).", 500
    )


def _render_fault(text: str, status: int) -> Response:
    return render_response("fault.html.jinja", status=status, text=text)


# The app and the server loop.


def create_app(dashboard: Dashboard) -> FastAPI:
    app = FastAPI(title="agent2rl", docs_url=None, redoc_url=None, openapi_url=None)
    add_guards(app, dashboard.token)
    multi_run_pages.add_multi_run_routes(app, dashboard)
    single_run_pages.add_single_run_routes(app, dashboard)
    return app


# Streams of events do not end by themselves, so there is no use in waiting for them.
LEAVE_SECONDS = 1


def serve_dashboard(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted. Port 0 picks a free one; `tell` gets the URL to open.

    Call it in the main thread, because it installs a signal handler.
    """
    # uvicorn raises the signal that stopped it again: by default SIGTERM would end the process there
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run_server(dashboard, host, port, tell)
    finally:
        for child in multiprocessing.active_children():
            child.kill()  # an abandoned analysis would delay the exit


def _run_server(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    with closing(dashboard), closing(open_listening_socket(port, host)) as listener:
        dashboard.start()
        config = uvicorn.Config(
            create_app(dashboard),
            loop="asyncio",  # not what happens to be installed
            http="h11",
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        shown_host = f"[{host}]" if ":" in host else host
        query = f"?token={dashboard.token}" if dashboard.token else ""
        tell(f"http://{shown_host}:{listener.getsockname()[1]}/{query}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
