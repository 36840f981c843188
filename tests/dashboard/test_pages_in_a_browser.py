"""Every page of the dashboard in a real browser, over runs of every kind."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browsers import DESK, PHONE
from tests.dashboard.conftest import Served
from tests.dashboard.kinds import CRASHED, DAMAGED, EPISODE, FINISHED, GOING, HOSTILE_RUN, UNREADABLE, YOUNG

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
SHAPE = re.compile(r"(?<=/examples/)[^?]+|(?<=/runs/)[^/?]+|(?<=/made/)[^/]+")
"""What differs in addresses that are alike: one of them is tried."""
TABS = ("", "/code", "/examples", "/transcript", "/log")
RUNS = (FINISHED, CRASHED, DAMAGED, GOING, YOUNG, HOSTILE_RUN)
MANY = ("/", "/?q=nothing-like-it", f"/compare?run={FINISHED}&run={HOSTILE_RUN}", "/leaderboard")
EXAMPLE = f"/runs/{HOSTILE_RUN}/examples/{EPISODE}?submission=2&step=2"
BROKEN = f"/runs/{UNREADABLE}"
MADE_SECONDS = 60
LOST = (f"/runs/{DAMAGED}/code", f"/runs/{DAMAGED}/examples", BROKEN)
"""Of which there is nothing to be shown but what is wrong."""


def pages() -> list[str]:
    return [*MANY, *(f"/runs/{run}{tab}" for run in RUNS for tab in TABS), EXAMPLE, BROKEN]


@pytest.fixture
def page(browser: Browser, board: Served) -> Iterator[Page]:
    """Sees to it at the end that nothing was asked of others, and nothing complained of."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": DESK, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.on("console", lambda message: faults.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on("request", lambda request: faults.append(request.url) if _foreign(request.url, board) else None)
    yield page
    context.close()
    assert [fault for fault in faults if "status of 404" not in fault] == []


def _foreign(url: str, board: Served) -> bool:
    return not url.startswith((board.url, "data:"))


def show(page: Page, board: Served, path: str) -> None:
    """A page with all that belongs to it."""
    answer = page.goto(board.url + path)
    assert answer
    assert answer.status == (404 if path in LOST else 200), path
    expect(page.locator("[aria-busy]")).to_have_count(0, timeout=1000 * MADE_SECONDS)
    assert page.evaluate("window.hit") is None, path
    assert page.locator("main script, main style:not(svg style), main img, main [onerror]").count() == 0, path


def test_every_page_of_every_kind_of_run_fits_any_width_and_its_links_lead_somewhere(
    page: Page, board: Served
) -> None:
    links: dict[str, tuple[str, str]] = {}
    for path in pages():
        show(page, board, path)
        for width in (PHONE, DESK):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("h1").count() >= 1, path
        ids = page.eval_on_selector_all("[id]", "all => all.map((each) => each.id)")
        assert len(ids) == len(set(ids)), path
        for link in page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))"):
            if link.startswith("#"):
                assert link[1:] in ids, f"{path} {link}"
            else:
                links.setdefault(SHAPE.sub("…", link.partition("#")[0]), (link, path))
    assert len(links) > 40
    with httpx.Client(base_url=board.url) as client:
        for link, path in links.values():
            if link not in LOST:
                assert client.get(link).status_code == 200, f"{link} on {path}"


def test_no_page_has_a_serious_fault_for_readers_who_see_or_move_otherwise(page: Page, board: Served) -> None:
    paths = [*MANY, *(f"/runs/{FINISHED}{tab}" for tab in TABS), EXAMPLE, BROKEN]
    paths += [f"/runs/{run}" for run in (DAMAGED, GOING, YOUNG)] + [f"/runs/{HOSTILE_RUN}/transcript"]
    dark = ("/", f"/runs/{FINISHED}", f"/runs/{FINISHED}/code", EXAMPLE)
    found = []
    for path in paths:
        show(page, board, path)
        found += [f"{path}: {fault}" for fault in _faults(page)]
        if path in dark:
            page.emulate_media(color_scheme="dark")
            found += [f"{path} in the dark: {fault}" for fault in _faults(page, runOnly=["color-contrast"])]
            page.emulate_media(color_scheme="light")
    assert found == []


def _faults(page: Page, **options: Any) -> list[str]:
    """What is drawn in a figure has its label for readers; of many rows that are alike some are enough."""
    page.evaluate("document.querySelectorAll('figure svg').forEach((each) => each.replaceChildren())")
    page.evaluate(
        "document.querySelectorAll('li:nth-child(n+9), tr:nth-child(n+9)').forEach((x) => x.remove())"
    )
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    page.evaluate(AXE)
    result = page.evaluate("(how) => axe.run(document, how)", {"resultTypes": ["violations"], **options})
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]
