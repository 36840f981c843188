"""The state behind the pages: the run index, pending analyses, and server-sent updates."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from markupsafe import Markup

from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.dashboard import run_status
from agent2rl.dashboard.run_filter import RunFilter
from agent2rl.dashboard.run_index import Level, RunIndex
from agent2rl.dashboard.workers import AnalysisOutcome, AnalysisWorker, DigestFiller

# Server-sent events: what changed, for however many are watching. One look serves all of them.

LOOK_SECONDS = 0.5
BEAT_SECONDS = 15.0
"""A sign of life, so that nobody between takes the line for dead."""
LONGEST_SECONDS = 3600.0


class WatchedState:
    """Something that has a stamp, which differs whenever it has changed."""

    def __init__(self, stamp: Callable[[], str]) -> None:
        self._look, self._stamp, self._at = stamp, "", 0.0

    def read_stamp(self) -> str:
        now = time.monotonic()
        if now - self._at >= LOOK_SECONDS:
            self._at = now  # before the look, so that nobody looks beside it
            self._stamp = self._look()
        return self._stamp


def stream_changes(watched: WatchedState, request: Request) -> Response:
    return StreamingResponse(follow_changes(watched, request.is_disconnected), media_type="text/event-stream")


async def follow_changes(watched: WatchedState, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """A line for each change, from the first on, until the reader is gone."""
    last, beat, ends = watched.read_stamp(), time.monotonic(), time.monotonic() + LONGEST_SECONDS
    yield f"retry: 2000\ndata: {len(last)}\n\n"
    while time.monotonic() < ends and not await gone():
        stamp = await asyncio.to_thread(watched.read_stamp)
        if stamp != last:
            last, beat = stamp, time.monotonic()
            yield "event: changed\ndata: 1\n\n"
        elif time.monotonic() - beat > BEAT_SECONDS:
            beat = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)


MOST_WATCHED = 1000
MOST_MADE = 8
"""Leaderboards whose figures are kept."""


class Dashboard:
    def __init__(
        self, runs: Path, cache: Path, level: Level, tasks: Callable[[], list[TaskTraits]], token: str = ""
    ) -> None:
        self.index = RunIndex(runs, cache, level)
        self._filler = DigestFiller(self.index)
        self.runs, self.token, self._tasks = runs, token, tasks
        self.workshop = AnalysisWorker(cache / "dashboard" / "made")
        self.folder = cache / "dashboard" / "leaderboards"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all_runs = WatchedState(lambda: f"{self.index.version} {self.workshop.version}")
        self._watched: dict[str, WatchedState] = {}

    def start(self) -> None:
        self.index.start()
        self._filler.start()

    def close(self) -> None:
        self._filler.close()
        self.index.close()
        self.workshop.close()

    def watch_run(self, name: str) -> WatchedState:
        """One for each run that somebody looks at."""
        paths = run_status.find_run(self.runs, name)
        if len(self._watched) > MOST_WATCHED:
            self._watched.clear()
        if name not in self._watched:
            self._watched[name] = WatchedState(
                lambda: (
                    f"{run_status.compute_run_stamp(paths)} {run_status.read_file_size(paths.agent_log)} "
                    f"{self.workshop.version}"
                )
            )
        return self._watched[name]

    def get_analysis(self, name: str) -> dict[str, Any]:
        paths = run_status.find_run(self.runs, name)
        root, stamp = str(paths.root), run_status.compute_run_stamp(paths)
        lasting = paths.result.exists()
        return _build_template_values(
            self.workshop.get_or_start(f"run {name}", stamp, lasting, _render_run, root, stamp)
        )

    def get_time_window(self, name: str, since: float, until: float) -> dict[str, Any]:
        """A part of a run's time; `until` 0 is its end."""
        paths = run_status.find_run(self.runs, name)
        stamp, key = run_status.compute_run_stamp(paths), f"window {name} {since} {until}"
        given = (str(paths.root), stamp, str(since), str(until))
        return _build_template_values(
            self.workshop.get_or_start(key, stamp, False, _render_time_window, *given)
        )

    def get_leaderboard(
        self, choice: RunFilter, protocol: str, include_contaminated: bool = False
    ) -> dict[str, Any]:
        """The report of the runs that are chosen; figures lie in a folder of their own."""
        asked = choice.build_query(limit=None)
        contaminated = "included" if include_contaminated else "left out"
        stamp = self.index.compute_fingerprint(asked, protocol, contaminated)
        tasks = json.dumps([asdict(each) for each in self._tasks()])
        given = (str(self.index.path), asked.text, tasks, protocol, contaminated, str(self.folder / stamp))
        key = f"runs {asked.text} {protocol} {contaminated}"
        found = self.workshop.get_or_start(key, stamp, False, _render_leaderboard, *given)
        self._remove_old_leaderboards()
        return _build_template_values(found)

    def _remove_old_leaderboards(self) -> None:
        with suppress(OSError):  # another reader clears them, too
            old = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in old[MOST_MADE:]:
                shutil.rmtree(path, ignore_errors=True)


# Run in the worker process. They import the analysis themselves: it loads matplotlib, which takes the server
# a second that it does not need.
def _render_run(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.of_run(*arguments)


def _render_time_window(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.of_window(*arguments)


def _render_leaderboard(*arguments: str) -> str:
    from agent2rl.dashboard import analysis

    return analysis.of_runs(*arguments)


def _build_template_values(found: AnalysisOutcome) -> dict[str, Any]:
    text = Markup(found.text) if found.text is not None else None
    return {"text": text, "fresh": found.fresh, "fault": found.fault, "progress": found.progress}
