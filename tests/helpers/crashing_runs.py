"""Runs whose harness dies by SIGKILL, at a chosen point of its record or after any time, and is resumed.

The agent submits until it has submitted three times. It notes what it is told when it starts, and each answer
that it gets, so that what it was told can be held against the record.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent2rl.core.events import EventKind, TimelineEvent
from agent2rl.core.records import LedgerEntry, RunResult
from agent2rl.grading.verify import verify_run
from agent2rl.record import ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_events, read_run
from tests.helpers import forked_cli
from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
BUDGET_SECONDS = 600.0
SUBMISSION_COUNT = 3
DEATH_NOTE = "died"
CLOCK_TOLERANCE_SECONDS = 5.0
"""How far the agent's used time may be off: the harness's heart notes its death, once it gets the time to."""
AGENT_CODE = f"""
def note(**what):
    folder = WORKSPACE / "notes"
    folder.mkdir(exist_ok=True)
    path = folder / str(time.time_ns())
    path.with_suffix(".new").write_text(json.dumps(what))
    path.with_suffix(".new").rename(path.with_suffix(".json"))

def listed():
    with urllib.request.urlopen(URL + "/submissions") as response:
        return json.load(response)

known = listed()
note(began=True, resumed=os.environ.get("RESUMED"), clock=call("GET", "/time"), known=known,
     meta=json.loads((WORKSPACE / "run_meta.json").read_text()),
     files=sorted(path.name for path in OUTPUT.iterdir()))
for number in range(len(known) + 1, {SUBMISSION_COUNT} + 1):
    answer = submit(trained(f"v{{number}}", problems=20 * number, seed=number))
    note(answer=answer)
print("done", end="", flush=True)
"""

CrashMoment = Literal["before", "torn", "no-head", "after", "told"]
"""Before a ledger record is begun; in the midst of its line; before ledger.head follows; when it is on the
disk; when the timeline has it too (of kinds that only the timeline has, this alone)."""


@dataclass(frozen=True)
class CrashPoint:
    kind: EventKind
    moment: CrashMoment = "after"
    which: int = 1
    """The first of this kind that the harness writes, the second …"""


@dataclass
class CrashingRun:
    """One run through the lives of its harnesses."""

    launcher: RunLauncher
    options: tuple[str, ...] = ("--sandbox", "local")
    code: str = AGENT_CODE
    died_at: list[tuple[float, float]] = field(default_factory=list)
    """Not before, and not after: a machine may stand still when somebody is to be killed."""
    unsure: list[float] = field(default_factory=list)
    """By how much the record was off with the agent's time, each time."""

    @property
    def paths(self) -> RunPaths:
        (root,) = self.launcher.runs.glob("*/")
        return RunPaths(root.resolve())

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        return ledger.read_ledger(self.paths.ledger, self.paths.ledger_head).entries

    def live(self, death: CrashPoint | float | None = None) -> int:
        """Run, or resume where there is a run; until the end, a point of the record, or for so many seconds.

        Returns the exit code, which is -9 where it died. Where it died before there was a run to speak of,
        what it left is removed.
        """
        place = self.launcher.home / f"life-{time.time_ns()}"
        place.mkdir()
        at = death if isinstance(death, CrashPoint) else None
        names = (place / "out", place / "err")
        environment = self.launcher.environment(PYTHONPATH=str(ROOT))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(forked_cli.PRELOADED_MODULES)
        asked = self._asked()
        process = context.Process(
            target=_run_harness, args=(at, asked, self.launcher.home, environment, *names)
        )
        process.start()
        due = time.time() + (death if isinstance(death, float) else 240)
        process.join(due - time.time())
        killed_at = time.time()
        process.kill()
        process.join()
        code = process.exitcode
        assert code is not None
        if code == -signal.SIGKILL:
            noted = self.launcher.home / DEATH_NOTE
            itself = float(noted.read_text()) if noted.exists() else None
            self.died_at.append((itself or min(due, killed_at), itself or killed_at))
            noted.unlink(missing_ok=True)
            if not self.begun:
                shutil.rmtree(self.launcher.runs, ignore_errors=True)
        self.said, self.errors = (path.read_text() if path.exists() else "" for path in names)
        return code

    @property
    def begun(self) -> bool:
        return any(self.launcher.runs.glob("*/spec.json"))

    def _asked(self) -> tuple[str, ...]:
        if self.begun:
            return ("resume", self.paths.run_id, "--json", "--no-report")
        script = self.launcher.script(self.code)
        fast = ("--task", "tests.helpers.short_gsm8k:TASK", "--budget", f"{BUDGET_SECONDS:g}s", *self.options)
        return ("run", "--agent", f"script:{script}", "--json", "--no-report", *fast)

    def notes(self) -> list[dict[str, Any]]:
        """Of the agent."""
        return [
            json.loads(path.read_text()) for path in sorted((self.paths.workspace / "notes").glob("*.json"))
        ]


def _run_harness(
    death: CrashPoint | None,
    asked: tuple[str, ...],
    home: Path,
    environment: dict[str, str],
    out: Path,
    err: Path,
) -> None:
    if death:
        install_crash(death)
    forked_cli.run_cli_main(asked, home, environment, out, err)


def install_crash(death: CrashPoint) -> None:
    """In the harness's own process."""
    from agent2rl.record.ledger import Ledger
    from agent2rl.record.recorder import Recorder

    left = [death.which]
    append, tell = Ledger.append, Recorder._notify_watcher

    def appending(self: Ledger, kind: str, data: Any) -> LedgerEntry:
        left[0] -= kind == death.kind and death.moment != "told"
        if kind != death.kind or left[0] or death.moment == "told":
            return append(self, kind, data)
        if death.moment == "before":
            kill_self()
        head, file = self._head, Path(f"/proc/self/fd/{self._file.fileno()}").resolve()
        before, size = head.read_bytes() if head.exists() else None, file.stat().st_size
        entry = append(self, kind, data)
        if death.moment in ("torn", "no-head"):
            head.write_bytes(before) if before else head.unlink()
        if death.moment == "torn":
            os.truncate(file, (size + file.stat().st_size) // 2)
        kill_self()
        return entry

    def telling(self: Recorder, event: TimelineEvent) -> None:
        tell(self, event)
        left[0] -= event.kind == death.kind and death.moment == "told"
        if event.kind == death.kind and death.moment == "told" and not left[0]:
            kill_self()

    Ledger.append, Recorder._notify_watcher = appending, telling  # type: ignore[method-assign]


def kill_self() -> None:
    """In the directory that a harness is started in."""
    Path(DEATH_NOTE).write_text(str(time.time()), encoding="ascii")
    os.kill(os.getpid(), signal.SIGKILL)


def find_resume_faults(dying: CrashingRun, deaths: int) -> Iterator[str]:
    """What is not as it should be with a run that was resumed until its end."""
    paths, entries, notes = dying.paths, dying.entries, dying.notes()
    if not (found := verify_run(paths)).holds:
        yield f"verify: {found.fault}"
    if not paths.result.exists():
        yield "there is no result"
        return
    result = RunResult.model_validate_json(paths.result.read_bytes())
    kinds = Counter(entry.kind for entry in entries)
    if (result.ending, result.submissions, result.scored) != (
        "completed",
        SUBMISSION_COUNT,
        SUBMISSION_COUNT,
    ):
        said = [one.message for one in read_run(paths).submissions if one.verdict != "scored"]
        counts = f"{result.submissions} submissions, {result.scored} scored"
        yield f"{result.ending} {result.reason}, {counts}: {said}"
    if result.score is None or result.heldout is None or result.contamination is None:
        yield "the result is not complete"
    if not result.resumed == kinds["resumed"] <= deaths:
        yield f"{deaths} deaths, {kinds['resumed']} resumed, the result says {result.resumed}"
    if kinds["opened"] != 1 or kinds["closed"] != 1 or kinds["assets"] != 1 or kinds["heldout"] != 1:
        yield f"what is to be there once is not: {dict(kinds)}"
    yield from _find_duplicates(entries)
    yield from _find_lost_answers(entries, notes)
    yield from _check_restart_notes(entries, notes)
    yield from _check_used_time(dying, entries)
    told = Counter(event.kind for event in read_events(paths, []))
    if missing := {kind: number for kind, number in kinds.items() if told[kind] < number}:
        yield f"not on the timeline: {missing}"
    if left := [path.name for path in paths.root.glob(".*")] + [p.name for p in paths.root.glob("scratch")]:
        yield f"left over: {left}"


def _find_duplicates(entries: tuple[LedgerEntry, ...]) -> Iterator[str]:
    """Every submission is taken in once and graded once; every split is answered once."""
    done: Counter[tuple[str, object]] = Counter()
    for entry in entries:
        submission = entry.data.get("submission")
        if entry.kind in ("submitted", "graded") and isinstance(submission, dict):
            done[entry.kind, submission["id"]] += 1
        elif entry.kind in ("results", "heldout"):
            done[entry.kind, entry.data.get("file")] += 1
        elif entry.kind in ("revision_of", "started"):
            done[entry.kind, entry.data.get("submission", entry.index)] += 1
    if set(done.values()) != {1}:
        yield f"more than once: {[what for what, times in done.items() if times > 1]}"
    for kind in ("submitted", "graded", "revision_of"):
        if {number for what, number in done if what == kind} != set(range(1, SUBMISSION_COUNT + 1)):
            yield f"not every submission is {kind}"


def _find_lost_answers(entries: tuple[LedgerEntry, ...], notes: list[dict[str, Any]]) -> Iterator[str]:
    """What the agent was told once is what the record says."""
    graded: dict[int, Any] = {}
    for entry in entries:
        if entry.kind == "graded":
            data: Any = entry.data
            graded[data["submission"]["id"]] = data["submission"]
    told = [each for note in notes for each in (*note.get("known", ()), *filter(None, [note.get("answer")]))]
    for answer in told:
        said = (answer["verdict"], answer["score"])
        kept = graded.get(answer["submission_id"])
        score = kept["score"]["value"] if kept and kept["score"] else None
        if kept is None or said != (kept["verdict"], score):
            yield f"the agent was told {said} of submission {answer['submission_id']}: {kept}"


def _check_restart_notes(entries: tuple[LedgerEntry, ...], notes: list[dict[str, Any]]) -> Iterator[str]:
    """What an agent finds that is started again."""
    starts = [note for note in notes if note.get("began")]
    used = [float(entry.data["used_seconds"]) for entry in entries if entry.kind == "started"]  # type: ignore[arg-type]
    for place, note in enumerate(starts):
        left = note["clock"]["remaining"]
        clocks = [BUDGET_SECONDS - each for each in used]
        if not any(each - 30 < left <= each for each in clocks):
            yield f"{left} s left, and the record says {clocks}"
        if abs(note["clock"]["start_time"] - note["meta"]["start_time"]) > 2:
            yield f"run_meta.json has another clock: {note['meta']}"
        if place and note["resumed"] != "1":
            yield "an agent that was started again was not told"
        submitted = {f"v{each['submission_id']}" for each in note["known"]}
        if not submitted <= set(note["files"]):
            yield f"{submitted} were submitted, and there are only {note['files']}"


def _check_used_time(dying: CrashingRun, entries: tuple[LedgerEntry, ...]) -> Iterator[str]:
    """Used time is from each start to each death, and no more."""
    since, used = None, 0.0
    for entry in entries:
        if entry.kind == "started":
            since = entry.time
        elif entry.kind == "ended":
            used, since = used + entry.time - (since or entry.time), None
        elif entry.kind == "resumed":
            died = max(at for at in dying.died_at if at[1] < entry.time)
            least, most = (used + (max(0.0, at - since) if since else 0.0) for at in died)
            said = float(entry.data["used_seconds"])  # type: ignore[arg-type]
            off = max(least - said, said - most, 0.0)
            dying.unsure.append(off)
            if off > CLOCK_TOLERANCE_SECONDS:
                yield f"the agent has used {least:.2f} to {most:.2f} s, and the record says {said:.2f}"
            used, since = said, None


def kill_at_random_times(dying: CrashingRun, seed: int, most: int, seconds: float) -> int:
    """Kill the harness after random times, at most so often, and let it end at last; returns how often."""
    chance = random.Random(seed)
    deaths = 0
    while deaths < most and dying.live(chance.uniform(0.0, seconds)) == -signal.SIGKILL:
        deaths += dying.begun
    if not (dying.begun and dying.paths.result.exists()):
        dying.live()
    return deaths
