"""Submissions as the published API lists them, and `scores.json`, the list of them in the workspace.

The file is for clients of the published API. The harness never reads it.
"""

import json
import logging
import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import Field

from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Record
from agent2rl.record.untrusted_files import replace_untrusted_file

logger = logging.getLogger(__name__)

SCORES_FILE = "scores.json"
READ_ONLY = 0o444
ELAPSED_STEP_SECONDS = 10.0


class ScoreEntry(Record):
    """A submission in the published form."""

    submission_id: int
    timestamp: str
    """When it was accepted: local time in ISO 8601, without an offset, as published."""
    model_path: str
    score: float | None
    baseline_score: float
    improvement: float | None
    elapsed_seconds: float | None
    error: str | None = Field(default=None, exclude_if=lambda error: error is None)
    """The message, only if there is a verdict and no score."""


def describe_score(submission: Submission, baseline_score: float) -> ScoreEntry:
    return ScoreEntry(
        submission_id=submission.id,
        timestamp=format_timestamp(submission.accepted_at),
        model_path=submission.path,
        score=submission.score.value if submission.score else None,
        baseline_score=baseline_score,
        improvement=submission.improvement,
        elapsed_seconds=_round_up_seconds(submission.grading_seconds),
        error=submission.message if submission.verdict and not submission.score else None,
    )


def write_scores_file(workspace: Path, submissions: Iterable[Submission], baseline_score: float) -> None:
    """Write the submissions that have a verdict. If the agent makes this impossible, nothing else fails."""
    entries = [describe_score(each, baseline_score).model_dump() for each in submissions if each.verdict]
    content = json.dumps(entries, indent=2) + "\n"
    if not replace_untrusted_file(workspace, SCORES_FILE, content.encode(), READ_ONLY):
        logger.debug("%s could not be written", SCORES_FILE)


def format_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds)).astimezone().replace(tzinfo=None).isoformat()


def _round_up_seconds(seconds: float | None) -> float | None:
    """Round up, because the exact time of a grading depends on the model's answers to each question."""
    return None if seconds is None else math.ceil(seconds / ELAPSED_STEP_SECONDS) * ELAPSED_STEP_SECONDS
