"""The words of a web page: without scripts, styles and menus, a line for each block.

A page may be made to be slow. It is read in parts, only as far as it is wanted, and what is still open at its
end is left out where that is long: the parser would look for an end from each of its signs anew.
"""

from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

_SILENT = {"script", "style", "noscript", "template", "svg", "head", "nav", "footer", "iframe", "select"}
_BLOCKS = {
    *("p", "div", "br", "li", "ul", "ol", "tr", "table", "section", "article", "main", "header", "h1", "h2"),
    *("h3", "h4", "h5", "h6", "blockquote", "pre", "dd", "dt", "figcaption", "hr", "title"),
}

PART = 1 << 16
"""Characters that are read at a time, at least."""
MOST_OPEN = 1 << 12


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said: list[str] = []
        self.length = 0
        self._silent: list[str] = []
        self._count = Counter[str]()
        """How often each is in it."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _SILENT:
            self._silent.append(tag)
            self._count[tag] += 1
        elif tag == "body":  # whatever was not closed before it
            self._silent.clear()
            self._count.clear()
        self._add_separator(tag)

    def handle_endtag(self, tag: str) -> None:
        closed = "" if self._count[tag] else tag
        while closed != tag:
            closed = self._silent.pop()
            self._count[closed] -= 1
        self._add_separator(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.said.append(data)
            self.length += sum(map(len, data.split()))

    def _add_separator(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.said.append(" ")
        elif tag in _BLOCKS:
            self.said.append("\0")


def extract_text(page: str, most: int | None = None, go_on: Callable[[], object] = lambda: None) -> str:
    """The text of a page, at least `most` characters of it where it has so many, however broken its HTML is.

    `go_on` is called between its parts, and may raise.
    """
    words = _TextParser()
    start = 0
    while start < len(page) and (most is None or words.length < most):
        end = start + max(PART, len(words.rawdata))  # it looks through what is still open anew
        words.feed(page[start:end])
        start = end
        go_on()
    if len(words.rawdata) <= MOST_OPEN:
        words.close()
    lines = (" ".join(line.split()) for line in "".join(words.said).split("\0"))
    return "\n".join(line for line in lines if line)
