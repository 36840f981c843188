"""What is hostile stays text, and nobody reads through the dashboard what is not theirs to read."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.sync_api import Browser

from agent2rl.cli.view import select_level_reader
from agent2rl.record.paths import RunPaths
from tests.dashboard import example_runs
from tests.dashboard.conftest import DashboardServer, serve_dashboard
from tests.dashboard.example_runs import EPISODE_ID, FINISHED, HOSTILE_RUN
from tests.helpers import forked_cli
from tests.helpers.browser import open_patient_page
from tests.helpers.http_server import serve_app

SECRET = "nobody is to read this"
ESCAPES = (
    "/runs/..",
    "/runs/%2e%2e",
    "/runs/%2e%2e%2foutside",
    "/runs/..%2foutside/log",
    "/runs/%2e%2e/outside/log",
    f"/runs/{FINISHED}%2f..%2f..%2foutside/log",
    f"/runs/{FINISHED}/../../outside/log",
    f"/runs/{FINISHED}/code?file=../../outside/secret",
    f"/runs/{FINISHED}/examples/..%2f..%2foutside",
    "/runs/linked/log",
    "/runs/mixed/log",
    "/runs/.hidden/log",
    "/static/..%2fapp.py",
    "/static/%2e%2e%2f%2e%2e%2foutside%2fsecret",
    "/leaderboard/files/..%2f..%2foutside/secret.csv",
    "/leaderboard/files/../secret.csv",
    "/leaderboard/files/%2e%2e/outside/secret.csv",
)
ODD = (
    "/?page=-1&sort=row;drop&until=9999-12-31&since=0001-01-01&q=%25_%5c%27%00&level=one",
    "/?page=9999999&q=" + "x+" * 300,
    f"/runs/{FINISHED}/examples?page=-9&show=<script>",
    f"/runs/{FINISHED}/transcript?page=99999999999999999999",
)


@pytest.fixture(scope="module")
def beside(finished: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """Runs with links beside something that is secret."""
    place = tmp_path_factory.mktemp("beside")
    runs = place / "runs"
    outside = example_runs.copy_run_as(finished, place, "outside")
    outside.agent_log.write_text(SECRET)
    for name in ("secret", "secret.csv"):
        (outside.root / name).write_text(SECRET)
    example_runs.copy_run_as(finished, runs, FINISHED)
    (runs / "linked").symlink_to(outside.root)
    mixed = example_runs.copy_run_as(finished, runs, "mixed")
    mixed.agent_log.unlink()
    mixed.agent_log.symlink_to(outside.agent_log)
    answers = example_runs.copy_run_as(finished, runs, "deeper").submission_paths(1).results_file("heldout")
    answers.unlink(missing_ok=True)
    answers.symlink_to(outside.root / "secret")
    shutil.copytree(outside.root, runs / ".hidden")
    with serve_dashboard(runs, place / "cache") as found:
        yield found


def test_nothing_outside_of_the_runs_can_be_had_by_any_name_or_link(beside: DashboardServer) -> None:
    with httpx.Client(base_url=beside.url, timeout=120) as client:
        assert client.get(f"/runs/{FINISHED}/log").status_code == 200
        for path in (*ESCAPES, "/runs/deeper/examples?submission=1"):
            status, text = _raw(beside, path)
            assert status == 404, path
            assert SECRET not in text, path
        table = client.get("/").text
    assert "3 directories cannot be read" in table
    assert "1 run</p>" in table


def _raw(beside: DashboardServer, path: str) -> tuple[int, str]:
    return _answer(beside, path)[:2]


def _answer(beside: DashboardServer, path: str) -> tuple[int, str, dict[str, str]]:
    """An address as it is: browsers and libraries would put it right."""
    with closing(HTTPConnection(httpx.URL(beside.url).netloc.decode(), timeout=30)) as line:
        line.request("GET", path)
        answer = line.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, answer.read().decode(), headers


def test_odd_addresses_get_a_page_and_not_an_error(beside: DashboardServer) -> None:
    with httpx.Client(base_url=beside.url, timeout=120) as client:
        for path in ODD:
            assert client.get(path).status_code == 200, path
        for path in (f"/runs/{FINISHED}/code?at=-5", "/compare?run=a", "/compare?run=a&run=b", "/nothing"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert "<h1>" in answer.text
        assert client.get(f"/runs/{FINISHED}/examples?split=train").status_code == 422
        assert client.post("/").status_code == 405


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org:80", "10.0.0.1", "localhost.evil"])
def test_a_host_of_others_is_refused(host: str, beside: DashboardServer) -> None:
    for path in ("/", "/static/style.css", f"/runs/{FINISHED}/events"):
        answer = httpx.get(beside.url + path, headers={"Host": host}, timeout=120)
        assert answer.status_code == 403
        assert FINISHED not in answer.text


def test_names_of_this_computer_are_served_and_every_answer_forbids_scripts(beside: DashboardServer) -> None:
    for host in ("127.0.0.1", "LocalHost:8000", "[::1]", "[::1]:80", "127.0.0.2"):
        answer = httpx.get(beside.url, headers={"Host": host}, timeout=120)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "cors", "empty", 403),
        ("same-site", "cors", "empty", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
    ],
)
def test_other_web_sites_can_lead_here_and_fetch_nothing(
    site: str, mode: str, dest: str, status: int, beside: DashboardServer
) -> None:
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    answer = httpx.get(beside.url, headers=told, timeout=120)
    assert answer.status_code == status
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


def test_a_hostile_page_in_the_same_browser_reads_nothing(browser: Browser, beside: DashboardServer) -> None:
    with quiet_origin() as other:
        page = open_patient_page(browser)
        page.goto(other)
        assert page.evaluate(
            """async (url) => {
              const got = [];
              try { got.push(await (await fetch(url)).text()); } catch { /* as it should */ }
              try { got.push((await fetch(url, { mode: "no-cors" })).type); } catch { got.push("refused"); }
              got.push(await new Promise((done) => {
                const line = new EventSource(url + "/events");
                line.onopen = () => done("heard"); line.onerror = () => done("refused");
              }));
              const frame = document.createElement("iframe");
              frame.src = url; document.body.append(frame);
              await new Promise((done) => { frame.onload = done; });
              try { got.push(frame.contentWindow.document.body.innerText); } catch { got.push("refused"); }
              return got;
            }""",
            beside.url,
        ) == ["refused", "refused", "refused"]
        page.close()


@contextmanager
def quiet_origin() -> Iterator[str]:
    """Another web site on this computer."""
    app = FastAPI()

    @app.get("/")
    def front() -> HTMLResponse:
        return HTMLResponse("<!doctype html><link rel=icon href=data:,><title>other</title>")

    with serve_app(app) as url:
        yield url.replace("127.0.0.1", "localhost")


def test_the_token_leads_only_to_pages_of_ours_and_goes_to_nobody_else(
    finished: RunPaths, tmp_path: Path
) -> None:
    example_runs.copy_run_as(finished, tmp_path / "runs", FINISHED)
    with serve_dashboard(tmp_path / "runs", tmp_path / "cache", token="secret") as board:
        for path in ("//example.org/", "///example.org", "/%5cexample.org", "//example.org%2f.."):
            status, _, headers = _answer(board, f"{path}?token=secret")
            assert status == 303
            leads = headers["location"]
            assert not leads.startswith(("//", "/\\")), leads
            assert "secret" not in leads
            assert headers["referrer-policy"] == "no-referrer"
        for given in ("Token=secret", "token=", "token=secre", "token=secret%00", "token=%ff"):
            assert _answer(board, f"/?{given}")[0] == 403
        for path in (
            "/static/style.css",
            "/events",
            "/leaderboard/files/a/b.csv",
            f"/runs/{FINISHED}/log",
            "/nothing",
        ):
            status, text, _ = _answer(board, path)
            assert status == 403
            assert FINISHED not in text


def test_whatever_an_agent_wrote_stays_text(browser: Browser, board: DashboardServer) -> None:
    page = open_patient_page(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    paths = ("", "/transcript?page=2", "/log", "/examples", f"/examples/{EPISODE_ID}?submission=2")
    for path in (*(f"/runs/{HOSTILE_RUN}{each}" for each in paths), "/"):
        page.goto(board.url + path)
        assert page.evaluate("window.hit") is None
        assert page.locator("main script, main style, main img, main [onerror]").count() == 0
        assert page.locator("main a[href^='javascript']").count() == 0
        assert "\u202e" not in page.locator("main").inner_text(), path
    assert page.evaluate("document.title")
    assert not [url for url in asked if not url.startswith((board.url, "data:"))]
    page.close()


def test_others_than_this_computer_need_the_token_that_is_printed(
    finished: RunPaths, cache: Path, tmp_path: Path
) -> None:
    output, errors = tmp_path / "output", tmp_path / "errors"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AGENT2RL_CACHE": str(tmp_path / "c")}
    asked = ("view", str(finished.root.parent), "--no-browser", "--host", "0.0.0.0")
    process = forked_cli.start_forked_cli(asked, tmp_path, environment, output, errors)
    try:
        told = _printed(output)
        address = told.replace("0.0.0.0", "127.0.0.1")
        plain = address.partition("?")[0]
        assert httpx.get(plain, timeout=120).status_code == 403
        assert httpx.get(f"{plain}?token=wrong", timeout=120).status_code == 403
        assert httpx.get(plain, cookies={"agent2rl-token": "wrong"}, timeout=120).status_code == 403
        with httpx.Client(timeout=120) as client:
            entered = client.get(f"{address}&q=x")
            assert entered.status_code == 303
            assert entered.headers["location"] == "/?q=x"
            assert "httponly" in entered.headers["set-cookie"].lower()
            assert client.get(plain).status_code == 200
        os.kill(process.pid or 0, signal.SIGINT)
        process.join(20)
        assert process.exitcode == 0, errors.read_text()
    finally:
        process.kill()
        process.join()


def test_no_module_that_a_run_of_others_names_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, task = tmp_path / "imported", "imported_when_named:TASK"
    (tmp_path / "imported_when_named.py").write_text(f"open({str(marker)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    assert select_level_reader(tmp_path / "received", tmp_path / "runs")(task) is None
    assert not marker.exists()
    select_level_reader(tmp_path / "runs", tmp_path / "runs")(task)
    assert marker.exists(), "the module is one that could be imported"


def _printed(output: Path) -> str:
    for _ in range(1200):
        if output.exists() and "\n" in (text := output.read_text()):
            return text.splitlines()[0]
        time.sleep(0.1)
    raise AssertionError("nothing was printed")
