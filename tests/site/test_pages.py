"""Pages of a site in a browser, opened from files: filters, sorting, no scripts, and hostile texts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from agent2rl.site.collected_runs import CollectedRuns, RefusedRun
from agent2rl.site.rankings import SiteContents, build_contents
from agent2rl.site.writer import MANIFEST, make_slug, write_site
from tests.helpers.browser import (
    PHONE_WIDTH,
    find_accessibility_violations,
    launch_chromium,
    open_checked_page,
)
from tests.site.sample_runs import make_published_run

HOSTILE = (
    "</script><script>window.hit = 1</script><img src=https://example.org/x onerror='window.hit = 1'>"
    "\u202eturned\u202c \"'><style>*{display:none}</style><a href='javascript:hit()'>"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two agents with a driver, a reference, and a run in which every text is an attack."""
    runs = [
        *(make_published_run(20.0 + at, f"good-{at}", agent="good", driver="a", seed=at) for at in range(5)),
        *(make_published_run(5.0 + at, f"fair-{at}", agent="fair", driver="b", seed=at) for at in range(5)),
        make_published_run(4.0, "reference", agent="recipe:sft"),
        make_published_run(80.0, "cheat", verified=False, agent="cheat"),
        make_published_run(
            3.0, "hostile", text=HOSTILE, agent=HOSTILE, driver=HOSTILE, model=HOSTILE, task=HOSTILE,
            warning=HOSTILE,
        ),
    ]  # fmt: skip
    refused = (RefusedRun(HOSTILE, HOSTILE),)
    target = tmp_path_factory.mktemp("site") / "site"
    write_site(build_contents(CollectedRuns(tuple(runs), refused)), target)
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, site: Path) -> Iterator[Page]:
    """Fails if anything is asked of a server, or if the console has a complaint."""
    with open_checked_page(browser, f"{site.as_uri()}/") as opened:
        opened.goto(f"{site.as_uri()}/runs.html")
        yield opened


def test_runs_are_filtered_without_a_server_and_the_choice_is_in_the_url(page: Page) -> None:
    rows = page.locator("#runs tbody tr:visible")
    expect(rows).to_have_count(13)
    page.locator("select[name=agent]").select_option("good")
    expect(rows).to_have_count(5)
    expect(page.locator("#count")).to_have_text("5 of 13 runs")
    page.locator("input[name=q]").fill("good-3")
    expect(rows).to_have_count(1)
    page.goto(page.url.replace("agent=good", "check=reference").replace("q=good-3", "q="))
    page.reload()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(13)


def test_a_table_is_sorted_by_its_headings_with_the_unknown_last(page: Page) -> None:
    page.get_by_role("button", name="Gain, points").click()
    gains = page.locator("#runs td:nth-child(8)").all_inner_texts()
    numbers = [float(text.split()[0]) for text in gains]
    assert numbers == sorted(numbers, reverse=True)


def test_the_ranking_marks_references_and_leaves_out_who_is_not_verified(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/tasks/sums.html")
    agents = page.locator(".ranking tbody th").all_inner_texts()
    assert [agent.split()[0] for agent in agents] == ["good", "fair", "recipe:sft"]
    assert "reference" in agents[2]
    expect(page.locator("main")).to_contain_text("1 run is not ranked, because its record is not verified.")
    page.locator(".ranking tbody a").first.click()
    expect(page.locator("h1")).to_have_text("good")
    page.locator("#runs a").first.click()
    expect(page.locator(".badges").first).to_contain_text("bubblewrap: 2 of 2 promises")


def test_pages_can_be_read_without_scripts(browser: Browser, site: Path) -> None:
    with open_checked_page(browser, f"{site.as_uri()}/", java_script_enabled=False) as page:
        page.goto(f"{site.as_uri()}/runs.html")
        expect(page.locator("#runs tbody tr:visible")).to_have_count(13)
        expect(page.locator("#filters")).to_be_hidden()
        page.goto(f"{site.as_uri()}/tasks/sums.html")
        expect(page.locator("figure .wide svg").first).to_be_visible()


@pytest.mark.parametrize("where", ["index.html", "runs.html", "runs/hostile.html", "task"])
def test_hostile_texts_stay_texts(where: str, page: Page, site: Path) -> None:
    name = f"tasks/{make_slug(HOSTILE)}.html" if where == "task" else where
    page.goto(f"{site.as_uri()}/{name}")
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, main style, a[href^='javascript']").count() == 0
    assert "\u202e" not in page.content()
    assert page.locator("script").count() == 1


def test_pages_are_accessible_and_fit_a_phone(browser: Browser, site: Path) -> None:
    with open_checked_page(browser, f"{site.as_uri()}/", PHONE_WIDTH) as page:
        for name in ("index.html", "runs.html", "tasks/sums.html", "runs/good-0.html"):
            page.goto(f"{site.as_uri()}/{name}")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_WIDTH
            assert find_accessibility_violations(page) == []


def test_different_names_have_different_pages() -> None:
    names = ["a", "A", "a b", "a-b", "a/b", "../a", "", "é", "x" * 100, "x" * 101]
    slugs = [make_slug(name) for name in names]
    assert len({slug.lower() for slug in slugs}) == len(names)
    assert all(slug and set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for slug in slugs)


def test_a_site_of_nothing_says_so(tmp_path: Path) -> None:
    contents: SiteContents = build_contents(CollectedRuns((), ()))
    assert "No runs." in write_site(contents, tmp_path / "empty").read_text(encoding="utf-8")


def test_a_new_site_deletes_pages_of_the_old_one_and_nothing_outside(tmp_path: Path) -> None:
    contents, site = build_contents(CollectedRuns((), ())), tmp_path / "site"
    write_site(contents, site)
    outside, stale = tmp_path / "outside", site / "tasks" / "old.html"
    stale.parent.mkdir()
    for path in (outside, stale):
        path.touch()
    (site / MANIFEST).write_text(f"tasks/old.html\n../outside\n{outside}\n/{outside}\n")
    write_site(contents, site)
    assert outside.exists()
    assert not stale.exists()
