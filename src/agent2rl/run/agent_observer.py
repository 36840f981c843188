"""Watch the agent while it works.

Its processes, resource use, weight and log files go onto the timeline, and each change of its code becomes a
revision.

The agent decides how many there are and how they are named, so both are bounded.

File events report changes, and periodic polling finds changes without an event. Changes in quick succession
become one revision, and the more revisions there are, the longer the next one waits.

This runs on its own thread. The thread that enforces the sandbox's limits only hands over its snapshots, so a
blocked command line, GPU driver or file tree cannot delay it. An error here is recorded and ends only this
observation.
"""

import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Self

from agent2rl.core.events import ProcessEnd, ProcessStart, ResourceSample
from agent2rl.core.sandbox import Mount, Process
from agent2rl.record import untrusted_files
from agent2rl.record.recorder import Recorder
from agent2rl.record.revisions import Revision, RevisionRecorder
from agent2rl.record.untrusted_files import sanitize_line
from agent2rl.record.workspace_reader import CODE, WorkspaceReader, WorkspaceWatcher, read_brought_files
from agent2rl.run.machine import GpuSampler
from agent2rl.run.process_commands import (
    GIVEN_VARIABLE,
    LONGEST_COMMAND,
    CommandLine,
    read_command_line,
    select_variables,
)
from agent2rl.system.unix import inotify_simple

# The agent's processes: starts, ends and resource use between snapshots.

MOST_EVENTS, MOST_BRIEF, MOST_BUSY = 20_000, 2_000, 5_000
"""Limits of one run: all events; processes seen in only one snapshot; and, beyond the first limit, processes
that are busy for long."""
BUSY_SECONDS = 5.0
MOST_NAMES = 3
"""Recorded commands of one process, which may replace its program with exec."""
PROCESSES_FULL = "Too many processes. From here on only long-running busy ones are recorded."
FEW = "Too many short processes. From here on only those seen in two snapshots are recorded."


@dataclass
class _MonitoredProcess:
    """The observed state of one process."""

    last: Process
    seen_at: float
    command: CommandLine
    peak_bytes: int
    times_recorded: int = 0
    """How often its command was recorded."""
    name: str = ""
    """The command at that time."""
    already_counted_seconds: float = 0.0
    """CPU time of ended children, which `waited_seconds` has too once this process has waited for them."""


class ProcessMonitor:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._processes: dict[int, _MonitoredProcess] = {}
        self._room, self._brief_room, self._busy_room = MOST_EVENTS, MOST_BRIEF, MOST_BUSY
        self._given: Mapping[str, str] | None = None
        """The environment that the agent was started with."""
        self._warned: set[str] = set()

    def update_processes(self, members: Sequence[Process], at: float) -> float:
        """Update from the live processes and return the CPU seconds used since the last snapshot."""
        alive = {each.pid: each.began for each in members}
        gone = [
            monitored.last
            for pid, monitored in self._processes.items()
            if alive.get(pid) != monitored.last.began
        ]
        # Children first: their time goes to their parents.
        for last in sorted(gone, key=lambda process: process.began, reverse=True):
            self._record_exit(self._processes.pop(last.pid))
        return sum(self._update_process(each, at) for each in members)

    def _update_process(self, process: Process, at: float) -> float:
        monitored = self._processes.get(process.pid)
        if monitored is None:
            command = read_command_line(process.pid) if self._brief_room else CommandLine()
            self._processes[process.pid] = _MonitoredProcess(process, at, command, process.resident_bytes)
            # What it used before it was first seen belongs to this interval too.
            return process.cpu_seconds + process.waited_seconds
        waited = process.waited_seconds - monitored.last.waited_seconds
        used = (
            process.cpu_seconds
            - monitored.last.cpu_seconds
            + max(0.0, waited - monitored.already_counted_seconds)
        )
        monitored.already_counted_seconds = max(0.0, monitored.already_counted_seconds - waited)
        monitored.last, monitored.seen_at = process, at
        monitored.peak_bytes = max(monitored.peak_bytes, process.resident_bytes)
        self._record_command_changes(monitored)
        return used

    def _record_command_changes(self, monitored: _MonitoredProcess) -> None:
        """Record a command at its second snapshot: before exec, a process has its parent's command line."""
        if monitored.times_recorded == 0:
            if self._reserve_event_slots(monitored):
                command = read_command_line(monitored.last.pid)
                monitored.command = command if command.text else monitored.command
                self._record_start(monitored)
        elif monitored.name != monitored.last.name and monitored.times_recorded < MOST_NAMES:
            command = read_command_line(monitored.last.pid)
            if (
                command.text
                and command.text != monitored.command.text
                and self._reserve_event_slots(monitored)
            ):
                monitored.command = command
                self._record_start(monitored)
            monitored.name = monitored.last.name

    def _record_exit(self, monitored: _MonitoredProcess) -> None:
        last = monitored.last
        if monitored.times_recorded == 0 and not self._brief_room:
            self._warn_once(FEW)
        elif monitored.times_recorded == 0 and self._reserve_event_slots(monitored):
            self._brief_room -= 1
            self._record_start(monitored)
        if monitored.times_recorded:
            gone = ProcessEnd(
                pid=last.pid,
                began=last.began,
                seconds=max(0.0, monitored.seen_at - last.began),
                cpu_seconds=last.cpu_seconds,
                peak_bytes=monitored.peak_bytes,
            )
            self._recorder.record_event("left", **gone.model_dump())
        if parent := self._processes.get(last.parent):
            parent.already_counted_seconds += (
                last.cpu_seconds + last.waited_seconds + monitored.already_counted_seconds
            )

    def _reserve_event_slots(self, monitored: _MonitoredProcess) -> bool:
        """Reserve events for the start and the end of a process."""
        if self._room >= 2:
            self._room -= 2
            return True
        self._warn_once(PROCESSES_FULL)
        if monitored.last.cpu_seconds < BUSY_SECONDS or self._busy_room < 2:
            return False
        self._busy_room -= 2
        return True

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._recorder.record_event("warning", text=text)

    def _record_start(self, monitored: _MonitoredProcess) -> None:
        last = monitored.last
        monitored.times_recorded, monitored.name = monitored.times_recorded + 1, last.name
        name = sanitize_line(last.name, LONGEST_COMMAND)
        command = monitored.command
        if self._given is None and GIVEN_VARIABLE in (command.environment or {}):  # the agent itself
            self._given = command.environment
        began = ProcessStart(
            pid=last.pid,
            began=last.began,
            parent=last.parent,
            name=name,
            command=command.text or f"[{name}]",
            exact=command.exact,
            directory=command.directory,
            environment=select_variables(self._given, command.environment),
        )
        self._recorder.record_event("began", **began.model_dump())


# Revisions of the agent's code, taken whenever it changes.

QUIET_SECONDS, POLL_SECONDS, REVISION_TURN_SECONDS = 0.3, 15.0, 0.25
EACH_SECONDS = 0.02
"""Additional delay of the next revision for each existing one."""
MOST_WATCHED = 256
CODE_FULL = "Too much code to record. From here on only the hashes of large files are kept."


class RevisionWatcher:
    """Takes revisions of the agent's code."""

    def __init__(self, recorder: Recorder, given: frozenset[str]) -> None:
        self._recorder = recorder
        self._reader = WorkspaceReader(recorder.paths.workspace, given)
        self._revisions = RevisionRecorder(recorder.paths.revisions, self._reader)
        self._last_number = recorder.resume_state.revisions
        self._warned = False
        self._noting = threading.Lock()
        self._ended = threading.Event()

    def take_revision(self, reason: str) -> Revision:
        """Take a revision of the current code, and record it if it is new."""
        revision = self._revisions.take_revision(reason)
        with self._noting:
            new, self._last_number = (
                revision.number > self._last_number,
                max(revision.number, self._last_number),
            )
            full = self._revisions.full and not self._warned
            self._warned = self._warned or full
        if new:
            self._recorder.record_event("revision", **revision.model_dump())
        if full:
            self._recorder.record_event("warning", text=CODE_FULL)
        return revision

    def pin_submission(self, submission: int) -> None:
        """Pin the code of a submission before it is graded."""
        revision = self.take_revision(f"submission {submission}")
        printed = self._recorder.agent_log_bytes()
        self._recorder.record_entry(
            "revision_of", submission=submission, log_bytes=printed, **revision.model_dump()
        )

    @contextmanager
    def watch_workspace(self, brings: Sequence[Mount] = ()) -> Iterator[None]:
        """Take revisions from the start to the end of the agent's time.

        The agent's own mounted files are read once, because they are read-only.
        """
        self._reader.brought = read_brought_files([(mount.source, mount.target) for mount in brings])
        self.take_revision(
            "when the run was resumed" if self._recorder.resume_state.started else "as it was given"
        )
        thread = threading.Thread(target=self._watch_until_end, name="revisions", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            last = self.take_revision("as it was left")
            self._recorder.record_entry("revisions", head=last.commit, number=last.number)
            self.close()

    def close(self) -> None:
        self._revisions.close()

    def _watch_until_end(self) -> None:
        try:
            with inotify_simple.INotify() as events:
                while not self._ended.is_set():
                    self._add_watches(events, self._reader.folders)
                    if self._wait_for_change(events):
                        self.take_revision("changed")
                        self._ended.wait(EACH_SECONDS * self._last_number)
        except Exception:  # then only submissions are pinned
            self._recorder.record_event("fault", where="watching code", trace=traceback.format_exc())

    def _add_watches(self, events: "inotify_simple.INotify", folders: Iterable[tuple[bytes, ...]]) -> None:
        # Scripts elsewhere are found when the next poll is due.
        code = [path for path in folders if not path or path[0] == CODE.encode()]
        flags = inotify_simple.flags
        changes = flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE
        for path in code[:MOST_WATCHED]:
            with suppress(OSError), untrusted_files.open_folder(self._reader.root, path) as descriptor:
                # By the descriptor: at the path there may be a link by now.
                events.add_watch(f"/proc/self/fd/{descriptor}", changes | flags.ONLYDIR)

    def _wait_for_change(self, events: "inotify_simple.INotify") -> bool:
        """Wait until something changed and then stayed unchanged for a moment, or until the next poll."""
        until = time.monotonic() + POLL_SECONDS
        while not self._ended.is_set() and time.monotonic() < until:
            if events.read(timeout=int(1000 * REVISION_TURN_SECONDS)):
                while events.read(timeout=int(1000 * QUIET_SECONDS)) and time.monotonic() < until:
                    pass
                break
        return not self._ended.is_set()


FIRST_SAMPLE_SECONDS, SAMPLE_SECONDS = 1.0, 10.0
SAMPLE_SHARE = 20
"""Number of samples in the time so far, until they are `SAMPLE_SECONDS` apart. So short runs have enough
samples too."""
GPU_SECONDS, FILE_SECONDS = 2.0, 5.0
SHARE = 200
"""Polling for files takes at most this fraction (one in ...) of the time."""
TURN_SECONDS, PATIENCE_SECONDS = 0.5, 20.0
MOST_WAITING = 100
MOST_LOGS = 1000
"""Log events of one run, so that they do not displace events about weights."""
LOGS_FULL = "Too many changes of log files. No more are recorded."


@dataclass(frozen=True)
class _ProcessSnapshot:
    at: float
    clock: float
    members: tuple[Process, ...]
    disk_bytes: int | None


@dataclass
class _PendingSample:
    """Data of the next sample."""

    since: float
    due: float
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    processes: int = 0
    disk_bytes: int | None = None

    @classmethod
    def from_snapshot(cls, snapshot: _ProcessSnapshot) -> Self:
        """Start at the first process."""
        oldest = min((each.began for each in snapshot.members), default=snapshot.at)
        return cls(snapshot.clock - max(0.0, snapshot.at - oldest), snapshot.clock + FIRST_SAMPLE_SECONDS)


class AgentObserver:
    """Called by the sandbox with process snapshots (`Enclosure.process_observer`)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._snapshots: Queue[_ProcessSnapshot] = Queue(MOST_WAITING)
        self._ended = threading.Event()
        self._monitor = ProcessMonitor(recorder)
        self._files = WorkspaceWatcher(recorder.paths.workspace, recorder.resume_state.files)
        self._load: _PendingSample | None = None
        self._gpus_due = self._files_due = 0.0
        self._since = time.monotonic()
        self._logs = 0

    def __call__(self, members: Sequence[Process], disk_bytes: int | None) -> None:
        with suppress(Full):  # the observer's thread is blocked or has failed
            self._snapshots.put_nowait(
                _ProcessSnapshot(time.time(), time.monotonic(), tuple(members), disk_bytes)
            )

    @contextmanager
    def observe_agent(self) -> Iterator[None]:
        """Observe inside the context. A thread that does not end in time is abandoned."""
        thread = threading.Thread(target=self._observe_until_end, name="timeline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                text = "The observation of the agent's processes did not finish in time."
                self._recorder.record_event("warning", text=text)

    def _observe_until_end(self) -> None:
        try:
            gpus = GpuSampler()
            while not self._ended.is_set() or not self._snapshots.empty():
                with suppress(Empty):
                    self._handle_snapshot(self._snapshots.get(timeout=TURN_SECONDS), gpus)
                self._poll_gpus_and_files(gpus)
            # An empty snapshot ends everything that is still known to run.
            self._handle_snapshot(_ProcessSnapshot(time.time(), time.monotonic(), (), None), gpus)
            self._record_file_changes(last=True)
        except Exception:
            with suppress(ValueError):  # the run did not wait, and the record is closed
                self._recorder.record_event(
                    "fault", where="observing the agent", trace=traceback.format_exc()
                )

    def _handle_snapshot(self, snapshot: _ProcessSnapshot, gpus: GpuSampler) -> None:
        used = self._monitor.update_processes(snapshot.members, snapshot.at)
        load = self._load or _PendingSample.from_snapshot(snapshot)
        load.cpu_seconds += used
        load.disk_bytes = load.disk_bytes if snapshot.disk_bytes is None else snapshot.disk_bytes
        if snapshot.members:
            self._load = load
            load.processes = len(snapshot.members)
            load.resident_bytes = sum(each.resident_bytes for each in snapshot.members)
        if self._load and (snapshot.clock >= load.due or not snapshot.members):
            self._record_sample(load, snapshot, gpus)

    def _record_sample(self, load: _PendingSample, snapshot: _ProcessSnapshot, gpus: GpuSampler) -> None:
        """Record a sample periodically and at the end of a sandbox."""
        seconds = max(snapshot.clock - load.since, 1e-3)
        sample = ResourceSample(
            seconds=seconds,
            cores=load.cpu_seconds / seconds,
            resident_bytes=load.resident_bytes,
            processes=load.processes,
            disk_bytes=load.disk_bytes,
            log_bytes=self._recorder.agent_log_bytes(),
            gpus=gpus.take_averages(),
        )
        self._recorder.record_event("sample", **sample.model_dump(mode="json"))
        apart = (snapshot.clock - self._since) / SAMPLE_SHARE
        due = snapshot.clock + min(max(FIRST_SAMPLE_SECONDS, apart), SAMPLE_SECONDS)
        self._load = (
            _PendingSample(snapshot.clock, due, disk_bytes=load.disk_bytes) if snapshot.members else None
        )

    def _poll_gpus_and_files(self, gpus: GpuSampler) -> None:
        """Do the periodic polling."""
        now = time.monotonic()
        if now >= self._gpus_due:
            gpus.read_gpus()
            self._gpus_due = now + GPU_SECONDS
        if now >= self._files_due:
            self._record_file_changes()
            done = time.monotonic()
            self._files_due = done + max(FILE_SECONDS, SHARE * (done - now))

    def _record_file_changes(self, last: bool = False) -> None:
        for seen in self._files.find_changes(last):
            self._logs += seen.what != "weights"
            if seen.what == "weights" or self._logs <= MOST_LOGS:
                self._recorder.record_event("file", **seen.model_dump())
            elif self._logs == MOST_LOGS + 1:
                self._recorder.record_event("warning", text=LOGS_FULL)
