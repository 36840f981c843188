"""The site of docs/ builds without a warning, and whatever it links to is there.

What is on other people's sites is not asked after: the tests have no network.
"""

import fcntl
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from agent2rl.cli.main import COMMANDS
from tests.docs.test_examples import CODE_FENCE, DOC_PAGES
from tests.helpers.browser import DESKTOP_WIDTH, launch_chromium

ROOT = Path(__file__).resolve().parents[2]
SMOKE_RUNS = ROOT / "docs" / "results" / "smoke" / "runs"
FRONT = ROOT / "docs" / "README.md"
LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


@dataclass
class Html(HTMLParser):
    """What a page names and what it asks for."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif LOADS.get(tag) in given:
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Built once, also where several processes share the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "built"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            bundles = folder / "bundles"  # one says enough, and all take half a minute
            bundles.mkdir(exist_ok=True)
            shutil.copy(min(SMOKE_RUNS.glob("*.tar.zst")), bundles)
            command = [sys.executable, "-m", "scripts.site.build", str(folder), str(bundles)]
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stdout + built.stderr
            (folder / "done").touch()
    return folder / "site"


@cache
def page(path: Path) -> Html:
    found = Html()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def pages(site: Path) -> list[Path]:
    """All but the one that a server shows for what is not there: its links begin at the server's root."""
    return [path for path in sorted(site.rglob("*.html")) if path != site / "404.html"]


def test_every_link_and_every_picture_of_the_site_leads_somewhere(site: Path) -> None:
    lost = []
    for path in pages(site):
        for target in page(path).links + page(path).loads:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            there = (path.parent / unquote(address.path)).resolve() if address.path else path
            exists = there.is_file() and there.is_relative_to(site)
            anchor = unquote(address.fragment)
            if not exists or (anchor and there.suffix == ".html" and anchor not in page(there).ids):
                lost.append(f"{path.relative_to(site)} → {target}")
    assert not lost, "\n".join(lost)


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    loaded = {target for path in pages(site) for target in page(path).loads if urlsplit(target).netloc}
    styles = [*site.rglob("*.css"), *pages(site)]
    inside = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")
    assert not loaded | {path.name for path in styles if inside.search(path.read_text(encoding="utf-8"))}


def test_the_reference_is_filled_from_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f"agent2rl-{name}" in page(site / "reference" / "commands.html").ids for name in COMMANDS)
    assert "--max-submissions" in commands
    assert not [path for path in pages(site) if "<!-- from the code" in path.read_text(encoding="utf-8")]


def test_the_search_finds_pages_that_were_opened_from_files_and_asks_no_server(site: Path) -> None:
    with launch_chromium() as browser:
        opened = browser.new_page(viewport={"width": DESKTOP_WIDTH, "height": 800})
        asked, said = list[str](), list[str]()
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("console", lambda message: said.append(message.text))
        opened.goto((site / "index.html").as_uri())
        opened.locator("input[name=query]").click()
        opened.keyboard.type("lineage")
        opened.locator(".md-search-result__item a[href*='lineage']").first.wait_for()
        assert not [url for url in asked if not url.startswith("file:")] + said


@pytest.mark.parametrize("path", DOC_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_anchors_that_a_page_links_to_are_there_on_a_forge(path: Path) -> None:
    lost = []
    for target, anchor in LINK.findall(CODE_FENCE.sub("", path.read_text(encoding="utf-8"))):
        there = (path.parent / target) if target else path
        if anchor and there.suffix == ".md" and ":" not in target and anchor not in headings(there):
            lost.append(f"{target}#{anchor}")
    assert not lost


def headings(path: Path) -> set[str]:
    """As forges name them: small letters, spaces as hyphens, no other signs."""
    lines = re.findall(r"^#+ (.*)$", CODE_FENCE.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def test_every_page_is_linked_from_the_text_of_another() -> None:
    linked = {
        (path.parent / target).resolve()
        for path in DOC_PAGES
        for target, _ in LINK.findall(CODE_FENCE.sub("", path.read_text(encoding="utf-8")))
        if target and ":" not in target
    }
    assert not [
        path.name for path in DOC_PAGES if path != ROOT / "README.md" and path not in {*linked, FRONT}
    ]
