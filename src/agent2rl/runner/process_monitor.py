"""Follows the agent's processes from look to look: who began, who is gone, and what they used.

The agent decides how many there are and what they are called, so both have bounds.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from agent2rl.core.events import ProcessEnd, ProcessStart
from agent2rl.core.sandbox import Process
from agent2rl.store.recorder import Recorder
from agent2rl.store.untrusted_files import sanitize_line

LONGEST_COMMAND, READ_BYTES = 2000, 8192
MOST_EVENTS, MOST_BRIEF, MOST_BUSY = 20_000, 2_000, 5_000
"""In one run: all of them; processes that only one look saw; and, when there is no room left, those that are
busy for long."""
BUSY_SECONDS = 5.0
MOST_NAMES = 3
"""Of one process, which may start another program in its own place."""
PROCESSES_FULL = "More processes than are recorded: from here on only those that are busy for long."
FEW = "More short processes than are recorded: from here on only those that two looks see."


@dataclass
class _MonitoredProcess:
    """One process, as far as it was seen."""

    last: Process
    seen_at: float
    command: str
    peak_bytes: int
    told: int = 0
    """How often its command was noted."""
    name: str = ""
    """That it had then."""
    owed: float = 0.0
    """CPU time of children that are gone: it will be told again when this process has waited for them."""


class ProcessMonitor:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lives: dict[int, _MonitoredProcess] = {}
        self._room, self._brief_room, self._busy_room = MOST_EVENTS, MOST_BRIEF, MOST_BUSY
        self._warned: set[str] = set()

    def update_processes(self, members: Sequence[Process], at: float) -> float:
        """Take in who is alive; returns the CPU seconds that all together used since the last look."""
        alive = {each.pid: each.began for each in members}
        gone = [life.last for pid, life in self._lives.items() if alive.get(pid) != life.last.began]
        for last in sorted(gone, key=lambda one: one.began, reverse=True):  # what is owed reaches who is left
            self._record_exit(self._lives.pop(last.pid))
        return sum(self._update_process(each, at) for each in members)

    def _update_process(self, process: Process, at: float) -> float:
        life = self._lives.get(process.pid)
        if life is None:
            text = read_command_line(process.pid) if self._brief_room else ""
            self._lives[process.pid] = _MonitoredProcess(process, at, text, process.resident_bytes)
            return process.cpu_seconds + process.waited_seconds
        waited = process.waited_seconds - life.last.waited_seconds
        used = process.cpu_seconds - life.last.cpu_seconds + max(0.0, waited - life.owed)
        life.owed = max(0.0, life.owed - waited)
        life.last, life.seen_at = process, at
        life.peak_bytes = max(life.peak_bytes, process.resident_bytes)
        self._record_command_changes(life)
        return used

    def _record_command_changes(self, life: _MonitoredProcess) -> None:
        """At its second look: until it starts its own program, a process has its parent's command line."""
        if life.told == 0:
            if self._reserve_event_slots(life):
                life.command = read_command_line(life.last.pid) or life.command
                self._record_start(life)
        elif life.name != life.last.name and life.told < MOST_NAMES:
            text = read_command_line(life.last.pid)
            if text and text != life.command and self._reserve_event_slots(life):
                life.command = text
                self._record_start(life)
            life.name = life.last.name

    def _record_exit(self, life: _MonitoredProcess) -> None:
        last = life.last
        if life.told == 0 and not self._brief_room:
            self._warn_once(FEW)
        elif life.told == 0 and self._reserve_event_slots(life):
            self._brief_room -= 1
            self._record_start(life)
        if life.told:
            gone = ProcessEnd(
                pid=last.pid,
                began=last.began,
                seconds=max(0.0, life.seen_at - last.began),
                cpu_seconds=last.cpu_seconds,
                peak_bytes=life.peak_bytes,
            )
            self._recorder.record_event("left", **gone.model_dump())
        if parent := self._lives.get(last.parent):
            parent.owed += last.cpu_seconds + last.waited_seconds + life.owed

    def _reserve_event_slots(self, life: _MonitoredProcess) -> bool:
        """Room for this and for the end of it."""
        if self._room >= 2:
            self._room -= 2
            return True
        self._warn_once(PROCESSES_FULL)
        if life.last.cpu_seconds < BUSY_SECONDS or self._busy_room < 2:
            return False
        self._busy_room -= 2
        return True

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._recorder.record_event("warning", text=text)

    def _record_start(self, life: _MonitoredProcess) -> None:
        last = life.last
        life.told, life.name = life.told + 1, last.name
        name = sanitize_line(last.name, LONGEST_COMMAND)
        began = ProcessStart(
            pid=last.pid,
            began=last.began,
            parent=last.parent,
            name=name,
            command=life.command or f"[{name}]",
        )
        self._recorder.record_event("began", **began.model_dump())


def read_command_line(pid: int) -> str:
    """A command line as a shell would take it, on one line and cut; empty where there is none to read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            raw = file.read(READ_BYTES)
    except OSError:
        return ""
    text = raw.decode(errors="replace").rstrip("\0")
    return sanitize_line(shlex.join(text.split("\0")), LONGEST_COMMAND) if text else ""
