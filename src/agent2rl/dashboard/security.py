"""Who is let in, and what every answer says of itself."""

import hmac
import ipaddress
import sqlite3
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.dashboard.rendering import link, render_response
from agent2rl.dashboard.run_filter import group_by_name

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
