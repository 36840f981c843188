"""What the pages are made of: the index of runs, and what is made of them in a process apart."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agent2rl.analysis.campaigns.shares import Traits
from agent2rl.dashboard import live, run
from agent2rl.dashboard.choice import Choice
from agent2rl.dashboard.filling import Filler
from agent2rl.dashboard.index import Index, Level
from agent2rl.dashboard.worker import Outcome, Workshop

WORK = "agent2rl.dashboard.analysis"
"""What is loaded only where it is done."""
MOST_WATCHED = 1000
MOST_MADE = 8
"""Leaderboards whose figures are kept."""


class Dashboard:
    def __init__(
        self, runs: Path, cache: Path, level: Level, tasks: Callable[[], list[Traits]], token: str = ""
    ) -> None:
        self.index = Index(runs, cache, level)
        self._filler = Filler(self.index)
        self.runs, self.token, self._tasks = runs, token, tasks
        self.workshop = Workshop(cache / "dashboard" / "made")
        self.folder = cache / "dashboard" / "leaderboards"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all_runs = live.Watched(lambda: f"{self.index.version} {self.workshop.version}")
        self._watched: dict[str, live.Watched] = {}

    def start(self) -> None:
        self.index.start()
        self._filler.start()

    def close(self) -> None:
        self._filler.close()
        self.index.close()
        self.workshop.close()

    def watched(self, name: str) -> live.Watched:
        """One for each run that somebody looks at."""
        paths = run.find(self.runs, name)
        if len(self._watched) > MOST_WATCHED:
            self._watched.clear()
        if name not in self._watched:
            self._watched[name] = live.Watched(
                lambda: f"{run.stamp(paths)} {run.size(paths.agent_log)} {self.workshop.version}"
            )
        return self._watched[name]

    def analysed(self, name: str) -> dict[str, Any]:
        paths = run.find(self.runs, name)
        root, stamp = str(paths.root), run.stamp(paths)
        lasting = paths.result.exists()
        return _told(self.workshop.ask(f"run {name}", stamp, lasting, f"{WORK}:of_run", root, stamp))

    def window(self, name: str, since: float, until: float) -> dict[str, Any]:
        """A part of a run's time; `until` 0 is its end."""
        paths = run.find(self.runs, name)
        stamp, key = run.stamp(paths), f"window {name} {since} {until}"
        given = (str(paths.root), stamp, str(since), str(until))
        return _told(self.workshop.ask(key, stamp, False, f"{WORK}:of_window", *given))

    def together(self, choice: Choice, protocol: str, include_contaminated: bool = False) -> dict[str, Any]:
        """The report of the runs that are chosen; figures lie in a folder of their own."""
        asked = choice.asked(limit=None)
        contaminated = "included" if include_contaminated else "left out"
        stamp = self.index.fingerprint(asked, protocol, contaminated)
        tasks = json.dumps([asdict(each) for each in self._tasks()])
        given = (str(self.index.path), asked.text, tasks, protocol, contaminated, str(self.folder / stamp))
        key = f"runs {asked.text} {protocol} {contaminated}"
        found = self.workshop.ask(key, stamp, False, f"{WORK}:of_runs", *given)
        self._clear()
        return _told(found)

    def _clear(self) -> None:
        with suppress(OSError):  # another reader clears them, too
            old = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in old[MOST_MADE:]:
                shutil.rmtree(path, ignore_errors=True)


def _told(found: Outcome) -> dict[str, Any]:
    text = Markup(found.text) if found.text is not None else None
    return {"text": text, "fresh": found.fresh, "fault": found.fault, "progress": found.progress}
