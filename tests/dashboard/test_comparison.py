"""Several runs side by side: their training curves in one figure."""

import html
import json
import re
import shutil
import time
from pathlib import Path

import httpx
import pytest

from agent2rl.record.paths import RunPaths
from agent2rl.report import chart_style
from agent2rl.report.training_figures import draw_trainings_of_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.report import sample_reports

NAMES = ("one", "two")
RUNS = "&".join(f"run={name}" for name in NAMES)
WAIT_SECONDS = 300


def fetch_trainings(board: DashboardServer) -> str:
    """The part of the page with the curves, when the analysis is done."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        part = httpx.get(f"{board.url}/compare/trainings?{RUNS}", timeout=60).text
        if "data-stale" not in part:
            return part
        time.sleep(0.2)
    raise TimeoutError


@pytest.mark.thorough
def test_the_training_curves_of_the_compared_runs_are_in_one_figure(
    finished: RunPaths, tmp_path: Path
) -> None:
    for name in NAMES:
        ignore = shutil.ignore_patterns("model")
        shutil.copytree(finished.root, tmp_path / "runs" / name, symlinks=True, ignore=ignore)
    with serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board:
        page = httpx.get(f"{board.url}/compare?{RUNS}", timeout=60).text
        part = fetch_trainings(board)
    assert f'data-live="/compare/trainings?{html.escape(RUNS)}"' in page
    chart = re.search(r'data-chart="([^"]*)"', part)
    assert chart, part[:500]
    panels = {panel["title"]: panel for panel in json.loads(html.unescape(chart[1]))}
    names = {each["name"] for each in panels["reward"]["series"]}
    assert {"1: log.jsonl", "2: log.jsonl"} <= names
    assert "The analysis failed" not in part


def test_each_run_has_a_colour_and_its_submissions_are_marked() -> None:
    trainings = sample_reports.make_finished_report().findings.trainings
    figure = draw_trainings_of_runs([trainings, trainings])
    assert figure
    reward = json.loads(chart_style.render_svgs({"a": figure})["a.chart"])[0]
    lines = {each["name"]: each for each in reward["series"] if each["name"] != "submission"}
    first, second = (
        {each["colour"] for name, each in lines.items() if name.startswith(number)}
        for number in ("1: ", "2: ")
    )
    assert (len(first), len(second), first & second) == (1, 1, set())
    marks = [each for each in reward["series"] if each["name"] == "submission"]
    assert [each["x"] for each in marks if each["x"]] == [[440, 890], [440, 890]]


def test_runs_without_logs_have_no_figure() -> None:
    assert draw_trainings_of_runs([(), ()]) is None
