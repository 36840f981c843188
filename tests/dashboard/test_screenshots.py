"""The pictures of the dashboard in the docs: `make screenshots RUNS=directory` takes them of the runs there.

Otherwise the same walk is made over runs of the tests, and what it would have written is looked at.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from agent2rl.dashboard.run_index import RunQuery
from agent2rl.dashboard.run_status import RunRow, find_run, read_answers, read_live_status
from agent2rl.record.paths import RunPaths
from tests.dashboard import example_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.helpers.browser import DESKTOP_WIDTH, PAGE_MILLISECONDS

RUNS, FOLDER = os.environ.get("AGENT2RL_SCREENSHOT_RUNS"), os.environ.get("AGENT2RL_SCREENSHOTS")
MOST_BYTES = 150_000
COLOURS = 256
MADE_SECONDS = 120
PHONE = 390
TALL = {"runs": 560, "run": 1080, "episode": 760, "compare": 900, "phone": 1480, "dark": 1080}
"""How much of each page is shown, at most."""
AGAIN = ("phone", "dark")
"""The same page otherwise, which other tests look at."""


@pytest.fixture
def runs(finished: RunPaths, tmp_path: Path) -> Path:
    if RUNS:
        return Path(RUNS).absolute()
    for name in ("20260101-000000-first", "20260102-000000-second"):
        example_runs.copy_run_as(finished, tmp_path / "runs", name)
    example_runs.add_won_episode(RunPaths(tmp_path / "runs" / name))
    return tmp_path / "runs"


@pytest.mark.thorough
def test_the_pictures_in_the_docs_are_of_whole_pages_and_small(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    with serve_dashboard(runs, tmp_path / "cache") as board:
        for name, (path, width, scheme) in pictures(board).items():
            if not FOLDER and name in AGAIN:
                continue
            with opened(browser, board.url + path, width, scheme) as page:
                height = min(TALL[name], page.evaluate("document.documentElement.scrollHeight"))
                taken = page.screenshot(
                    clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True
                )
            picture = Image.open(io.BytesIO(taken)).convert("RGB")
            assert len(picture.getcolors(1 << 24) or ()) > 20, f"{name} is blank"
            small = written(picture)
            assert len(small) < MOST_BYTES, name
            if FOLDER:
                (Path(FOLDER) / f"dashboard-{name}.png").write_bytes(small)


def written(picture: Image.Image) -> bytes:
    """As it is, if that is small enough; else in fewer colours, which are then not quite its own."""
    whole = png(picture)
    if len(whole) < MOST_BYTES:
        return whole
    return png(picture.quantize(COLOURS, kmeans=1, dither=Image.Dither.NONE))


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def pictures(board: DashboardServer) -> dict[str, tuple[str, int, str]]:
    """Of which page each is, how wide, and whether by day."""
    rows, _ = board.dashboard.index.select_rows(RunQuery(limit=None))
    ranked = sorted(rows, key=lambda row: (_plays(board, row), row.gain or -1000.0, row.scored), reverse=True)
    best, (first, second) = ranked[0], _pair(ranked)
    run = f"/runs/{quote(best.run_id)}"
    pair = f"/compare?run={quote(second.run_id)}&run={quote(first.run_id)}"
    return {
        "runs": ("/", DESKTOP_WIDTH, "light"),
        "run": (run, DESKTOP_WIDTH, "light"),
        "episode": (_episode(board, best) or f"{run}/examples", DESKTOP_WIDTH, "light"),
        "compare": (pair, DESKTOP_WIDTH, "light"),
        "phone": (run, PHONE, "light"),
        "dark": (run, DESKTOP_WIDTH, "dark"),
    }


def _plays(board: DashboardServer, row: RunRow) -> bool:
    return _episode(board, row) is not None


def _pair(ranked: list[RunRow]) -> tuple[RunRow, RunRow]:
    """Of the same task, where there is one."""
    scored = [row for row in ranked if row.scored] or ranked
    pairs = [pair for pair in combinations(scored, 2) if pair[0].task == pair[1].task]
    return next(iter(pairs), (ranked[0], ranked[-1]))


def _episode(board: DashboardServer, row: RunRow) -> str | None:
    """One that the untouched model lost, and the best submission won."""
    run = read_live_status(find_run(board.runs, row.run_id))
    if not run.best:
        return None
    lost = {each.id: each for each in read_answers(run.view.paths, 0, "heldout") if each.score == 0}
    won = [
        each
        for each in read_answers(run.view.paths, run.best.id, "heldout")
        if each.score == 1 and each.trajectory
    ]
    short = min(
        (each for each in won if each.id in lost), key=lambda each: len(each.trajectory), default=None
    )
    if short is None:
        return None
    where = f"/runs/{quote(row.run_id)}/examples/{quote(short.id)}"
    return f"{where}?submission={run.best.id}&step={len(short.trajectory) - 1}"


@contextmanager
def opened(browser: Browser, url: str, width: int, scheme: str) -> Iterator[Page]:
    """With all that belongs to it, as it lies still."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.set_default_timeout(PAGE_MILLISECONDS)
    page.goto(url)
    expect(page.locator("[aria-busy]")).to_have_count(0, timeout=1000 * MADE_SECONDS)
    yield page
    context.close()
