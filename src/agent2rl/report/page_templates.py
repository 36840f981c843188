"""Shared parts of all pages: the template environment, inline figures, style and script.

Text of an agent or a model is escaped, and invisible or direction-changing characters are spelled out. In
addition, the Content-Security-Policy of a page allows only the shipped script, and no network requests.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from agent2rl import __version__
from agent2rl.report import formatting
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


CHART = ".chart"
"""Suffix of the names of a figure's data, for a chart that answers a pointer."""
UPLOT = Path(__file__).with_name("vendored") / "uplot"


def render_page(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """Render a self-contained page. Its template also gets `style`, `script` and the script's `hash`."""
    page = create_environment(filters).get_template(template)
    script = read_chart_script() + read_template_file("report.js")
    return page.render(**values, **describe_frame(read_style(), script))


def describe_frame(style: str, script: str) -> Mapping[str, Any]:
    """Return what the frame of a self-contained page needs; the page's policy allows only this script."""
    return {
        "version": __version__,
        "style": Markup(style),
        "script": Markup(script),
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


@cache
def read_style() -> str:
    """Return the style sheet of all pages."""
    library = (UPLOT / "uPlot.min.css").read_text(encoding="utf-8")
    return read_template_file("report.css") + library + read_template_file("charts.css")


@cache
def read_chart_script() -> str:
    """Return the script of the charts, with the library that draws them."""
    return (UPLOT / "uPlot.iife.min.js").read_text(encoding="utf-8") + read_template_file("charts.js")


def inline_figures(svgs: Mapping[str, str]) -> dict[str, tuple[Markup, Markup, str]]:
    """Return a wide and a narrow inline figure for each name, and its data for a chart; empty without any.

    The name of the narrow SVG ends in `.narrow`, that of the data in `.chart`.
    """
    variables = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return {
        name: (
            inline_svg(name, svg, variables),
            inline_svg(f"{name}-narrow", svgs.get(name + NARROW, svg), variables),
            svgs.get(name + CHART, ""),
        )
        for name, svg in svgs.items()
        if not name.endswith((NARROW, CHART))
    }


def read_template_file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


class CompiledTemplates(BytecodeCache):
    """Keeps compiled templates in memory: each page has an environment of its own for its filters, and
    compiling a template takes longer than rendering it."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._codes[bucket.key, bucket.checksum] = bucket.code


_compiled = CompiledTemplates()


def create_environment(filters: Mapping[str, Callable[..., Any]], *folders: Path) -> Environment:
    """Create an environment with the templates of these folders and the shared ones."""
    environment = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize_text,
        bytecode_cache=_compiled,
    )
    environment.filters |= {
        "chance": formatting.format_p_value,
        "clock": formatting.format_clock,
        "cut": formatting.truncate_text,
        "duration": formatting.format_duration,
        "many": formatting.pluralize,
        "number": formatting.format_number,
        "points": formatting.format_points,
        "said": formatting.format_setting,
        "share": formatting.format_share,
        "size": formatting.format_bytes,
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
