"""One run, as far as it can be told at once: no analysis, however many events there are."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.records import ExampleResult, Split, Submission
from agent2rl.dashboard import run_directory_check
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import RunView, read_results, read_run

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LOG_BYTES = 64 << 10


def find_run(runs: Path, name: str) -> RunPaths:
    """A run by its whole id. Nothing outside of the runs directory is one, however it is named or linked."""
    root = runs / name
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a run.")
    paths = RunPaths(root)
    try:
        if not paths.spec.is_file():
            raise UserError(f"There is no run {name!r} here.")
        if root.is_symlink():
            raise UserError(f"{name!r} is a link: it is not shown.")
        if fault := run_directory_check.find_fault(paths):
            raise UserError(f"{name!r} {fault}: it is not shown.")
    except OSError as error:
        raise UserError(f"{name!r} cannot be read: {error.strerror}.") from error
    return paths


@dataclass(frozen=True)
class LiveRunStatus:
    """A run at this moment."""

    view: RunView
    began: float | None
    """When the agent started, in seconds since the epoch."""
    used: float | None
    """Of the budget, in seconds; None before the agent's start."""
    deadline: float | None
    """When it ends, where the agent is at work."""
    best: Submission | None
    log: str
    """The end of what the agent printed."""

    @property
    def scored(self) -> int:
        return sum(each.score is not None for each in self.view.submissions)

    @property
    def rejected(self) -> int:
        return sum(each.verdict in ("rejected", "failed") for each in self.view.submissions)

    @property
    def waiting(self) -> int:
        return sum(each.verdict is None for each in self.view.submissions)


def read_live_status(paths: RunPaths, now: float | None = None) -> LiveRunStatus:
    view = read_run(paths)
    moment = time.time() if now is None else now
    starts = [each for each in view.chain.entries if each.kind == "started"]
    began = starts[0].time if starts else None
    deadline = starts[-1].data.get("deadline") if starts and view.state == "running" else None
    ends = float(deadline) if isinstance(deadline, int | float) else None
    used: float | None = None
    if view.result and view.result.clock:
        used = view.result.clock.agent
    elif ends is not None:
        used = min(view.spec.budget.wall_seconds, max(0.0, view.spec.budget.wall_seconds - (ends - moment)))
    scored = [each for each in view.submissions if each.score and each.lineage not in ("copied", "foreign")]
    best = max(scored, key=lambda each: each.score.value if each.score else 0.0, default=None)
    if view.result:
        best = view.result.best
    return LiveRunStatus(
        view, began, used, ends if ends and ends > moment else None, best, read_file_tail(paths.agent_log)
    )


def compute_run_stamp(paths: RunPaths) -> str:
    """Differs whenever the analysis might."""
    sizes = []
    for path in (paths.ledger_head, paths.events, paths.usage, paths.result, paths.claims, paths.transcript):
        try:
            found = path.stat()
            sizes.append(f"{found.st_mtime_ns}-{found.st_size}")
        except OSError:
            sizes.append("")
    return " ".join(sizes)


def read_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def read_file_tail(path: Path, most: int = LOG_BYTES) -> str:
    """The end of a file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - most))
            text = file.read(most).decode(errors="replace")
    except OSError:
        return ""
    return text if size <= most else text.partition("\n")[2]


def read_answers(paths: RunPaths, submission: int, split: Split) -> list[ExampleResult]:
    """What a submission answered, 0 being the untouched model; nothing where it was not graded there."""
    where = paths.submission_paths(submission) if submission else paths.baseline
    path = where.results_file(split)
    if not path.resolve().is_relative_to(paths.root.resolve()):
        raise UserError(f"{path.name} is a link to elsewhere: it is not shown.")
    try:
        return read_results(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} of submission {submission} cannot be read: it is damaged.") from error
