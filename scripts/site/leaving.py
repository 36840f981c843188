"""Links of docs/ that a forge can follow and a site cannot: to files outside docs/, to folders, and to
X.html beside X.md, whose page takes that name.

A site holds a page for each: the file as it is, or the folder's list. So a page of docs/ links as plain
Markdown does, and no forge's address is needed.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

FENCE = re.compile(r"^(```.*?^```)$", re.M | re.S)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".sh": "bash",
    ".json": "json",
}
FRONT = "README.md"


def targets(docs: Path, page: Path) -> Iterator[Path]:
    """What a page links to that the site has no page for yet."""
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = Path(os.path.normpath(page.parent / match[1]))
        if path.exists() and _leaves(docs, path):
            yield path


def place(docs: Path, path: Path) -> str:
    """Where the site shows it, below docs/."""
    if path == docs.parent / FRONT:
        return FRONT
    if _shadowed(path):
        return path.relative_to(docs).with_suffix(".whole.html").as_posix()
    if path.is_relative_to(docs):
        return f"{path.relative_to(docs).as_posix()}/index.md"
    return f"source/{path.relative_to(docs.parent).as_posix()}{'/index' if path.is_dir() else ''}.md"


def shown(docs: Path, path: Path) -> str:
    """The page's Markdown."""
    name = path.relative_to(docs.parent).as_posix()
    if _shadowed(path):
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        files = sorted(each.name for each in path.iterdir() if each.is_file())
        if not path.is_relative_to(docs):
            return f"# {name}\n\n" + "\n".join(f"- `{each}`" for each in files)
        return f"# {name}\n\n" + "\n".join(f"- [{each}]({quote(each)})" for each in files)
    return f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n````\n"


def turned(docs: Path, page: Path, markdown: str) -> str:
    """The page's Markdown with its links to such places."""

    def turn(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(page.parent / match[1]))
        if not path.exists() or not _leaves(docs, path):
            return match[0]
        return os.path.relpath(docs / place(docs, path), page.parent)

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(turn, part) for part in parts)


def _leaves(docs: Path, path: Path) -> bool:
    return path.is_dir() or _shadowed(path) or not path.is_relative_to(docs)


def shadowed(folder: Path, names: list[str]) -> set[str]:
    return {name for name in names if _shadowed(folder / name)}


def _shadowed(path: Path) -> bool:
    return path.suffix == ".html" and path.with_suffix(".md").is_file()
