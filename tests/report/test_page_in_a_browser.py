"""report.html in a real browser: at a desk and on a telephone, in light and dark, on paper."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from agent2rl.report import campaign_page, html, run_figures
from tests.helpers.browser import (
    DESKTOP_WIDTH,
    PAGE_MILLISECONDS,
    PHONE_WIDTH,
    launch_chromium,
    open_patient_page,
)
from tests.report import sample_reports
from tests.report.test_campaign_reports import analyse_digests, make_campaign_digests

HOSTILE = (
    "</script><script>window.hit = 1</script><img src=https://example.org/x onerror='window.hit = 1'>"
    "\u202eturned\u202c \"'><style>*{display:none}</style><a href='javascript:hit()'>" + "A" * 3000
)
NAMES = ("finished", "empty", "running", "crashed", "hostile")

CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const element of document.querySelectorAll("main *, nav *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const words = light(parts(element instanceof SVGElement ? style.fill : style.color));
    const ground = light(behind(element));
    const ratio = (Math.max(words, ground) + 0.05) / (Math.min(words, ground) + 0.05);
    if (ratio < 4.5) faint.add(`${element.tagName}.${element.getAttribute("class")}: ${ratio.toFixed(2)}`);
  }
  return [...faint];
}"""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of run."""
    folder = tmp_path_factory.mktemp("pages")
    figures = run_figures.render_all_svgs(sample_reports.make_finished_report())
    texts = {
        "finished": html.page(sample_reports.make_finished_report(), figures),
        "empty": html.page(sample_reports.make_empty_report(), {}),
        "running": html.page(sample_reports.make_running_report(), figures),
        "crashed": html.page(sample_reports.make_crashed_report(), {}),
        "hostile": html.page(sample_reports.make_hostile_report(HOSTILE), figures),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    campaigns = {
        "campaign": campaign_page.write(analyse_digests(make_campaign_digests()), folder / "campaign")
    }
    return {name: folder / f"{name}.html" for name in texts} | campaigns


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens a page, and sees to it at the end that it asked for nothing and complained of nothing."""
    contexts, faults = [], []

    def open_page(name: str, width: int = DESKTOP_WIDTH, scheme: str = "light", scripts: bool = True) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PAGE_MILLISECONDS)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if request.url != page.url else None)
        page.goto(pages[name].as_uri())
        faults[:] = [fault for fault in faults if fault != pages[name].as_uri()]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.mark.parametrize("width", [PHONE_WIDTH, DESKTOP_WIDTH])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_any_run_fits_any_width_and_all_its_links_lead_somewhere(
    name: str, width: int, opened: Open
) -> None:
    page = opened(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    links = page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))")
    ids = page.eval_on_selector_all("[id]", "all => all.map((each) => each.id)")
    assert len(links) > 12
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert len(ids) == len(set(ids))
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize(("width", "variant"), [(PHONE_WIDTH, "narrow"), (DESKTOP_WIDTH, "wide")])
def test_figures_are_drawn_in_the_form_that_fits_the_width(width: int, variant: str, opened: Open) -> None:
    page = opened("finished", width, scripts=False)  # with them, most are charts that answer a pointer
    boxes = page.locator(f"figure > .{variant}")
    assert boxes.count() == 6
    for number in range(6):
        box = boxes.nth(number)
        drawn = box.locator("svg").bounding_box()
        assert drawn
        assert drawn["width"] > 0.75 * width if variant == "narrow" else drawn["width"] > 600
        assert drawn["height"] > 100
        assert len(box.get_attribute("aria-label") or "") > 20
        assert box.locator("svg path").count() > 5
    sizes = page.eval_on_selector_all(
        f"figure > .{variant} svg text", "all => all.map((text) => text.getBoundingClientRect().height)"
    )
    assert min(sizes) > 8, "too small to be read"
    assert opened("empty").locator("figure").count() == 0


def test_rows_open_by_keyboard_and_by_links(opened: Open) -> None:
    page = opened("finished")
    row = page.locator(".attempts > tbody").nth(3).locator("details").first
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    assert row.locator("polyline").first.is_visible()
    assert row.locator(".diff .added").first.is_visible()
    page.keyboard.press("Enter")
    assert not row.locator(".diff").is_visible()
    cite = page.locator("#story .cite").first
    cite.click()
    target = page.locator(cite.get_attribute("href") or "none")
    assert target.evaluate("each => each.matches(':target')")
    assert target.bounding_box()


def test_examples_are_chosen_by_what_became_of_them_and_by_their_words(opened: Open) -> None:
    page = opened("finished")

    def seen() -> list[str]:
        found: list[str] = page.eval_on_selector_all(
            ".examples > ul > li",
            "all => all.filter((each) => each.getClientRects().length).map((each) => each.className)",
        )
        return found

    assert len(seen()) == 200
    for choice, kinds in (("flipped", {"gained", "lost"}), ("lost", {"lost"}), ("wrong", {"wrong"})):
        label = page.locator(f"label[for=show-{choice}]")
        label.click()
        assert set(seen()) == kinds
        assert len(seen()) == int(label.locator(".n").inner_text())
    page.keyboard.press("ArrowUp")
    assert set(seen()) == {"right"}
    page.locator("label[for=show-all]").click()
    page.locator("#search").fill("0061")
    assert page.locator("#count").inner_text() == "1 example shown"
    row = page.locator(".examples > ul > li:not([hidden])")
    row.locator("summary").first.click()
    assert row.locator("pre").count() == 2
    assert "61 + 7 = " in row.locator("pre").first.inner_text()


def test_dark_is_dark_in_figures_too_and_every_text_stands_out_in_both(opened: Open) -> None:
    backs, texts = [], []
    for scheme in ("light", "dark"):
        page = opened("finished", DESKTOP_WIDTH, scheme)
        page.evaluate(
            "document.querySelectorAll('.attempts details').forEach((each) => { each.open = true })"
        )
        backs.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        texts.append(page.evaluate("getComputedStyle(document.querySelector('.wide svg text')).fill"))
        assert page.evaluate(CONTRAST) == []
    assert backs[0] != backs[1]
    assert texts[0] != texts[1]


def test_a_page_is_printed_light_and_unfolded_whatever_the_screen_is(opened: Open) -> None:
    page = opened("finished", DESKTOP_WIDTH, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.wide svg text')).fill") == "rgb(88, 96, 107)"
    )
    assert not page.locator("nav").is_visible()
    count = "document.querySelectorAll('.attempts [open]').length"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.unfolded = {count} }})")
    paper = page.pdf()
    assert paper.startswith(b"%PDF")
    assert page.evaluate("unfolded") == 6
    assert page.locator(".attempts [open]").count() == 0


def test_nothing_that_an_agent_wrote_runs_even_if_it_were_not_escaped(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = open_patient_page(browser)
    page.goto(pages["hostile"].as_uri())
    assert page.evaluate("window.hit") is None
    assert page.locator("main script, main style, main img, main [onerror]").count() == 0
    assert page.locator("text=turned").count() > 10
    leaky = tmp_path / "leaky.html"
    leaky.write_text(pages["hostile"].read_text(encoding="utf-8").replace("<main", HOSTILE + "<main", 1))
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(leaky.as_uri())
    assert page.locator("img").count() == 1, "this one was let in"
    assert page.evaluate("window.hit") is None
    assert asked == [leaky.as_uri()]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE_WIDTH, DESKTOP_WIDTH])
def test_the_page_of_a_campaign_fits_any_width_and_every_file_that_it_names_is_there(
    width: int, scheme: str, opened: Open, pages: dict[str, Path]
) -> None:
    page = opened("campaign", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRAST) == []
    links = page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))")
    ids = set(page.eval_on_selector_all("[id]", "all => all.map((each) => each.id)"))
    for link in links:
        assert link.removeprefix("#") in ids or (pages["campaign"].parent / link).is_file(), link
