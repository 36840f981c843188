"""Markdown that people read as text is wrapped at 100 columns."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 100
GENERATED = ("docs/reference", "docs/results/smoke")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md"))
    if not page.relative_to(ROOT).as_posix().startswith(GENERATED)
)
CODE = re.compile(r"`[^`]*`")
LIST_MARKER = re.compile(r"^\s*(?:(?:[-*>]|\d+\.)\s+)*")
LINK_TARGET = re.compile(r"\[[^]]+\]: \S+$")


def list_long_lines(text: str) -> Iterator[str]:
    """Yield long lines that could be wrapped: no tables, headings, images, link targets or code."""
    fenced = False
    for line in re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL).splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and len(line) > WIDTH and not line.lstrip().startswith(("|", "#", "![", "```")):
            words = LIST_MARKER.sub("", CODE.sub("code", line)).strip()
            if " " in words and not LINK_TARGET.match(line):
                yield line


def test_the_check_finds_a_long_line_and_leaves_those_that_cannot_be_wrapped() -> None:
    long = "word " * 30
    assert [*list_long_lines(f"{long}\n- {long}\n")] == [long, f"- {long}"]
    kept = (
        f"| {long} |\n# {long}\n![{long}](x.png)\n- `{long}`\n```\n{long}\n```\n[name]: https://{'a' * 100}\n"
    )
    assert [*list_long_lines(f"---\nname: {long}\n---\n{kept}")] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_wrapped_at_100_columns(page: str) -> None:
    long = [*list_long_lines((ROOT / page).read_text(encoding="utf-8"))]
    assert not long, "\n".join(long)
