"""A figure as part of a page: in the page's own colours, with no id that another figure has, too."""

import re

from markupsafe import Markup

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
