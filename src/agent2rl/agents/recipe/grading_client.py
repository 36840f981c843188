"""The grading service, as the recipe's program asks it."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def submit_model(path: Path) -> dict[str, Any]:
    """The grader's answer; empty where it took no submission."""
    try:
        answer = call_grading_api("/submit", {"model_path": str(path)})
    except urllib.error.HTTPError as error:
        print(f"{path.name}: {error.read().decode(errors='replace')}", flush=True)
        return {}
    print(f"{path.name}: {answer['verdict']}, score {answer['score']}. {answer['message']}", flush=True)
    return answer


def fetch_remaining_seconds() -> float:
    """Seconds until the end; none where no submission is left, or no step in the task's world."""
    clock = call_grading_api("/time")
    spent = 0 in (clock["submissions_left"], clock["environment_steps_left"])
    return 0.0 if spent else float(clock["remaining"])


def is_last_submission() -> bool:
    """Whether one is left, and no more."""
    return bool(call_grading_api("/time")["submissions_left"] == 1)


def call_grading_api(path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)
        return found
