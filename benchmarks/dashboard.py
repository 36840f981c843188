"""How long the dashboard's pages take: the first of 10,000 runs, and one run with 100,000 events.

    python -m benchmarks.dashboard [--runs 10000] [--events 100000]

The rivals are the least that anybody could do. For many runs: looking into each directory when a page is
asked for (`os.scandir`, and `json.loads` of each run's digest), and Python's http.server with the page as a
file. For one run: reading its events as JSON. Each time is the median of several, over HTTP on loopback.
"""

import argparse
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import uvicorn

from agent2rl.dashboard.server import create_app
from agent2rl.dashboard.state import Dashboard
from agent2rl.record.paths import RunPaths
from benchmarks.campaign_statistics import lay
from benchmarks.report import _run, _stretch

TIMES = 7
CLIENT = httpx.Client(timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=100_000)
    asked = parser.parse_args()
    print("| what | ms |\n|---|--:|")
    with tempfile.TemporaryDirectory() as folder:
        _many(Path(folder), asked.runs)
    with tempfile.TemporaryDirectory() as folder:
        _long(Path(folder), asked.events)


def _many(folder: Path, count: int) -> None:
    runs, cache = folder / "runs", folder / "cache"
    lay(runs, count, 200)
    with closing(_dashboard(runs, cache)) as dashboard:
        began = time.perf_counter()
        dashboard.index.refresh()
        _tell(f"making the index of {count:,} runs", time.perf_counter() - began)
        began = time.perf_counter()
        dashboard.index.refresh()
        _tell("looking for changes in them, where there are none", time.perf_counter() - began)
    told, shown = _from_nothing(runs, cache)
    _tell("`agent2rl view` with that index, from the command to its address", told)
    _tell("from its address to its first page", shown)
    began = time.perf_counter()
    with closing(_dashboard(runs, cache)) as dashboard, _served(dashboard) as url:
        page = _get(url).text
        _tell("a new server with that index, to its first page", time.perf_counter() - began)
        slowest = 0.0
        for _ in range(40):
            began = time.perf_counter()
            _get(url)
            slowest = max(slowest, time.perf_counter() - began)
        _tell("the slowest of the 40 pages after that, which it looks for changes beside", slowest)
        for name, path in (
            ("the first page", "/"),
            ("the last, by gain", f"/?sort=gain&page={count // 100}"),
            ("a search", "/?q=driver-3+task-2"),
            ("a filter", "/?task=task-1&mode=free"),
        ):
            _tell(f"{name}, server warm", _median(functools.partial(_get, url + path.removeprefix("/"))))
    (folder / "index.html").write_text(page, encoding="utf-8")
    with _plain(folder) as url:
        _tell("rival: http.server with the first page as a file", _median(lambda: _get(url)))
    _tell("rival: os.scandir and json.loads of each run's digest", _median(lambda: _read_all(runs)))


def _read_all(runs: Path) -> list[object]:
    with os.scandir(runs) as entries:
        return [json.loads(RunPaths(Path(entry.path)).digest.read_bytes()) for entry in entries]


def _from_nothing(runs: Path, cache: Path) -> tuple[float, float]:
    """A process of its own, until its address stands there, and from then to its first page."""
    program = str(Path(sys.executable).with_name("agent2rl"))
    command = [program, "view", str(runs), "--no-browser"]
    known = {**os.environ, "AGENT2RL_CACHE": str(cache)}
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=known) as view:
        assert view.stdout
        address = view.stdout.readline().strip()
        told = time.perf_counter()
        _get(address)
        shown = time.perf_counter()
        view.send_signal(signal.SIGINT)
    return told - began, shown - told


def _long(folder: Path, events: int) -> None:
    paths = _run(folder / "runs")
    _stretch(paths, events, 50)
    with closing(_dashboard(folder / "runs", folder / "cache")) as dashboard, _served(dashboard) as url:
        address = f"{url}runs/{paths.run_id}"
        began = time.perf_counter()
        _get(address)
        _tell(f"a run with {events:,} events, the first time", time.perf_counter() - began)
        while "aria-busy" in _get(f"{address}/analysis").text:
            time.sleep(0.1)
        _tell("until its analysis stood in the page", time.perf_counter() - began)
        _tell("the same run again, with its analysis", _median(lambda: _get(address)))
        for tab in ("code", "examples", "log"):
            _tell(f"its {tab}", _median(functools.partial(_get, f"{address}/{tab}")))
    _tell("rival: its events read as JSON", _median(lambda: _read(paths.events)))


def _get(address: str) -> httpx.Response:
    return CLIENT.get(address).raise_for_status()


def _read(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _dashboard(runs: Path, cache: Path) -> Dashboard:
    return Dashboard(runs, cache, lambda _: 1, list)


@contextmanager
def _served(dashboard: Dashboard) -> Iterator[str]:
    dashboard.start()
    config = uvicorn.Config(create_app(dashboard), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.001)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = server.force_exit = True
    thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _plain(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _median(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _tell(name: str, seconds: float) -> None:
    print(f"| {name} | {1000 * seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
