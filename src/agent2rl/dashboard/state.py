"""The state behind the pages: the run index, pending analyses, and server-sent updates."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from markupsafe import Markup

from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.dashboard import rendering, run_status
from agent2rl.dashboard.run_filter import RunFilter
from agent2rl.dashboard.run_index import Level, RunIndex
from agent2rl.dashboard.workers import AnalysisOutcome, AnalysisWorker, DigestFiller
from agent2rl.record.paths import RunPaths
from agent2rl.report.page_signature import read_signed_page

# Server-sent events. One check for changes serves all readers.

CHECK_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
"""Interval of heartbeats, so that proxies do not close the connection."""
LONGEST_SECONDS = 3600.0


class WatchedState:
    """Caches a change stamp, which differs whenever the watched thing has changed."""

    def __init__(self, stamp: Callable[[], str]) -> None:
        self._compute_stamp, self._stamp, self._at = stamp, "", 0.0

    def read_stamp(self) -> str:
        now = time.monotonic()
        if now - self._at >= CHECK_SECONDS:
            self._at = now  # before the check, so that other threads do not check at the same time
            self._stamp = self._compute_stamp()
        return self._stamp


def stream_changes(watched: WatchedState, request: Request) -> Response:
    return StreamingResponse(follow_changes(watched, request.is_disconnected), media_type="text/event-stream")


async def follow_changes(watched: WatchedState, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """Yield an event for each change until the reader disconnects."""
    last, last_heartbeat, deadline = (
        watched.read_stamp(),
        time.monotonic(),
        time.monotonic() + LONGEST_SECONDS,
    )
    yield f"retry: 2000\ndata: {len(last)}\n\n"
    while time.monotonic() < deadline and not await gone():
        stamp = await asyncio.to_thread(watched.read_stamp)
        if stamp != last:
            last, last_heartbeat = stamp, time.monotonic()
            yield "event: changed\ndata: 1\n\n"
        elif time.monotonic() - last_heartbeat > HEARTBEAT_SECONDS:
            last_heartbeat = time.monotonic()
            yield ": heartbeat\n\n"
        await asyncio.sleep(CHECK_SECONDS)


MOST_WATCHED = 1000
MOST_LEADERBOARDS = 8
"""Number of leaderboards whose figures are kept on disk."""


class Dashboard:
    def __init__(
        self, runs: Path, cache: Path, level: Level, tasks: Callable[[], list[TaskTraits]], token: str = ""
    ) -> None:
        self.index = RunIndex(runs, cache, level)
        self._filler = DigestFiller(self.index)
        self.runs, self.token, self._tasks, self._cache_folder = runs, token, tasks, cache
        self.analysis_worker = AnalysisWorker(cache / "dashboard" / "made")
        self.folder = cache / "dashboard" / "leaderboards"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all_runs = WatchedState(lambda: f"{self.index.version} {self.analysis_worker.version}")
        self._watched: dict[str, WatchedState] = {}

    def start(self) -> None:
        self.index.start()
        self._filler.start()

    def close(self) -> None:
        self._filler.close()
        self.index.close()
        self.analysis_worker.close()

    def watch_run(self, name: str) -> WatchedState:
        """Return the change watcher of a run; all readers of the run share it."""
        paths = run_status.find_run(self.runs, name)
        if len(self._watched) > MOST_WATCHED:
            self._watched.clear()
        if name not in self._watched:
            self._watched[name] = WatchedState(
                lambda: (
                    f"{run_status.compute_run_stamp(paths)} {run_status.read_file_size(paths.agent_log)} "
                    f"{self.analysis_worker.version}"
                )
            )
        return self._watched[name]

    def get_analysis(self, name: str) -> dict[str, Any]:
        paths = run_status.find_run(self.runs, name)
        root, stamp = str(paths.root), run_status.compute_run_stamp(paths)
        lasting = paths.result.exists()
        return _build_template_values(
            self.analysis_worker.get_or_start(
                *(f"run {name}", stamp, lasting, _render_run, root, stamp),
                find_ready=lambda: self._read_report(paths) if lasting else None,
            )
        )

    def _read_report(self, paths: RunPaths) -> str | None:
        """Return the report of a run as its page shows it, if it is on disk and this user made it."""
        page = read_signed_page(paths, self._cache_folder)
        return rendering.extract_report(page) if page is not None else None

    def get_time_window(self, name: str, since: float, until: float) -> dict[str, Any]:
        """Return the analysis of a part of a run's time; `until` 0 means its end."""
        paths = run_status.find_run(self.runs, name)
        stamp, key = run_status.compute_run_stamp(paths), f"window {name} {since} {until}"
        arguments = (str(paths.root), stamp, str(since), str(until))
        return _build_template_values(
            self.analysis_worker.get_or_start(key, stamp, False, _render_time_window, *arguments)
        )

    def get_training_curves(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the training curves of several runs in one figure."""
        runs = [run_status.find_run(self.runs, name) for name in names]
        stamp = " ".join(map(run_status.compute_run_stamp, runs))
        lasting = all(paths.result.exists() for paths in runs)
        roots = json.dumps([str(paths.root) for paths in runs])
        key = f"trainings {' '.join(names)}"
        return _build_template_values(
            self.analysis_worker.get_or_start(key, stamp, lasting, _render_trainings, roots)
        )

    def get_leaderboard(
        self, choice: RunFilter, protocol: str, include_contaminated: bool = False
    ) -> dict[str, Any]:
        """Return the report of the selected runs; its figures are in a folder of their own."""
        query = choice.build_query(limit=None)
        contaminated = "included" if include_contaminated else "left out"
        stamp = self.index.compute_fingerprint(query, protocol, contaminated)
        tasks = json.dumps([asdict(task) for task in self._tasks()])
        arguments = (
            str(self.index.path),
            str(self.runs),
            query.text,
            tasks,
            protocol,
            contaminated,
            str(self.folder / stamp),
        )
        key = f"runs {query.text} {protocol} {contaminated}"
        outcome = self.analysis_worker.get_or_start(key, stamp, False, _render_leaderboard, *arguments)
        self._remove_old_leaderboards()
        return _build_template_values(outcome)

    def _remove_old_leaderboards(self) -> None:
        with suppress(OSError):  # another server may clear the folder at the same time
            old = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in old[MOST_LEADERBOARDS:]:
                shutil.rmtree(path, ignore_errors=True)


# These run in the worker process. They import the analysis lazily, because it loads matplotlib, which takes a
# second and which the server does not need.
def _render_run(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.render_run(*arguments)


def _render_time_window(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.render_time_window(*arguments)


def _render_trainings(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.render_trainings(*arguments)


def _render_leaderboard(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.render_leaderboard(*arguments)


def _build_template_values(outcome: AnalysisOutcome) -> dict[str, Any]:
    text = Markup(outcome.text) if outcome.text is not None else None
    return {"text": text, "fresh": outcome.fresh, "fault": outcome.fault, "progress": outcome.progress}
