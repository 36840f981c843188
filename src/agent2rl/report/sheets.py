"""What all pages share: templates that escape and spell, figures in the page's colours, style and script.

Whatever an agent or a model wrote is escaped, and what would hide or turn it around is spelled. Beyond that,
a page's own policy lets no script run but the one that is shipped, and nothing be fetched from anywhere.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent2rl import __version__
from agent2rl.report import tables, words
from agent2rl.report.colours import COLOURS
from agent2rl.report.inline import inline

FOLDER = Path(__file__).with_name("templates")
NARROW = ".narrow"
"""Ends the name of a figure that is drawn for a telephone."""


def render(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """A page that needs nothing but itself: `style`, `script` and its `hash` are there for its template."""
    script = file("report.js")
    return (
        environment(filters)
        .get_template(template)
        .render(
            **values,
            version=__version__,
            style=Markup(file("report.css")),
            script=Markup(script),
            hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def figures(given: Mapping[str, str]) -> dict[str, tuple[Markup, Markup]]:
    """SVG texts by name, those for telephones with `.narrow` behind it: each as a pair for both."""
    variables = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return {
        name: (
            inline(name, svg, variables),
            inline(f"{name}-narrow", given.get(name + NARROW, svg), variables),
        )
        for name, svg in given.items()
        if not name.endswith(NARROW)
    }


def file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def environment(filters: Mapping[str, Callable[..., Any]], *folders: Path) -> Environment:
    """Templates of these folders, and the shared ones."""
    found = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_spelled,
    )
    found.filters |= {
        "chance": words.chance,
        "clock": words.clock,
        "cut": words.cut,
        "duration": words.duration,
        "many": tables.many,
        "number": words.number,
        "points": words.points,
        "said": words.value,
        "share": words.share,
        "size": tables.size,
        **filters,
    }
    return found


def _spelled(value: Any) -> Any:
    """Every text that a template prints comes through here."""
    return words.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
