"""Games as web pages: templates that escape all they are given, and what they are given.

A world whose pages are more than a transcript has a template of its own, which draws its environment.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent2rl.core.environment import World
from agent2rl.environments.webshop import WebshopEnvironment
from agent2rl.play import shop_page
from agent2rl.play.game import HumanGame, list_actions

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
PAGE_TEMPLATES: dict[type, tuple[str, Draw]] = {WebshopEnvironment: ("shop.html", shop_page.describe_visit)}
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
