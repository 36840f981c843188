"""Runs of every kind in one directory: a real one that has ended, and what becomes of copies of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from agent2rl.core.self_reports import AgentToolCall, ToolObservation, Transcript, TranscriptStep
from agent2rl.record.paths import RunPaths

AGENT_CODE = """
train = WORKSPACE / "code" / "train.py"
train.write_text("print('first')\\n")
rows = [{"step": step, "loss": 2 / (step + 1), "reward": step / 50} for step in range(50)]
(OUTPUT / "log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
submit(trained("a", 20))
train.write_text("print('second')\\n")
submit(trained("b", 60))
"""
HOSTILE_TEXT = (
    "</script></pre><script>window.hit = 1</script><img src=https://example.org/x onerror='window.hit = 1'>"
    "\u202eturned\u202c \"'><style>*{display:none}</style><a href='javascript:hit()'>" + "A" * 3000
)
LONG_LINE = 300_000
EPISODE_ID = "0001"
"""The id of an example that is an episode in the hostile run."""


def make_crashed(paths: RunPaths) -> None:
    """In the middle of a write to its ledger."""
    paths.result.unlink()
    paths.ledger.write_bytes(paths.ledger.read_bytes()[:-40])


def make_damaged(paths: RunPaths) -> None:
    paths.result.write_text('{"run_id": ')
    paths.submission_paths(1).record.write_text("[]")
    paths.submission_paths(2).results_file("heldout").write_bytes(b"\xff\xfe not JSON\n")
    paths.events.write_bytes(paths.events.read_bytes()[:500] + b"\x00\n{}\n")
    paths.transcript.write_text("{")
    shutil.rmtree(paths.revisions / "objects")


def make_unreadable(paths: RunPaths) -> None:
    paths.spec.write_text("{")


def make_running(paths: RunPaths) -> None:
    """Once its lock is held."""
    paths.result.unlink()
    shutil.rmtree(paths.submission_paths(2).root)


def make_just_started(paths: RunPaths) -> None:
    """Of which there is not much more than its directory; once its lock is held."""
    for entry in paths.root.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry not in (paths.spec, paths.lock):
            entry.unlink()


def make_hostile(paths: RunPaths) -> None:
    """All that an agent and its model say is an attack."""
    spec = json.loads(paths.spec.read_text())
    paths.spec.write_text(json.dumps({**spec, "agent": "script:/x/<script>hit()</script>.py"}))
    call = AgentToolCall(id="1", name=HOSTILE_TEXT, arguments={"command": HOSTILE_TEXT})
    seen = ToolObservation(call="1", text=HOSTILE_TEXT, failed=True)
    step = TranscriptStep(
        source="agent", text=HOSTILE_TEXT, reasoning=HOSTILE_TEXT, calls=(call,), observations=(seen,), at=1e9
    )
    told = Transcript(agent=HOSTILE_TEXT, version=HOSTILE_TEXT, steps=(step,) * 90, error=HOSTILE_TEXT)
    paths.transcript.write_text(told.model_dump_json())
    paths.agent_log.write_text(f"{HOSTILE_TEXT}\n\x1b[31m\x00{'B' * LONG_LINE}\n{HOSTILE_TEXT}\n")
    for where in (paths.baseline, paths.submission_paths(2)):
        file = where.results_file("heldout")
        rows = [
            {**json.loads(line), "output": HOSTILE_TEXT, "note": HOSTILE_TEXT}
            for line in file.read_text().splitlines()
        ]
        turns = [
            {"action": HOSTILE_TEXT, "observation": f"turn {number} {HOSTILE_TEXT}"} for number in range(4)
        ]
        rows[0] |= {"id": EPISODE_ID, "trajectory": turns, "group": HOSTILE_TEXT}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def add_won_episode(paths: RunPaths) -> None:
    """Whose best submission wins an episode that the untouched model lost."""
    scores = ((paths.baseline, 0), (paths.submission_paths(2), 1))
    for where, score in scores:
        file = where.results_file("heldout")
        first, *rest = file.read_text().splitlines()
        turns = [{"action": f"go to shelf {number}", "observation": "You see a mug."} for number in range(4)]
        played = {**json.loads(first), "id": EPISODE_ID, "score": score, "trajectory": turns}
        file.write_text("\n".join([json.dumps(played), *rest]) + "\n")


RUN_KINDS: dict[str, Callable[[RunPaths], None]] = {
    "20260101-000000-finished": lambda _: None,
    "20260102-000000-crashed": make_crashed,
    "20260103-000000-damaged": make_damaged,
    "20260104-000000-unreadable": make_unreadable,
    "20260105-000000-going": make_running,
    "20260106-000000-young": make_just_started,
    "20260107-000000-hostile": make_hostile,
}
FINISHED, CRASHED, DAMAGED, UNREADABLE, RUNNING, JUST_STARTED, HOSTILE_RUN = RUN_KINDS


def copy_run_as(one: RunPaths, runs: Path, name: str) -> RunPaths:
    """A copy of a finished run as another kind of run."""
    paths = RunPaths(runs / name)
    shutil.copytree(one.root, paths.root, ignore=shutil.ignore_patterns("workspace", "model"))
    if name in RUN_KINDS:
        RUN_KINDS[name](paths)
    return paths
