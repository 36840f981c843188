"""Every page of the dashboard in a real browser, over runs of every kind."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.conftest import DashboardServer
from tests.dashboard.example_runs import (
    CRASHED,
    DAMAGED,
    EPISODE_ID,
    FINISHED,
    HOSTILE_RUN,
    JUST_STARTED,
    RUNNING,
    UNREADABLE,
)
from tests.helpers.browser import DESKTOP_WIDTH, PHONE_WIDTH, find_accessibility_violations, open_checked_page

SHAPE = re.compile(r"(?<=/examples/)[^?]+|(?<=/runs/)[^/?]+|(?<=/leaderboard/files/)[^/]+")
"""What differs in addresses that are alike: one of them is tried."""
TABS = ("", "/code", "/examples", "/transcript", "/log")
RUNS = (FINISHED, CRASHED, DAMAGED, RUNNING, JUST_STARTED, HOSTILE_RUN)
MANY = ("/", "/?q=nothing-like-it", f"/compare?run={FINISHED}&run={HOSTILE_RUN}", "/leaderboard")
EXAMPLE = f"/runs/{HOSTILE_RUN}/examples/{EPISODE_ID}?submission=2&step=2"
BROKEN = f"/runs/{UNREADABLE}"
MADE_SECONDS = 120
LOST = (f"/runs/{DAMAGED}/code", f"/runs/{DAMAGED}/examples", BROKEN)
"""Of which there is nothing to be shown but what is wrong."""


def pages() -> list[str]:
    """All tabs of a finished run and of a hostile one; of the others, the first and those that differ."""
    whole = [f"/runs/{run}{tab}" for run in (FINISHED, HOSTILE_RUN) for tab in TABS]
    others = [f"/runs/{run}" for run in RUNS if run not in (FINISHED, HOSTILE_RUN)]
    return [*MANY, *whole, *others, f"/runs/{RUNNING}/log", *LOST, EXAMPLE]


@pytest.fixture
def page(browser: Browser, board: DashboardServer) -> Iterator[Page]:
    with open_checked_page(browser, board.url) as page:
        yield page


def show(page: Page, board: DashboardServer, path: str) -> None:
    """A page with all that belongs to it."""
    answer = page.goto(board.url + path)
    assert answer
    assert answer.status == (404 if path in LOST else 200), path
    expect(page.locator("[aria-busy]")).to_have_count(0, timeout=1000 * MADE_SECONDS)
    assert page.evaluate("window.hit") is None, path
    assert page.locator("main script, main style:not(svg style), main img, main [onerror]").count() == 0, path


def test_every_page_of_every_kind_of_run_fits_any_width_and_its_links_lead_somewhere(
    page: Page, board: DashboardServer
) -> None:
    links: dict[str, tuple[str, str]] = {}
    for path in pages():
        show(page, board, path)
        for width in (PHONE_WIDTH, DESKTOP_WIDTH):
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
    with httpx.Client(base_url=board.url, timeout=120) as client:
        for link, path in links.values():
            if link not in LOST:
                assert client.get(link).status_code == 200, f"{link} on {path}"


@pytest.mark.thorough
def test_no_page_has_a_serious_fault_for_readers_who_see_or_move_otherwise(
    page: Page, board: DashboardServer
) -> None:
    paths = [*MANY, *(f"/runs/{FINISHED}{tab}" for tab in TABS), EXAMPLE, BROKEN]
    paths += [f"/runs/{run}" for run in (DAMAGED, RUNNING, JUST_STARTED)] + [
        f"/runs/{HOSTILE_RUN}/transcript"
    ]
    dark = (
        *MANY[:3],
        *(f"/runs/{run}" for run in (FINISHED, RUNNING, JUST_STARTED)),
        f"/runs/{FINISHED}/code",
        EXAMPLE,
    )
    found = []
    for path in paths:
        show(page, board, path)
        found += [f"{path}: {fault}" for fault in find_accessibility_violations(page)]
        if path in dark:
            page.emulate_media(color_scheme="dark")
            found += [
                f"{path} in the dark: {fault}"
                for fault in find_accessibility_violations(page, runOnly=["color-contrast"])
            ]
            page.emulate_media(color_scheme="light")
    assert found == []
