"""Play games in a browser on this computer: open games, pages, routes and the server.

    GET  /                    which game to play
    POST /begin               episode=NUMBER or ID; leads to the game
    GET  /play/<name>         the current state of a game; ?expert=1 asks the expert
    POST /play/<name>/act     turn=N and action=TEXT; `before` and `after` are put around the text
    POST /play/<name>/again   and /next

Pages contain no scripts, and templates escape everything. The name of a game is random; without it, nobody
can see the game or act in it. Requests from other origins and for other host names are refused, so other web
sites can do nothing. A click on an outdated page does nothing.
"""

import logging
import secrets
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import uvicorn
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agent2rl.core.environment import World
from agent2rl.core.errors import Agent2RLError
from agent2rl.environments.webshop import PurchaseScore, ShoppingGoal, WebshopEnvironment, WebshopEpisode
from agent2rl.environments.webshop.environment import click
from agent2rl.environments.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES
from agent2rl.environments.webshop.shop import UNBOUNDED
from agent2rl.net.ports import LOOPBACK, open_listening_socket
from agent2rl.play.game import HumanGame, find_game_number, list_actions

logger = logging.getLogger(__name__)

# Open games by name, limited in number

MOST_OPEN_GAMES = 64
"""If there are more, the least recently used game is closed."""


@dataclass
class GameTable:
    game: HumanGame
    turn: int = 0
    """Sent with every page, so that a click counts only once and only on the current page."""
    note: str = ""
    """Message to show on the next page."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the game is used: a browser may send two requests at once."""


class OpenGames:
    """The open games. Used by one thread; the game of a table needs the table's lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._tables: OrderedDict[str, GameTable] = OrderedDict()

    def open(self, number: int) -> str:
        """Start a game and return its name, which cannot be guessed."""
        name = secrets.token_urlsafe(16)
        self._tables[name] = GameTable(HumanGame(self.world, number))
        self._close_oldest(MOST_OPEN_GAMES)
        return name

    def get(self, name: str) -> GameTable | None:
        if name in self._tables:
            self._tables.move_to_end(name)
        return self._tables.get(name)

    def close(self) -> None:
        self._close_oldest(0)

    def _close_oldest(self, most_kept: int) -> None:
        while len(self._tables) > most_kept:
            _, table = self._tables.popitem(last=False)
            with table.lock:
                table.game.close()


# The page of a webshop: what can be clicked, and how the purchase was scored

TILES = 6
"""Number of colours of the tiles that replace product pictures."""
KINDS = {1.0: "the requested kind of product", 0.0: "another kind of product"}
LIKE = "a similar kind of product"


@dataclass(frozen=True)
class RewardTerm:
    """One part of the reward: the request, and how much of it the purchase fulfils."""

    name: str
    requested: str
    got: str


def describe_episode(store: WebshopEnvironment) -> dict[str, Any]:
    """Return the variables of `shop.html`. The environment must have been reset."""
    episode = store.visit
    if episode is None:
        raise RuntimeError("Call reset() before showing an episode.")
    clickable = {*episode.available.clickables}
    buttons = {
        name: [label for label in labels if label.lower() in clickable]
        for name, labels in (("back", (BACK, PREVIOUS, NEXT)), ("more", SUB_PAGES), ("buy", (BUY,)))
    }
    return {
        "episode": episode,
        "seen": episode.seen,
        "buttons": buttons,
        "click": lambda name: click(name.lower()),
        "tile": lambda asin: sum(map(ord, asin)) % TILES,
        "terms": _list_reward_terms(episode, episode.score) if episode.score else [],
        "sum": _format_reward_sum(episode.goal, episode.score) if episode.score else "",
    }


def _list_reward_terms(episode: WebshopEpisode, score: PurchaseScore) -> list[RewardTerm]:
    goal, bought = episode.goal, episode.seen.product
    paid = f"${episode.shop.prices[bought.asin]:.2f}" if bought else ""
    options = [f"{name}: {value}" if name else value for name, value in goal.options]
    attributes = ", ".join(goal.attributes)
    bound = f"at most ${goal.price_upper:.2f}" if goal.price_upper < UNBOUNDED else "any"
    return [
        RewardTerm("Attributes", attributes or "none", f"{score.attributes} of {len(goal.attributes)}"),
        RewardTerm("Options", ", ".join(options) or "none", f"{score.options} of {len(goal.options)}"),
        RewardTerm("Price", bound, f"{int(score.price)} of 1 ({paid})"),
        RewardTerm("Type", goal.product_category, f"× {score.kind:g}: {KINDS.get(score.kind, LIKE)}"),
    ]


def _format_reward_sum(goal: ShoppingGoal, score: PurchaseScore) -> str:
    """Format the official reward formula with its numbers."""
    most = len(goal.attributes) + len(goal.options) + 1
    hits = f"{score.attributes} + {score.options} + {int(score.price)}"
    return f"({hits}) / {most} × {score.kind:g} = {score.reward:.3g}"


# Rendering pages. The templates escape everything.

FOLDER = Path(__file__).with_name("templates")
STYLE = (FOLDER / "style.css").read_text(encoding="utf-8")
TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
Draw = Callable[[Any], dict[str, Any]]
PAGE_TEMPLATES: dict[type, tuple[str, Draw]] = {WebshopEnvironment: ("shop.html", describe_episode)}
"""Environments with their own page: the template, and the function that returns its variables."""


def has_pages(world: World) -> bool:
    with closing(world.environment()) as environment:
        return type(environment) in PAGE_TEMPLATES


def render_game(game: HumanGame, name: str, turn: int, title: str, hint: str, note: str) -> str:
    """Render the state of a game. `name` and `turn` go into its forms; `hint` is the expert's advice."""
    template, draw = PAGE_TEMPLATES.get(type(game.environment), ("transcript.html", lambda _: {}))
    return TEMPLATES.get_template(template).render(
        title=title,
        game=game,
        name=name,
        turn=turn,
        hint=hint,
        note=note,
        commands=game.list_commands(),
        actions=list_actions(game.world),
        **draw(game.environment),
    )


def render_lobby(title: str, games: int) -> str:
    return TEMPLATES.get_template("lobby.html").render(title=title, games=games)


def render_message(title: str, text: str, hint: str = "") -> str:
    return TEMPLATES.get_template("message.html").render(title=title, text=text, hint=hint)


# The ASGI application

T = TypeVar("T")
BODY_BYTES = 64 << 10
FIELDS = 16
HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with `no-referrer`, browsers would not send the origin of a form
    "Cache-Control": "no-store",
}
LATER = "That page was out of date. This is the current state of the game."
LOST = "There is no such game, or it has been closed."


def make_application(games: OpenGames, title: str) -> Starlette:
    pages = _GamePages(games, title)
    return Starlette(
        routes=[
            Route("/", pages.show_lobby),
            Route("/begin", pages.begin_game, methods=["POST"]),
            Route("/style.css", pages.serve_stylesheet),
            Route("/play/{name}", pages.show_game),
            Route("/play/{name}/act", pages.take_action, methods=["POST"]),
            Route("/play/{name}/{what:str}", pages.restart_or_advance, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)],
        exception_handlers={HTTPException: pages.handle_http_error, Exception: pages.handle_server_error},
    )


class _GamePages:
    def __init__(self, games: OpenGames, title: str) -> None:
        self._games, self._title = games, title

    async def show_lobby(self, _: Request) -> Response:
        return _make_page_response(render_lobby(self._title, len(self._games.world.games)))

    async def serve_stylesheet(self, _: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers=HEADERS)

    async def begin_game(self, request: Request) -> Response:
        form = await _read_form(request)
        try:
            number = find_game_number(self._games.world, form.get("episode", "").strip() or None)
        except Agent2RLError as error:
            raise HTTPException(404, str(error)) from error
        return _redirect_to_game(self._games.open(number))

    async def show_game(self, request: Request) -> Response:
        name = request.path_params["name"]
        ask_expert = "expert" in request.query_params

        def render(table: GameTable) -> str:
            note, table.note, hint = table.note, "", ""
            if ask_expert:
                try:
                    hint = table.game.ask_expert()
                except Agent2RLError as error:
                    note = str(error)
            return render_game(table.game, name, table.turn, self._title, hint, note)

        return _make_page_response(await self._with_locked_game(name, render))

    async def take_action(self, request: Request) -> Response:
        form = await _read_form(request)
        action = "".join(form.get(part, "") for part in ("before", "action", "after"))
        return await self._change_game(request, form, lambda game: game.take_action(action))

    async def restart_or_advance(self, request: Request) -> Response:
        """Restart this game, or go to the next one."""
        what = request.path_params["what"]
        if what not in ("again", "next"):
            raise HTTPException(404, "There is no such page.")
        form = await _read_form(request)
        return await self._change_game(
            request, form, lambda game: game.begin_game(game.number + (what == "next"))
        )

    async def _change_game(
        self, request: Request, form: dict[str, str], change: Callable[[HumanGame], object]
    ) -> Response:
        def apply(table: GameTable) -> None:
            if form.get("turn") != str(table.turn):
                table.note = LATER
                return
            table.turn += 1
            try:
                change(table.game)
            except Agent2RLError as error:
                table.note = str(error)

        name = request.path_params["name"]
        await self._with_locked_game(name, apply)
        return _redirect_to_game(name)

    async def _with_locked_game(self, name: str, do: Callable[[GameTable], T]) -> T:
        """Run a function on a locked game, in a thread because an environment may be slow."""
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
        status, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        return _make_page_response(render_message(self._title, text), status)

    async def handle_server_error(self, _: Request, error: Exception) -> Response:
        logger.debug("A request failed", exc_info=error)
        text = f"The environment failed ({type(error).__name__}). See the terminal for details."
        return _make_page_response(render_message(self._title, text), 500)


async def _read_form(request: Request) -> dict[str, str]:
    """Read a form that one of our own pages posted."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin not in (None, f"http://{host}"):
        raise HTTPException(403, "This request came from another web site.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise HTTPException(413, f"The text is longer than {BODY_BYTES} bytes.")
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS))
    except ValueError as error:
        raise HTTPException(400, f"Invalid form: {error}.") from error


def _redirect_to_game(name: str) -> Response:
    return RedirectResponse(f"/play/{name}", 303, headers=HEADERS)


def _make_page_response(text: str, status: int = 200) -> Response:
    """Make a response. Replaces lone surrogates, which a product's text may contain but UTF-8 cannot."""
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="text/html", headers=HEADERS)


# The server, which runs until it is interrupted

LEAVE_SECONDS = 2


def serve_games(world: World, title: str, number: int, port: int, announce: Callable[[str], None]) -> None:
    """Serve games. Port 0 is any free port; `announce` gets the address of the first game."""
    games = OpenGames(world)
    with closing(games), closing(open_listening_socket(port)) as listener:
        config = uvicorn.Config(
            make_application(games, title),
            loop="asyncio",  # not what happens to be installed
            http="h11",
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        announce(f"http://{LOOPBACK}:{listener.getsockname()[1]}/play/{games.open(number)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def open_browser(address: str) -> None:
    """Open an address in a browser, if there is one."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
