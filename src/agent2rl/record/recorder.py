"""Write a run directory during the run. A crash at any point leaves a readable record."""

import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.events import MAX_EVENTS, DriverRequest, EventKind, LedgerKind, TimelineEvent
from agent2rl.core.grading_records import (
    Contamination,
    EvalResult,
    Manifest,
    SiblingDistance,
    Split,
    Submission,
)
from agent2rl.core.llm import LlmExchange, LlmUsage
from agent2rl.core.network import NetworkLine, NetworkUsage
from agent2rl.core.records import Record, RunResult, RunSpec
from agent2rl.record.crash_recovery import (
    ResumeState,
    read_resume_state,
    read_spec,
    remove_half_written,
    repair_files,
    repair_line_files,
)
from agent2rl.record.files import (
    append_whole_line,
    canonical_json_line,
    remove_tree,
    sha256_file,
    sync_directory,
    write_json_lines,
    write_record,
)
from agent2rl.record.ledger import Ledger, make_timeline_event
from agent2rl.record.paths import RunPaths, SubmissionPaths, hash_run_files
from agent2rl.record.run_lock import RunLock

logger = logging.getLogger(__name__)

Notify = Callable[[TimelineEvent], None]


class Recorder:
    def __init__(self, paths: RunPaths, notify: Notify, hold: RunLock, resume_state: ResumeState) -> None:
        self.paths = paths
        self.resume_state = resume_state
        self._notify = notify
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(resume_state.events)
        self._hold = hold
        self._events = paths.events.open("a", encoding="utf-8")
        self._sealed = False
        self._ledger = Ledger(paths.ledger, paths.ledger_head)

    @classmethod
    def create(cls, runs: Path, spec: RunSpec, notify: Notify) -> Self:
        """Create a new run directory with its specification."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        agent, task = _shorten_plugin_name(spec.agent), _shorten_plugin_name(spec.task)
        paths = RunPaths((runs / f"{stamp}-{task}-{agent}-{secrets.token_hex(3)}").resolve())
        try:
            paths.root.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise UserError(
                f"Cannot create the run directory {paths.root}: {error.strerror}.",
                "Name a directory that you can write to: --runs-dir DIR.",
            ) from error
        recorder = cls(paths, notify, RunLock(paths.lock), ResumeState())
        write_record(paths.spec, spec)
        recorder._record_opening(spec)
        recorder._hold.start_heartbeat()
        logger.info("Created the run %s in %s", paths.run_id, runs)
        return recorder

    @classmethod
    def open(cls, paths: RunPaths, notify: Notify, hold: RunLock) -> Self:
        """Open the record of a crashed harness after repairing it."""
        entries, repairs = repair_line_files(paths)
        spec = read_spec(paths)
        if entries and entries[0].data["spec_sha256"] != sha256_file(paths.spec):
            raise UserError(f"{paths.spec} was changed: the ledger has another hash.", "Restore it.")
        resume_state = read_resume_state(paths, entries, hold.last_heartbeat)
        repairs = (*repairs, *repair_files(paths, resume_state))
        dead = max(0.0, time.time() - resume_state.last_alive) if resume_state.last_alive else 0.0
        resume_state = replace(
            resume_state, resumed=resume_state.resumed + 1, dead_seconds=resume_state.dead_seconds + dead
        )
        recorder = cls(paths, notify, hold, resume_state)
        if not entries:
            recorder._record_opening(spec)
        recorder.record_entry(
            "resumed",
            run_id=paths.run_id,
            used_seconds=resume_state.used_seconds,
            submission_seconds=resume_state.submission_seconds,
            gpu_seconds=resume_state.gpu_seconds,
            dead_seconds=dead,
            ungraded=len(resume_state.submissions) - len(resume_state.graded),
            mended=list(repairs),
        )
        hold.start_heartbeat()
        logger.info(
            "Opened the run %s again: %.0f s of the budget are used, %d repairs",
            paths.run_id,
            resume_state.used_seconds,
            len(repairs),
        )
        return recorder

    def _record_opening(self, spec: RunSpec) -> None:
        digest = sha256_file(self.paths.spec)
        self.record_entry(
            "opened", run_id=self.paths.run_id, spec_sha256=digest, spec=spec.model_dump(mode="json")
        )

    @property
    def ledger_head(self) -> str:
        return self._ledger.last

    def record_event(self, kind: EventKind, **data: JsonValue) -> None:
        """Record an event on the timeline, unless there are too many of its kind or the run is closing."""
        event = TimelineEvent(time=time.time(), kind=kind, data=data)
        with self._lock:
            self._counts[kind] += 1
            beyond = self._counts[kind] - MAX_EVENTS.get(kind, self._counts[kind])
        # After the lock is released, because this takes it again.
        if beyond == 1:
            self.record_event("warning", text=f"Too many {kind} events. No more are recorded.")
        if beyond > 0:
            return
        with self._lock:
            if not self._sealed:
                self._write_event(event)
        self._notify_watcher(event)

    def record_entry(self, kind: LedgerKind, **data: JsonValue) -> None:
        """Record an entry in the ledger; it is on disk when this returns.

        Its line on the timeline depends only on the ledger, so that `verify` can recognise lines that are
        written after events.jsonl was pinned.
        """
        entry = self._ledger.append(kind, data)
        event = make_timeline_event(entry)
        with self._lock:
            self._counts[kind] += 1
            self._write_event(event)
        self._notify_watcher(event)

    def _write_event(self, event: TimelineEvent) -> None:
        self._events.write(canonical_json_line(event))
        self._events.flush()

    def _notify_watcher(self, event: TimelineEvent) -> None:
        with suppress(Exception):  # an error of a watcher must not stop the run
            self._notify(event)

    def record_start(self, deadline: float, instructions_version: int, gpus: int = 0) -> None:
        """Record that the agent's clock runs.

        The version is that of this start: a later version of the harness may resume the run. So is the number
        of the agent's GPUs. The deadline is the earliest possible one: it can move on the training clock.
        """
        self.record_entry(
            "started",
            deadline=deadline,
            used_seconds=self.resume_state.used_seconds,
            submission_seconds=self.resume_state.submission_seconds,
            gpus=gpus,
            gpu_seconds=self.resume_state.gpu_seconds,
            monotonic=time.monotonic(),
            instructions_version=instructions_version,
        )

    def agent_log_bytes(self) -> int:
        """Return the current size of the agent's log."""
        return self.paths.agent_log.stat().st_size if self.paths.agent_log.exists() else 0

    def record_submission(self, submission: Submission, manifest: Manifest | None) -> None:
        """Record an accepted submission. `verify` detects any later change of it."""
        paths = self.paths.submission_paths(submission.id)
        paths.root.mkdir(parents=True, exist_ok=True)
        digest = write_record(paths.manifest, manifest) if manifest else None
        self.record_entry("submitted", submission=submission.model_dump(mode="json"), manifest_sha256=digest)
        write_record(paths.record, submission)

    def record_verdict(self, submission: Submission) -> None:
        """Record a verdict. The agent gets it only after this returns."""
        self.record_entry("graded", submission=submission.model_dump(mode="json"))
        write_record(self.paths.submission_paths(submission.id).record, submission)

    def drop_copy(self, submission: Submission) -> Submission:
        """Record that a submission's frozen copy is not kept any longer, then delete it."""
        dropped = submission.model_copy(update={"kept": False})
        paths = self.paths.submission_paths(submission.id)
        self.record_entry("dropped", submission=dropped.model_dump(mode="json"))
        write_record(paths.record, dropped)
        shutil.rmtree(paths.model, ignore_errors=True)
        return dropped

    def record_results(
        self,
        where: SubmissionPaths,
        split: Split,
        evaluation: EvalResult,
        measured: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Record the model's answers on a split and the examples without a result.

        `measured` says which run measured them and when, if that may have been another run.
        """
        where.root.mkdir(parents=True, exist_ok=True)
        digest = write_json_lines(where.results_file(split), evaluation.results)
        name = self.paths.relative_name(where.results_file(split))
        extra: dict[str, JsonValue] = {"missing": {**evaluation.missing}} if evaluation.missing else {}
        extra |= {"measured": {**measured}} if measured else {}
        self.record_entry(
            "results", file=name, sha256=digest, n=len(evaluation.results), how={**evaluation.how}, **extra
        )

    def record_lineage(
        self, where: SubmissionPaths, report: Record, siblings: Iterable[SiblingDistance] = ()
    ) -> None:
        """Record the origin of a submission's weights, and its distances to known siblings of the base."""
        digest = write_record(where.lineage, report)
        distances = [each.model_dump(mode="json") for each in siblings]
        name = self.paths.relative_name(where.lineage)
        extra: dict[str, JsonValue] = {"siblings": [*distances]} if distances else {}
        self.record_entry("lineage", file=name, sha256=digest, **extra)

    def record_contamination(self, contamination: Contamination) -> None:
        """Record the result of the contamination search. Only the file has the passages."""
        digest = write_record(self.paths.contamination, contamination)
        name = self.paths.relative_name(self.paths.contamination)
        self.record_entry("contamination", file=name, sha256=digest, **contamination.summary.model_dump())

    def record_exchange(self, exchange: LlmExchange) -> None:
        """Record one request to the driver LLM."""
        with self._lock, self.paths.usage.open("a", encoding="utf-8") as file:
            file.write(exchange.model_dump_json() + "\n")
        request = DriverRequest(
            began=exchange.at,
            seconds=exchange.seconds,
            stalled_seconds=exchange.stalled_seconds,
            outcome=exchange.outcome,
            input=exchange.tokens.input if exchange.tokens else None,
            output=exchange.tokens.output if exchange.tokens else None,
        )
        self.record_event("request", **request.model_dump())

    def record_account(self, path: Path, record: Record | None = None) -> None:
        """Record a file with the agent's own account of its work, after its end."""
        digest = write_record(path, record) if record else sha256_file(path)
        self.record_entry("account", file=self.paths.relative_name(path), sha256=digest)

    def record_usage(self, usage: LlmUsage) -> None:
        """Record the total usage of the driver LLM and the hash of the list of requests."""
        digest = sha256_file(self.paths.usage) if self.paths.usage.exists() else None
        name = self.paths.relative_name(self.paths.usage)
        self.record_entry("usage", file=name, sha256=digest, **usage.model_dump(mode="json"))

    def record_network_line(self, line: NetworkLine) -> None:
        """Record the state of a request to a host outside. If that fails, no part of the line stays."""
        with self._lock:
            append_whole_line(self.paths.network, canonical_json_line(line))

    def record_network_usage(self, usage: NetworkUsage) -> None:
        """Record what the agent did with its network and the hash of the list of requests."""
        digest = sha256_file(self.paths.network) if self.paths.network.exists() else None
        name = self.paths.relative_name(self.paths.network)
        self.record_entry("network", file=name, sha256=digest, **usage.model_dump(mode="json"))

    def close(self, result: RunResult) -> None:
        """Close the record: write the result's hash to the ledger, then move the result into place."""
        digest = write_record(self.paths.pending_result, result)
        self._pin_files()
        self.record_entry("closed", ending=result.ending, result_sha256=digest)
        # Before the result appears: whoever sees it may rely on the timeline.
        os.fsync(self._events.fileno())
        self.paths.pending_result.replace(self.paths.result)
        sync_directory(self.paths.root)
        remove_tree(self.paths.scratch)
        logger.info("Closed the run %s: %s", self.paths.run_id, result.ending)

    def _pin_files(self) -> None:
        """Pin every file that is final. After this, only ledger records are added to the timeline."""
        with self._lock:
            self._sealed = True
        # What an interrupted write left would be pinned too.
        remove_half_written(self.paths)
        run_files = hash_run_files(self.paths)
        digest = write_record(self.paths.files, run_files)
        name = self.paths.relative_name(self.paths.files)
        self.record_entry("files", file=name, sha256=digest, n=len(run_files.files))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._ledger.close()
        self._hold.close()


def _shorten_plugin_name(plugin: str) -> str:
    """Shorten a plugin's name for a run id: the last part of a folder or module, else the head."""
    head, _, argument = plugin.partition(":")
    name = Path(argument).name if head == "folder" or "." in head else head
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40]
