"""Games over HTTP, for browsers on the same computer: an ASGI application, and no script in its pages.

    GET  /                    which game to play
    POST /begin               episode=NUMBER or ID; leads to the game
    GET  /play/<name>         a game as it stands; ?expert=1 asks the expert
    POST /play/<name>/act     turn=N and action=TEXT; `before` and `after` are put around the text
    POST /play/<name>/again   and /next

A game's name is drawn at random: who does not know it can neither see the game nor act in it. Other web sites
can do nothing: what they post says where it comes from and is refused, and a name of theirs that points to
this computer is no host of ours. What was clicked on a page that is no longer the current one does nothing.
"""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agent2rl.core.errors import Agent2RLError
from agent2rl.play import pages
from agent2rl.play.game import HumanGame, find_game_number
from agent2rl.play.open_games import GameTable, OpenGames

T = TypeVar("T")
BODY_BYTES = 64 << 10
FIELDS = 16
HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without any, browsers would not say either where a form comes from
    "Cache-Control": "no-store",
}
LATER = "That page was an earlier one. This is where you are."
LOST = "This game is not kept here any more, or never was."


def make_application(games: OpenGames, title: str) -> Starlette:
    face = _GamePages(games, title)
    return Starlette(
        routes=[
            Route("/", face.show_lobby),
            Route("/begin", face.begin_game, methods=["POST"]),
            Route("/style.css", face.serve_stylesheet),
            Route("/play/{name}", face.show_game),
            Route("/play/{name}/act", face.take_action, methods=["POST"]),
            Route("/play/{name}/{what:str}", face.restart_or_advance, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)],
        exception_handlers={HTTPException: face.handle_http_error, Exception: face.handle_server_error},
    )


class _GamePages:
    def __init__(self, games: OpenGames, title: str) -> None:
        self._games, self._title = games, title

    async def show_lobby(self, _: Request) -> Response:
        return _make_page_response(pages.render_lobby(self._title, len(self._games.world.games)))

    async def serve_stylesheet(self, _: Request) -> Response:
        return Response(pages.STYLE, media_type="text/css", headers=HEADERS)

    async def begin_game(self, request: Request) -> Response:
        asked = await _read_form(request)
        try:
            number = find_game_number(self._games.world, asked.get("episode", "").strip() or None)
        except Agent2RLError as error:
            raise HTTPException(404, str(error)) from error
        return _redirect_to_game(self._games.open(number))

    async def show_game(self, request: Request) -> Response:
        name = request.path_params["name"]
        asked = "expert" in request.query_params

        def drawn(table: GameTable) -> str:
            note, table.note, hint = table.note, "", ""
            if asked:
                try:
                    hint = table.game.ask_expert()
                except Agent2RLError as error:
                    note = str(error)
            return pages.render_game(table.game, name, table.turn, self._title, hint, note)

        return _make_page_response(await self._with_locked_game(name, drawn))

    async def take_action(self, request: Request) -> Response:
        asked = await _read_form(request)
        action = "".join(asked.get(part, "") for part in ("before", "action", "after"))
        return await self._change_game(request, asked, lambda game: game.take_action(action))

    async def restart_or_advance(self, request: Request) -> Response:
        """To the beginning, or to the next game."""
        what = request.path_params["what"]
        if what not in ("again", "next"):
            raise HTTPException(404, "There is no such page.")
        asked = await _read_form(request)
        return await self._change_game(
            request, asked, lambda game: game.begin_game(game.number + (what == "next"))
        )

    async def _change_game(
        self, request: Request, asked: dict[str, str], change: Callable[[HumanGame], object]
    ) -> Response:
        def done(table: GameTable) -> None:
            if asked.get("turn") != str(table.turn):
                table.note = LATER
                return
            table.turn += 1
            try:
                change(table.game)
            except Agent2RLError as error:
                table.note = str(error)

        name = request.path_params["name"]
        await self._with_locked_game(name, done)
        return _redirect_to_game(name)

    async def _with_locked_game(self, name: str, do: Callable[[GameTable], T]) -> T:
        """In a thread, since a world may take its time; nothing else happens to the game meanwhile."""
        table = self._games.get(name)

        def locked() -> T:
            if table is None:
                raise HTTPException(404, LOST)
            with table.lock:
                if table.game.closed:
                    raise HTTPException(404, LOST)
                return do(table)

        return await run_in_threadpool(locked)

    async def handle_http_error(self, _: Request, error: Exception) -> Response:
        status, said = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        return _make_page_response(pages.render_message(self._title, said), status)

    async def handle_server_error(self, _: Request, error: Exception) -> Response:
        said = f"A fault of the world ({type(error).__name__}). The terminal says more."
        return _make_page_response(pages.render_message(self._title, said), 500)


async def _read_form(request: Request) -> dict[str, str]:
    """What was posted by one of our own pages."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin not in (None, f"http://{host}"):
        raise HTTPException(403, "Another web site asked for this.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise HTTPException(413, f"What is said here has at most {BODY_BYTES} bytes.")
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS))
    except ValueError as error:
        raise HTTPException(400, f"This is no form of ours: {error}.") from error


def _redirect_to_game(name: str) -> Response:
    return RedirectResponse(f"/play/{name}", 303, headers=HEADERS)


def _make_page_response(text: str, status: int = 200) -> Response:
    """Half characters, which a product's text may hold, cannot be sent."""
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="text/html", headers=HEADERS)
