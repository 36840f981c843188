"""Why an agent's time is over: what it did, what became of it, or who is to blame."""

from pathlib import Path

from agent2rl.core.records import Ending
from agent2rl.core.sandbox import Exit
from agent2rl.runner.driver_session import DriverSession

ENDINGS: dict[str, Ending] = {
    "deadline": "deadline",
    "stopped": "interrupted",
    "memory": "out-of-memory",
    "processes": "too-many-processes",
    "disk": "disk-full",
}
LAST_WORDS = 4000


def classify_ending(last: Exit, driving: DriverSession, log: Path) -> tuple[Ending, str]:
    """Of the last time that it was started, and the reason in words."""
    blame = driving.find_driver_failure()
    gave_up = last.reason in ("exited", "stopped") and last.code != 0
    in_vain = last.reason == "deadline" and not driving.count_answered_requests()
    if blame and (gave_up or in_vain):
        return blame[0], blame[1] + _read_last_log_line(log)
    if last.reason == "exited" and last.code != 0:
        said = f"The agent ended with exit code {last.code}; agent.log says more.{_read_last_log_line(log)}"
        return "agent-failed", said
    if last.reason == "exited":
        return "completed", ""
    return ENDINGS[last.reason], last.detail


def _read_last_log_line(log: Path) -> str:
    """Why an agent failed stands in its log, most likely at the end."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = file.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f" Its last line: {said[-1][:300]}" if said else ""
