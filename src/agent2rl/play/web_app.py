"""Games over HTTP, for browsers on this computer: open games, pages, routes and the server.

    GET  /                    which game to play
    POST /begin               episode=NUMBER or ID; leads to the game
    GET  /play/<name>         a game as it stands; ?expert=1 asks the expert
    POST /play/<name>/act     turn=N and action=TEXT; `before` and `after` are put around the text
    POST /play/<name>/again   and /next

There is no script in the pages, and templates escape everything. A game's name is random: without it,
nobody can see the game or act in it. Other web sites can do nothing: a post from another origin is refused,
and so are host names that are not ours. A click on a page that is no longer the current one does nothing.
"""

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

# The games that are being played, by name; bounded in number.

MOST_OPEN_GAMES = 64
"""At once; the one that was left alone the longest makes room."""


@dataclass
class GameTable:
    game: HumanGame
    turn: int = 0
    """What a page says of itself, so that what is clicked on it counts once, and only while it is current."""
    note: str = ""
    """For the next page."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A browser may ask twice at once."""


class OpenGames:
    """Asked by one thread; what is at a table is for whoever holds its lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._tables: OrderedDict[str, GameTable] = OrderedDict()

    def open(self, number: int) -> str:
        """Begin a game; its name cannot be guessed."""
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

    def _close_oldest(self, kept: int) -> None:
        while len(self._tables) > kept:
            _, table = self._tables.popitem(last=False)
            with table.lock:
                table.game.close()


# A visit to the shop, as its page shows it: what can be clicked, and what the purchase was worth.

TILES = 6
"""Colours of the tiles that stand for pictures."""
KINDS = {1.0: "the kind of thing that was wanted", 0.0: "another kind of thing"}
LIKE = "something like what was wanted"


@dataclass(frozen=True)
class RewardTerm:
    """A part of the reward: what was asked for, and how much of it the purchase has."""

    name: str
    wanted: str
    got: str


def describe_visit(store: WebshopEnvironment) -> dict[str, Any]:
    """For `shop_page.html`; the environment has begun."""
    visit = store.visit
    if visit is None:
        raise RuntimeError("An episode is begun with reset() before it can be shown.")
    there = {*visit.available.clickables}
    buttons = {
        name: [label for label in labels if label.lower() in there]
        for name, labels in (("back", (BACK, PREVIOUS, NEXT)), ("more", SUB_PAGES), ("buy", (BUY,)))
    }
    return {
        "visit": visit,
        "seen": visit.seen,
        "buttons": buttons,
        "click": lambda name: click(name.lower()),
        "tile": lambda asin: sum(map(ord, asin)) % TILES,
        "terms": _list_reward_terms(visit, visit.score) if visit.score else [],
        "sum": _format_reward_sum(visit.goal, visit.score) if visit.score else "",
    }


def _list_reward_terms(visit: WebshopEpisode, score: PurchaseScore) -> list[RewardTerm]:
    goal, bought = visit.goal, visit.seen.product
    paid = f"${visit.shop.prices[bought.asin]:.2f}" if bought else ""
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
    """The official formula with its numbers."""
    most = len(goal.attributes) + len(goal.options) + 1
    hits = f"{score.attributes} + {score.options} + {int(score.price)}"
    return f"({hits}) / {most} × {score.kind:g} = {score.reward:.3g}"


# Games as web pages: templates that escape all they are given, and what they are given.

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
PAGE_TEMPLATES: dict[type, tuple[str, Draw]] = {WebshopEnvironment: ("shop.html", describe_visit)}
"""Environments that have pages: a template, and what it shows."""


def has_pages(world: World) -> bool:
    with closing(world.environment()) as place:
        return type(place) in PAGE_TEMPLATES


def render_game(game: HumanGame, name: str, turn: int, title: str, hint: str, note: str) -> str:
    """A game as it stands. `name` and `turn` are for what is clicked, `hint` is what the expert says."""
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


# Games over HTTP, for browsers on the same computer: an ASGI application, and no script in its pages.

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
        return _make_page_response(render_lobby(self._title, len(self._games.world.games)))

    async def serve_stylesheet(self, _: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers=HEADERS)

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
            return render_game(table.game, name, table.turn, self._title, hint, note)

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
        return _make_page_response(render_message(self._title, said), status)

    async def handle_server_error(self, _: Request, error: Exception) -> Response:
        said = f"A fault of the world ({type(error).__name__}). The terminal says more."
        return _make_page_response(render_message(self._title, said), 500)


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


# Serves games to browsers on this computer, until it is interrupted.

LEAVE_SECONDS = 2


def serve_games(world: World, title: str, number: int, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address of a game that has begun."""
    games = OpenGames(world)
    with closing(games), closing(open_listening_socket(port)) as line:
        config = uvicorn.Config(
            make_application(games, title),
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        tell(f"http://{LOOPBACK}:{line.getsockname()[1]}/play/{games.open(number)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])


def open_browser(address: str) -> None:
    """In a browser, if there is one."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
