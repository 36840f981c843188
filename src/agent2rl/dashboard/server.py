"""Serves the dashboard over HTTP: the app with its routes, the token check and security headers, and the
server loop.

    GET /                              all runs: filters, order and words are in the address
    GET /runs/<id>                     one run; what is known at once, and its analysis once that is made
    GET /runs/<id>/code                its code at any submission, and what changed between any two
    GET /runs/<id>/examples            what the model answered, example by example; /examples/<n> turn by turn
    GET /runs/<id>/transcript, /log    what the agent said and did, and what it printed
    GET /compare?run=A&run=B           two or more runs side by side
    GET /leaderboard                   many runs together, chosen as in /
    GET /events, /runs/<id>/events     server-sent events: something has changed

Nothing can be changed through it, and nothing but run directories be read. Other web sites can do nothing: a
name of theirs that points here is no host of ours, and where strangers can reach it a token is asked for.
"""

import hmac
import ipaddress
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

# Who is let in, and what every answer says of itself.

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
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        response = _check_access(request, token) or await go_on(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(UserError)
    async def not_there(_: Request, error: UserError) -> Response:
        return _render_fault(str(error), 404)

    @app.exception_handler(Agent2RLError)
    async def broken(_: Request, error: Agent2RLError) -> Response:
        return _render_fault(str(error), 500)

    @app.exception_handler(sqlite3.Error)
    async def no_index(_: Request, __: Exception) -> Response:
        return _render_fault("The index of the runs is being made anew. Try again in a moment.", 503)

    for kind in (OSError, ValueError, ArithmeticError, RecursionError):
        app.add_exception_handler(kind, _handle_damaged_record)

    @app.exception_handler(404)
    async def no_page(_: Request, __: Exception) -> Response:
        return _render_fault("There is no such page.", 404)

    @app.exception_handler(422)
    async def not_asked(_: Request, __: Exception) -> Response:
        return _render_fault("The address asks for something that does not exist.", 422)


def is_loopback(host: str) -> bool:
    """Whether this is a name or an address that only this computer has for itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_access(request: Request, token: str) -> Response | None:
    """Without a token, only names of this computer are hosts of ours; with one, whoever has it may come.

    Another web site could not read an answer, but it could keep this computer busy with asking.
    """
    site, mode, target = (request.headers.get(f"sec-fetch-{name}", "") for name in ("site", "mode", "dest"))
    if site in ("cross-site", "same-site") and (mode, target) != ("navigate", "document"):
        return PlainTextResponse("Another web site asked for this.", 403)
    if not token:
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        ours = is_loopback(name.removeprefix("[").removesuffix("]"))
        return None if ours else PlainTextResponse("This host is not served here.", 403)
    asked, shown = request.query_params.get("token", ""), request.cookies.get(COOKIE, "")
    if hmac.compare_digest(asked.encode(), token.encode()):
        rest = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        path = "/" + request.url.path.lstrip("/\\")  # two of them would be another host
        leads = RedirectResponse(link(path, **group_by_name(rest)), 303)
        leads.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return leads
    if hmac.compare_digest(shown.encode(), token.encode()):
        return None
    return PlainTextResponse("Open the address that `agent2rl view` printed: its token is needed.", 403)


async def _handle_damaged_record(_: Request, error: Exception) -> Response:
    """What nobody thought of in a file that somebody damaged."""
    return _render_fault(
        f"This cannot be shown: what it is made of is damaged ({type(error).__name__}).", 500
    )


def _render_fault(text: str, status: int) -> Response:
    return render_response("fault.html.jinja", status=status, text=text)


# The dashboard over HTTP: pages made on the server, which a small script keeps up to date.


def create_app(dashboard: Dashboard) -> FastAPI:
    app = FastAPI(title="agent2rl", docs_url=None, redoc_url=None, openapi_url=None)
    add_guards(app, dashboard.token)
    multi_run_pages.add_multi_run_routes(app, dashboard)
    single_run_pages.add_single_run_routes(app, dashboard)
    return app


LEAVE_SECONDS = 1


def serve_dashboard(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address to open. Call it in the main thread."""
    # uvicorn raises the signal that stopped it once more: by default SIGTERM would end the process there
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run_server(dashboard, host, port, tell)
    finally:
        for child in multiprocessing.active_children():
            child.kill()  # an analysis that nobody waits for any more would hold up the end


def _run_server(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    with closing(dashboard), closing(open_listening_socket(port, host)) as line:
        dashboard.start()
        config = uvicorn.Config(
            create_app(dashboard), lifespan="off", log_level="error", timeout_graceful_shutdown=LEAVE_SECONDS
        )
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={dashboard.token}" if dashboard.token else ""
        tell(f"http://{shown}:{line.getsockname()[1]}/{query}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])
