"""Charts that answer a pointer: their data is that of the drawn figure, which stays for print."""

import csv
import json
from collections.abc import Iterator

import matplotlib as mpl
import pytest
from playwright.sync_api import Browser, Page, expect

from agent2rl.report import chart_style, html, run_figures
from agent2rl.report.chart_style import render_chart_data
from agent2rl.report.report_data import ReportData
from tests.helpers.browser import launch_chromium, open_checked_page
from tests.report import sample_reports


def draw_scores(data: ReportData) -> dict[str, str]:
    with mpl.rc_context(chart_style.STYLE):
        figure = run_figures.draw_scores(data.view, data.timeline.at, 12 * sample_reports.HOUR_SECONDS)
    assert figure is not None
    return chart_style.render_svgs({"scores": figure})


@pytest.fixture(scope="module")
def svgs() -> dict[str, str]:
    return draw_scores(sample_reports.make_finished_report())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(svgs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html.page(sample_reports.make_finished_report(), svgs), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, report: str) -> Iterator[Page]:
    with open_checked_page(browser, report) as opened:
        opened.goto(report)
        opened.locator("#scores figure").scroll_into_view_if_needed()
        expect(opened.locator("#scores .uplot")).to_have_count(2)
        yield opened


def test_the_data_of_a_chart_is_what_the_figure_shows(svgs: dict[str, str]) -> None:
    course, held_out = json.loads(svgs["scores.chart"])
    lines = {each["name"]: each for each in course["series"]}
    assert lines["submission"]["y"] == [21, 27, 33, 30, 38]
    assert all(
        low < high for low, high in zip(*(lines["submission"][end] for end in ("low", "high")), strict=True)
    )
    assert lines["best so far"]["look"] == "steps"
    assert lines["untouched model"]["y"][0] == lines["untouched model"]["y"][1]
    assert course["bands"][0]["low"] < course["bands"][0]["high"]
    assert [text for _, text in held_out["ticks"]] == ["base", "best"]
    assert {each["colour"][:2] for each in course["series"]} == {"--"}


def test_a_name_can_hide_nothing_and_a_figure_without_lines_has_no_chart() -> None:
    figure, (axes,) = chart_style.create_panels(4, 2)
    assert render_chart_data(figure) == ""
    axes.plot([0, 1], [2, float("nan")], label="_\u202edesrever")
    (panel,) = json.loads(render_chart_data(figure))
    assert panel["series"][0]["name"] == "⟨U+202E⟩desrever"
    assert panel["series"][0]["y"] == [2, None]


def test_a_line_with_intervals_has_its_name_from_the_legend() -> None:
    figure, (axes,) = chart_style.create_panels(4, 2)
    axes.errorbar([0, 1], [2, 3], [[1, 1], [1, 1]], label="1: a run")
    axes.set_ylabel("score, %")
    (panel,) = json.loads(render_chart_data(figure))
    (line,) = panel["series"]
    assert (line["name"], line["low"], line["high"]) == ("1: a run", [1, 2], [3, 4])


def test_the_pointer_shows_values_and_the_legend_switches_series(page: Page) -> None:
    chart = page.locator("#scores .chart").first
    best = chart.locator(".u-series", has_text="best so far")
    expect(best.locator(".u-value")).to_have_text("–")
    chart.locator(".u-over").hover()
    expect(best.locator(".u-value")).to_have_text("27.00")
    best.locator("th").focus()
    page.keyboard.press("Enter")
    assert "u-off" in (best.get_attribute("class") or "")


def test_dragging_zooms_and_a_double_click_shows_everything_again(page: Page) -> None:
    over = page.locator("#scores .u-over").first
    box = over.bounding_box()
    assert box
    legend = page.locator("#scores .u-series .u-value").first
    over.hover(position={"x": 2, "y": 40})
    expect(legend).to_have_text("0")
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 4, middle, steps=4)
    page.mouse.up()
    over.hover(position={"x": 2, "y": 40})
    expect(legend).not_to_have_text("0")
    over.dblclick()
    over.hover(position={"x": 2, "y": 40})
    expect(legend).to_have_text("0")


def test_the_values_of_a_chart_can_be_downloaded(page: Page) -> None:
    with page.expect_download() as started:
        page.locator("#scores .values button").click()
    assert started.value.suggested_filename.endswith(".csv")
    with started.value.path().open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = [row for row in rows if row["series"] == "submission"]
    assert [float(row["y"]) for row in scores] == [21, 27, 33, 30, 38]
    assert all(float(row["low"]) < float(row["y"]) < float(row["high"]) for row in scores)
    assert len({row["panel"] for row in rows}) == 2


def test_on_paper_and_without_scripts_there_is_the_drawn_figure(
    page: Page, browser: Browser, report: str
) -> None:
    expect(page.locator("#scores .wide svg")).to_be_hidden()
    page.emulate_media(media="print")
    expect(page.locator("#scores .wide svg")).to_be_visible()
    expect(page.locator("#scores .charts")).to_be_hidden()
    with open_checked_page(browser, report, java_script_enabled=False) as plain:
        plain.goto(report)
        expect(plain.locator("#scores .wide svg")).to_be_visible()
