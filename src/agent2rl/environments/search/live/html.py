"""The words of a web page: without scripts, styles and menus, a line for each block."""

from html.parser import HTMLParser

_SILENT = {"script", "style", "noscript", "template", "svg", "head", "nav", "footer", "iframe", "select"}
_BLOCKS = {
    *("p", "div", "br", "li", "ul", "ol", "tr", "table", "section", "article", "main", "header", "h1", "h2"),
    *("h3", "h4", "h5", "h6", "blockquote", "pre", "dd", "dt", "figcaption", "hr", "title"),
}


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _SILENT:
            self._silent.append(tag)
        elif tag == "body":  # whatever was not closed before it
            self._silent.clear()
        self._apart(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            while self._silent.pop() != tag:
                pass
        self._apart(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.said.append(data)

    def _apart(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.said.append(" ")
        elif tag in _BLOCKS:
            self.said.append("\0")


def readable(page: str) -> str:
    """The text of a page, however broken its HTML is."""
    words = _Words()
    words.feed(page)
    words.close()
    lines = (" ".join(line.split()) for line in "".join(words.said).split("\0"))
    return "\n".join(line for line in lines if line)
