"""Shared parts of all pages: the template environment, inline figures, style and script.

Text of an agent or a model is escaped, and invisible or direction-changing characters are spelled out. In
addition, the Content-Security-Policy of a page allows only the shipped script, and no network requests.
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

# Inline figures: in the page's colours, with ids that are unique on the page.

COLOUR = re.compile(r"#[0-9a-f]{6}\b")
FAMILY = re.compile(r" ?font-family: [^;\"]*;")
IDENTIFIER = re.compile(r' id="([^"]*)"')
REFERENCE = re.compile(r'(url\(|xlink:href=")#([^")]+)')
UNWANTED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|(?<=>)\s+(?=<)", re.S)
SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"')


def inline_svg(name: str, svg: str, colours: dict[str, str]) -> Markup:
    """Prepare an SVG for a page; `colours` maps the colours of figures to CSS variables."""
    text = UNWANTED.sub("", svg[svg.index("<svg") :])
    used = {match[2] for match in REFERENCE.finditer(text)}
    text = IDENTIFIER.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = REFERENCE.sub(lambda match: f"{match[1]}#{name}-{match[2]}", text)
    text = COLOUR.sub(lambda match: colours.get(match[0], match[0]), text)
    text = SIZE.sub(r'\1 aria-hidden="true" focusable="false"', FAMILY.sub("", text), count=1)
    return Markup(text)


FOLDER = Path(__file__).with_name("templates")
NARROW = ".narrow"
"""Suffix of the names of figures for narrow screens."""


def render_page(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """Render a self-contained page. Its template also gets `style`, `script` and the script's `hash`."""
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


def inline_figures(svgs: Mapping[str, str]) -> dict[str, tuple[Markup, Markup]]:
    """Return a wide and a narrow inline figure for each name; the narrow SVG's name ends in `.narrow`."""
    variables = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return {
        name: (
            inline_svg(name, svg, variables),
            inline_svg(f"{name}-narrow", svgs.get(name + NARROW, svg), variables),
        )
        for name, svg in svgs.items()
        if not name.endswith(NARROW)
    }


def read_template_file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def create_environment(filters: Mapping[str, Callable[..., Any]], *folders: Path) -> Environment:
    """Create an environment with the templates of these folders and the shared ones."""
    environment = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize_text,
    )
    environment.filters |= {
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
    return environment


def _finalize_text(value: Any) -> Any:
    """Spell out invisible characters in every text that a template prints."""
    return (
        formatting.escape_invisible(value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )
