"""What changes arrives in open pages, however many are watching."""

import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from agent2rl.dashboard.run_index import RunQuery, read_digests
from agent2rl.record.paths import RunPaths
from agent2rl.record.run_lock import RunLock
from tests.dashboard import example_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.dashboard.example_runs import FINISHED, RUNNING
from tests.helpers.browser import open_patient_page
from tests.helpers.recorded_meter import open_recorded_meter

WATCHERS = 50


@pytest.mark.parametrize("path", [f"/runs/{RUNNING}", "/"])
def test_changes_arrive_in_an_open_page_that_is_not_loaded_again(
    path: str, browser: Browser, board: DashboardServer, finished: RunPaths
) -> None:
    page = open_patient_page(browser)
    page.goto(board.url + path)
    expect(page.locator(".alive")).to_have_text("live")
    page.evaluate("window.loadedOnce = true")
    log = RunPaths(board.runs / RUNNING).agent_log
    try:
        for name in ("news-1", "news-2"):
            if path == "/":
                example_runs.copy_run_as(finished, board.runs, name)
                page.wait_for_selector(f"input[value='{name}']")
            else:
                with log.open("a") as file:
                    file.write(f"{name}\n")
                page.wait_for_selector(f".tail:has-text('{name}')")
        assert page.evaluate("window.loadedOnce")
    finally:
        page.close()
        for made in board.runs.glob("news-*"):
            shutil.rmtree(made)


def test_a_run_that_ends_is_shown_as_ended_and_says_when_the_line_is_lost(
    browser: Browser, finished: RunPaths, tmp_path: Path
) -> None:
    paths = example_runs.copy_run_as(finished, tmp_path / "runs", RUNNING)
    page = open_patient_page(browser)
    with serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board:
        with RunLock(paths.lock):
            page.goto(board.url)
            expect(page.locator(".badge")).to_have_text("running")
            page.goto(f"{board.url}/runs/{RUNNING}")
            assert "running" in page.locator(".now").inner_text()
            paths.result.write_bytes(finished.result.read_bytes())
        expect(page.locator(".now").first).to_contain_text("completed")
    expect(page.locator(".alive")).to_have_text("not connected")
    page.close()


def test_a_running_run_says_how_many_steps_in_the_world_are_played_and_left(tmp_path: Path) -> None:
    with (
        open_recorded_meter(tmp_path / "runs", 100) as one,
        serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board,
    ):
        address = f"{board.url}/runs/{one.recorder.paths.run_id}/now"
        before = " ".join(httpx.get(address).text.split())
        assert '<span class="figure">0</span><span class="note">100 left of 100; 0 of 0 episodes' in before
        one.meter.count_claim(one.report(1, episodes=2, steps=40, successes=1))
        one.meter.begin_episode()
        one.meter.count_step(won=True)
        one.meter._flush_counts()
        after = " ".join(httpx.get(address).text.split())
        assert '<span class="figure">41</span><span class="note">59 left of 100; 1 of 3 episodes' in after


def test_fifty_watchers_hear_of_a_change_and_another_reader_is_answered_beside_them(
    board: DashboardServer,
) -> None:
    address = httpx.URL(board.url)
    with ExitStack() as stack:
        lines = []
        for _ in range(WATCHERS):
            line = stack.enter_context(socket.create_connection((address.host, address.port), timeout=30))
            line.sendall(f"GET /runs/{RUNNING}/events HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode())
            lines.append(line)
        for line in lines:
            _until(line, b"retry:")

        assert httpx.get(board.url, timeout=120).status_code == 200
        with RunPaths(board.runs / RUNNING).agent_log.open("a") as file:
            file.write("more\n")
        for line in lines:
            _until(line, b"event: changed")


def _until(line: socket.socket, sign: bytes) -> None:
    heard = b""
    while sign not in heard:
        more = line.recv(4096)
        assert more, heard
        heard += more


@pytest.mark.thorough
def test_an_analysis_is_made_once_and_kept_for_the_next_server(board: DashboardServer) -> None:
    while "aria-busy" in httpx.get(f"{board.url}/runs/{FINISHED}/analysis", timeout=120).text:
        time.sleep(0.2)
    made = board.dashboard.analysis_worker.version
    assert 'id="story"' in httpx.get(f"{board.url}/runs/{FINISHED}", timeout=120).text
    assert board.dashboard.analysis_worker.version == made
    with serve_dashboard(board.runs, board.cache) as another:
        assert 'id="story"' in httpx.get(f"{another.url}/runs/{FINISHED}", timeout=120).text
        assert another.dashboard.analysis_worker.version == 0


def test_a_run_without_a_digest_gets_one_beside_and_its_directory_is_left_alone(
    board: DashboardServer,
) -> None:
    ends = time.monotonic() + 120
    while FINISHED in dict(board.dashboard.index.list_lacking_digests()):
        assert time.monotonic() < ends
        time.sleep(0.2)
    digests = read_digests(board.dashboard.index.path, RunQuery(limit=None))
    assert FINISHED in {each.run_id for each in digests}
    assert not RunPaths(board.runs / FINISHED).digest.exists()
