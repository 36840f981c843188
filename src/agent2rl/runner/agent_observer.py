"""Notes on the timeline what the agent's processes do, seen from outside: who they are, what they use, and
which weights and logs they leave in the workspace.

A thread of its own does it. The one that keeps the sandbox's limits only hands over what it has seen, so that
neither a process whose command line cannot be read, nor a driver of a GPU, nor a tree of files can hold it
up. What goes wrong here is noted, and costs the rest of these notes and nothing else.
"""

import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Self

from agent2rl.core.events import ResourceSample
from agent2rl.core.sandbox import Process
from agent2rl.runner.nvidia_gpus import GpuSampler
from agent2rl.runner.process_monitor import ProcessMonitor
from agent2rl.store.recorder import Recorder
from agent2rl.store.workspace_watcher import WorkspaceWatcher

FIRST_SAMPLE_SECONDS, SAMPLE_SECONDS = 1.0, 10.0
SAMPLE_SHARE = 20
"""Samples are taken so often in the time so far, until they are `SAMPLE_SECONDS` apart: a run of a minute is
seen as well as one of a day."""
GPU_SECONDS, FILE_SECONDS = 2.0, 5.0
SHARE = 200
"""Looking for files takes this part of the time at most."""
TURN_SECONDS, PATIENCE_SECONDS = 0.5, 20.0
MOST_WAITING = 100
MOST_LOGS = 1000
"""Told in one run: they must not take the place of weights."""
LOGS_FULL = "More changes of log files than are recorded: none from here on."


@dataclass(frozen=True)
class _ProcessSnapshot:
    at: float
    clock: float
    members: tuple[Process, ...]
    disk_bytes: int | None


@dataclass
class _PendingSample:
    """What is to be told with the next sample."""

    since: float
    due: float
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    processes: int = 0
    disk_bytes: int | None = None

    @classmethod
    def from_snapshot(cls, look: _ProcessSnapshot) -> Self:
        """From the first process on."""
        oldest = min((each.began for each in look.members), default=look.at)
        return cls(look.clock - max(0.0, look.at - oldest), look.clock + FIRST_SAMPLE_SECONDS)


class AgentObserver:
    """Called by the sandbox with what it sees (`Enclosure.seen`)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks: Queue[_ProcessSnapshot] = Queue(MOST_WAITING)
        self._over = threading.Event()
        self._lives = ProcessMonitor(recorder)
        self._files = WorkspaceWatcher(recorder.paths.workspace, recorder.past.files)
        self._load: _PendingSample | None = None
        self._gpus_due = self._files_due = 0.0
        self._since = time.monotonic()
        self._logs = 0

    def __call__(self, members: Sequence[Process], disk_bytes: int | None) -> None:
        with suppress(Full):  # it is stuck, or broken
            self._looks.put_nowait(
                _ProcessSnapshot(time.time(), time.monotonic(), tuple(members), disk_bytes)
            )

    @contextmanager
    def observe_agent(self) -> Iterator[None]:
        """While the agent works. Whatever it does not end in time is left to itself."""
        thread = threading.Thread(target=self._observe_until_over, name="timeline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                text = "The agent's processes could not be observed to the end: something did not answer."
                self._recorder.record_event("warning", text=text)

    def _observe_until_over(self) -> None:
        try:
            gpus = GpuSampler()
            while not self._over.is_set() or not self._looks.empty():
                with suppress(Empty):
                    self._handle_snapshot(self._looks.get(timeout=TURN_SECONDS), gpus)
                self._poll_gpus_and_files(gpus)
            self._handle_snapshot(_ProcessSnapshot(time.time(), time.monotonic(), (), None), gpus)
            self._record_file_changes(last=True)
        except Exception:
            with suppress(ValueError):  # nobody waited, and the record is closed
                self._recorder.record_event(
                    "fault", where="observing the agent", trace=traceback.format_exc()
                )

    def _handle_snapshot(self, look: _ProcessSnapshot, gpus: GpuSampler) -> None:
        used = self._lives.update_processes(look.members, look.at)
        load = self._load or _PendingSample.from_snapshot(look)
        load.cpu_seconds += used
        load.disk_bytes = load.disk_bytes if look.disk_bytes is None else look.disk_bytes
        if look.members:
            self._load = load
            load.processes = len(look.members)
            load.resident_bytes = sum(each.resident_bytes for each in look.members)
        if self._load and (look.clock >= load.due or not look.members):
            self._record_sample(load, look, gpus)

    def _record_sample(self, load: _PendingSample, look: _ProcessSnapshot, gpus: GpuSampler) -> None:
        """Now and then, and when a sandbox is over."""
        seconds = max(look.clock - load.since, 1e-3)
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
        apart = (look.clock - self._since) / SAMPLE_SHARE
        due = look.clock + min(max(FIRST_SAMPLE_SECONDS, apart), SAMPLE_SECONDS)
        self._load = _PendingSample(look.clock, due, disk_bytes=load.disk_bytes) if look.members else None

    def _poll_gpus_and_files(self, gpus: GpuSampler) -> None:
        """What is done now and then."""
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
            self._logs += seen.what == "log"
            if seen.what == "weights" or self._logs <= MOST_LOGS:
                self._recorder.record_event("file", **seen.model_dump())
            elif self._logs == MOST_LOGS + 1:
                self._recorder.record_event("warning", text=LOGS_FULL)
