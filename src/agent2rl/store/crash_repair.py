"""Mends what a harness that died left half done in its run directory. Each step can be done again.

Left alone are the agent's workspace and its HOME. Not covered: what no crash leaves, which is refused.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.records import LedgerEntry, RunResult, RunSpec, Submission
from agent2rl.store import ledger
from agent2rl.store.files import (
    canonical_json_line,
    cut_torn_line,
    remove_tree,
    sha256_file,
    sync_directory,
    write_record,
)
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_events
from agent2rl.store.resume_state import ResumeState


def repair_line_files(paths: RunPaths) -> tuple[tuple[LedgerEntry, ...], tuple[str, ...]]:
    """What the ledger holds, and what was mended in the files that have a record a line."""
    reading, done = ledger.repair_ledger(paths.ledger, paths.ledger_head)
    if reading.fault:
        raise UserError(
            f"The run {paths.run_id} cannot go on: {reading.fault}.",
            "No crash leaves that. Restore the run directory from a copy, or run the experiment anew.",
        )
    for path in (paths.events, paths.usage):
        if cut_torn_line(path):
            done += (f"a line of {path.name} that was cut off is gone",)
    if missing := _add_missing_events(paths, reading.entries):
        done += (f"{missing} ledger records that the timeline lacked were added to it",)
    return reading.entries, done


def _add_missing_events(paths: RunPaths, entries: Sequence[LedgerEntry]) -> int:
    """A record is in the ledger first: the last ones may have come no further. Returns how many."""
    there = (
        Counter(event.kind for event in read_events(paths, [])) if paths.events.exists() else Counter[str]()
    )
    seen: Counter[str] = Counter()
    added = 0
    with paths.events.open("a", encoding="utf-8") as file:
        for entry in entries:
            seen[entry.kind] += 1
            if seen[entry.kind] > there[entry.kind]:
                file.write(canonical_json_line(ledger.make_timeline_event(entry)))
                added += 1
    return added


def _end_last_line(log: Path) -> None:
    """Of what the agent printed; else the first line of the next one would be no line."""
    with log.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            file.write(b"\n")


def repair_files(paths: RunPaths, past: ResumeState) -> Iterator[str]:
    """Bring the files to what the ledger says; tells what was done."""
    for path in sorted(paths.submissions.glob("*")):
        if path.name not in map(str, past.submissions):
            remove_tree(path)
            yield f"{paths.relative_name(path)} is gone: it was never taken in"
    for submission in past.submissions.values():
        where = paths.submission_paths(submission.id)
        where.root.mkdir(parents=True, exist_ok=True)
        if _read_submission(paths, submission.id) != submission:
            write_record(where.record, submission)
            yield f"{paths.relative_name(where.record)} was written"
        if submission.id in past.graded and not submission.kept:
            shutil.rmtree(where.model, ignore_errors=True)
    remove_half_written(paths)
    if not past.started:
        for path in (paths.workspace, paths.revisions, paths.scratch):
            remove_tree(path)
        paths.agent_log.unlink(missing_ok=True)
        return
    if not past.over:
        _end_last_line(paths.agent_log)
    for path in paths.scratch.glob("*"):
        if path != paths.agent_scratch:
            remove_tree(path)
    for lock in paths.revisions.rglob("*.lock"):
        lock.unlink()


def remove_half_written(paths: RunPaths) -> None:
    """Files that a crash or a full disk kept from taking their place."""
    for folder in (paths.root, paths.baseline.root, *paths.submissions.glob("*")):
        for half in folder.glob(".*.new"):
            half.unlink()


def _read_submission(paths: RunPaths, number: int) -> Submission | None:
    try:
        return Submission.model_validate_json(paths.submission_paths(number).record.read_bytes())
    except (OSError, ValidationError):
        return None


def read_spec(paths: RunPaths) -> RunSpec:
    try:
        return RunSpec.model_validate_json(paths.spec.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{paths.spec} cannot be read ({type(error).__name__}).") from error


def restore_result(paths: RunPaths) -> RunResult | None:
    """The result of a run that has one. Where its hash is in the ledger already, it is put in its place."""
    if not paths.result.exists():
        entries, _ = repair_line_files(paths)
        if not entries or entries[-1].kind != "closed":
            return None
        pending = paths.pending_result
        if not pending.exists() or sha256_file(pending) != entries[-1].data["result_sha256"]:
            raise UserError(
                f"The run {paths.run_id} is over, and its result was removed or changed.",
                "`agent2rl show` tells what the rest of the record says.",
            )
        pending.replace(paths.result)
        sync_directory(paths.root)
        remove_tree(paths.scratch)
    try:
        return RunResult.model_validate_json(paths.result.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{paths.result} cannot be read ({type(error).__name__}).") from error
