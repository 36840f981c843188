"""What all pages share: templates that escape and spell, figures in the page's colours, style and script.

Whatever an agent or a model wrote is escaped, and what would hide or turn it around is spelled. Beyond that,
a page's own policy lets no script run but the one that is shipped, and nothing be fetched from anywhere.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent2rl import __version__
from agent2rl.report import formatting, tables
from agent2rl.report.formatting import COLOURS

# A figure as part of a page: in the page's own colours, with no id that another figure has, too.

COLOUR = re.compile(r"#[0-9a-f]{6}\b")
FAMILY = re.compile(r" ?font-family: [^;\"]*;")
IDENTIFIER = re.compile(r' id="([^"]*)"')
REFERENCE = re.compile(r'(url\(|xlink:href=")#([^")]+)')
UNWANTED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|(?<=>)\s+(?=<)", re.S)
SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"')


def inline_svg(name: str, svg: str, colours: dict[str, str]) -> Markup:
    """`colours` has a variable of the page for each colour that figures are drawn in."""
    text = UNWANTED.sub("", svg[svg.index("<svg") :])
    used = {match[2] for match in REFERENCE.finditer(text)}
    text = IDENTIFIER.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = REFERENCE.sub(lambda match: f"{match[1]}#{name}-{match[2]}", text)
    text = COLOUR.sub(lambda match: colours.get(match[0], match[0]), text)
    text = SIZE.sub(r'\1 aria-hidden="true" focusable="false"', FAMILY.sub("", text), count=1)
    return Markup(text)


FOLDER = Path(__file__).with_name("templates")
NARROW = ".narrow"
"""Ends the name of a figure that is drawn for a telephone."""


def render_page(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """A page that needs nothing but itself: `style`, `script` and its `hash` are there for its template."""
    script = read_template_file("report.js")
    return (
        create_environment(filters)
        .get_template(template)
        .render(
            **values,
            version=__version__,
            style=Markup(read_template_file("report.css")),
            script=Markup(script),
            hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def inline_figures(given: Mapping[str, str]) -> dict[str, tuple[Markup, Markup]]:
    """SVG texts by name, those for telephones with `.narrow` behind it: each as a pair for both."""
    variables = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return {
        name: (
            inline_svg(name, svg, variables),
            inline_svg(f"{name}-narrow", given.get(name + NARROW, svg), variables),
        )
        for name, svg in given.items()
        if not name.endswith(NARROW)
    }


def read_template_file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def create_environment(filters: Mapping[str, Callable[..., Any]], *folders: Path) -> Environment:
    """Templates of these folders, and the shared ones."""
    found = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize_text,
    )
    found.filters |= {
        "chance": formatting.format_p_value,
        "clock": formatting.format_clock,
        "cut": formatting.truncate_text,
        "duration": formatting.format_duration,
        "many": tables.pluralize,
        "number": formatting.format_number,
        "points": formatting.format_points,
        "said": formatting.format_setting,
        "share": formatting.format_share,
        "size": tables.format_bytes,
        **filters,
    }
    return found


def _finalize_text(value: Any) -> Any:
    """Every text that a template prints comes through here."""
    return (
        formatting.escape_invisible(value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )
