"""The dashboard by keyboard alone, and in its first hours: with no run, and with one that has just begun."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from agent2rl.record.paths import RunPaths
from tests.dashboard import example_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.dashboard.example_runs import CRASHED, FINISHED, HOSTILE_RUN, JUST_STARTED
from tests.helpers.browser import DESKTOP_WIDTH, PHONE_WIDTH, find_accessibility_violations, open_checked_page

MOST_TABS = 60
Scheme = Literal["light", "dark"]
LOOKS: tuple[tuple[int, Scheme], ...] = ((DESKTOP_WIDTH, "light"), (PHONE_WIDTH, "dark"))
FOCUSED = """() => {
  const at = document.activeElement, look = getComputedStyle(at);
  return { text: (at.innerText || at.value || at.getAttribute("aria-label") || "").trim(), tag: at.tagName,
    name: at.getAttribute("name"), seen: look.outlineStyle !== "none" && parseFloat(look.outlineWidth) > 0 };
}"""


@pytest.fixture
def page(browser: Browser, board: DashboardServer) -> Iterator[Page]:
    with open_checked_page(browser, board.url) as page:
        yield page


def tab_to(page: Page, selector: str) -> int:
    """Tab until it has the focus, which can be seen all the way; returns how often."""
    for count in range(1, MOST_TABS):
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED)["seen"], page.evaluate(FOCUSED)
        if page.evaluate("(it) => document.activeElement.matches(it)", selector):
            return count
    raise AssertionError(f"{selector} cannot be come to")


def test_runs_are_found_opened_and_compared_by_keyboard(page: Page, board: DashboardServer) -> None:
    page.goto(board.url)
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert [each["text"] for each in order[:4]] == ["Skip to the page", "agent2rl", "Runs", "Leaderboard"]
    assert order[4]["name"] == "q"
    assert all(each["seen"] for each in order)
    page.keyboard.type("gsm8k-mini")
    tab_to(page, "select[name=state]")
    page.keyboard.type("fin")
    tab_to(page, ".choose button")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{board.url}/?q=gsm8k-mini&state=finished")
    assert 1 < page.locator(".runs tbody tr").count() < len(example_runs.RUN_KINDS)
    tab_to(page, f"input[value='{HOSTILE_RUN}']")
    page.keyboard.press("Space")
    tab_to(page, f"input[value='{FINISHED}']")
    page.keyboard.press("Space")
    tab_to(page, "form[action='/compare'] button")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Comparing 2 runs")
    tab_to(page, f"a[href='/runs/{FINISHED}']")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{FINISHED}")


def test_too_few_runs_to_compare_get_a_word_on_how_to_choose_more(page: Page, board: DashboardServer) -> None:
    for path in ("/compare", f"/compare?run={FINISHED}"):
        page.goto(board.url + path)
        expect(page.locator(".empty")).to_contain_text("Select two or more")
    assert find_accessibility_violations(page) == []


def test_what_is_folded_opens_and_an_episode_is_played_by_keyboard(
    page: Page, board: DashboardServer
) -> None:
    page.goto(f"{board.url}/runs/{HOSTILE_RUN}/transcript")
    tab_to(page, "summary")
    fold = page.locator("details").first
    page.keyboard.press("Enter")
    expect(fold).to_have_attribute("open", "")
    page.keyboard.press("Space")
    expect(fold).not_to_have_attribute("open", "")
    page.goto(f"{board.url}/runs/{HOSTILE_RUN}/examples/{example_runs.EPISODE_ID}?submission=2&step=1")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pager span")).to_have_text("step 2 of 3")
    page.wait_for_load_state()  # the text is there before the script that listens for keys
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pager span")).to_have_text("step 1 of 3")


def test_news_leave_the_reader_where_the_keyboard_brought_them(
    browser: Browser, finished: RunPaths, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for name in (FINISHED, CRASHED):
        example_runs.copy_run_as(finished, runs, name)
    with (
        serve_dashboard(runs, tmp_path / "cache") as board,
        open_checked_page(browser, board.url, PHONE_WIDTH) as page,
    ):
        page.goto(board.url)
        expect(page.locator(".alive")).to_have_text("live")
        page.locator(f"input[value='{CRASHED}']").check()
        page.locator(f"a[href='/runs/{FINISHED}']").focus()
        page.evaluate("document.querySelector('.box').scrollLeft = 90")
        example_runs.copy_run_as(finished, runs, "news")
        page.wait_for_selector("input[value='news']")
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"/runs/{FINISHED}"
        assert page.evaluate("document.querySelector('.box').scrollLeft") == 90
        assert page.locator(f"input[value='{CRASHED}']").is_checked()
        page.locator("input[value='news']").focus()
        shutil.rmtree(runs / "news")
        expect(page.locator(".runs tbody tr")).to_have_count(2)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_directory_without_runs_says_how_to_make_one(
    width: int, scheme: Scheme, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    with (
        serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board,
        open_checked_page(browser, board.url, width, color_scheme=scheme) as page,
    ):
        for path, sign in (("/", "agent2rl run --task"), ("/nothing", "page does not exist")):
            page.goto(board.url + path)
            expect(page.locator("main")).to_contain_text(sign)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert find_accessibility_violations(page) == []


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_run_that_has_just_begun_shows_what_it_is_and_what_is_to_come(
    width: int, scheme: Scheme, browser: Browser, board: DashboardServer
) -> None:
    with open_checked_page(browser, board.url, width, color_scheme=scheme) as page:
        page.goto(f"{board.url}/runs/{JUST_STARTED}")
        expect(page.locator(".now")).to_contain_text("the agent has not started")
        expect(page.locator("[aria-busy]")).to_have_count(0, timeout=60_000)
        for tab, sign in (
            ("code", "No revision"),
            ("examples", "Nothing has been graded"),
            ("log", "has not printed"),
        ):
            page.goto(f"{board.url}/runs/{JUST_STARTED}/{tab}")
            expect(page.locator(".empty")).to_contain_text(sign)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert find_accessibility_violations(page) == []
