"""Games as web pages: templates that escape all they are given, and what they are given.

A world whose pages are more than a transcript has a template of its own, which draws its environment.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent2rl.core.environment import World
from agent2rl.environments.webshop import Store
from agent2rl.play import shop
from agent2rl.play.game import Game, actions

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
DRAWN: dict[type, tuple[str, Draw]] = {Store: ("shop.html", shop.shown)}
"""Environments that have pages: a template, and what it shows."""


def has_pages(world: World) -> bool:
    with closing(world.environment()) as place:
        return type(place) in DRAWN


def play(game: Game, name: str, turn: int, title: str, hint: str, note: str) -> str:
    """A game as it stands. `name` and `turn` are for what is clicked, `hint` is what the expert says."""
    template, draw = DRAWN.get(type(game.environment), ("transcript.html", lambda _: {}))
    return TEMPLATES.get_template(template).render(
        title=title,
        game=game,
        name=name,
        turn=turn,
        hint=hint,
        note=note,
        commands=game.commands(),
        actions=actions(game.world),
        **draw(game.environment),
    )


def lobby(title: str, games: int) -> str:
    return TEMPLATES.get_template("lobby.html").render(title=title, games=games)


def message(title: str, text: str, mend: str = "") -> str:
    return TEMPLATES.get_template("message.html").render(title=title, text=text, mend=mend)
