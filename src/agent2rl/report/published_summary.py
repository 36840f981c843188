"""Writes summary.jsonl in the published schema: one line per attempt, from the record and not from the agent.

    iteration      number of the attempt, from 1
    timestamp      when it was submitted, or ended without a submission: YYYY-MM-DD HH:MM, in UTC
    duration_s     agent time from the previous submission, in whole seconds
    status         success if it has a score, failed if not; null while it is graded
    exit_code      null: the exit codes of an agent's programs are not recorded
    score          on the split that gives feedback, 0 to 100; null without a score
    improvement    over the untouched model, in points; null without a score
    train_type     the training route: SFT, GRPO, PPO, RL, DPO, …, copy_model or unknown; joined by +
    failure_type   why it brought no gain, in the published words where there is one; null if it did

An attempt that neither trained nor submitted anything is left out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import JsonValue

from agent2rl.analysis.analyse import analyse_run
from agent2rl.analysis.findings import AttemptFindings, FailureKind, Findings, Route, RouteVerdict
from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.core.grading_records import Submission
from agent2rl.record.paths import RunPaths
from agent2rl.report.digests import read_cached_digest

PUBLISHED_SUMMARY = (
    "iteration",
    "timestamp",
    "duration_s",
    "status",
    "exit_code",
    "score",
    "improvement",
    "train_type",
    "failure_type",
)
TRAIN_TYPES: Mapping[Route, str] = {
    "none": "copy_model",
    "sft": "SFT",
    "rejection": "SFT",
    "preference": "preference",
    "policy-gradient": "RL",
    "online-rl": "RL",
    "other": "other",
    "unknown": "unknown",
}
ALGORITHMS: Mapping[str, re.Pattern[str]] = {
    "RL": re.compile(r"(GRPO|PPO)", re.IGNORECASE),
    "preference": re.compile(r"(DPO|ORPO|KTO|IPO)", re.IGNORECASE),
}
"""Names of algorithms in the evidence of a route. They are used if the evidence names exactly one."""
FAILURE_TYPES: Mapping[FailureKind, str] = {
    "code-error": "code_error_runtime",
    "rollout-logic": "rollout_logic_wrong",
    "copied": "copy_model_fallback",
    "diverged": "training_diverged",
}


def render_summary(findings: Findings, submissions: Sequence[Submission], started: float | None) -> str:
    """Return the file. `started` is when the agent started, in seconds since the epoch."""
    rows = build_summary_rows(findings, submissions, started)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_summary(paths: RunPaths) -> str:
    """Return the summary from the run's report, or build it if the report is missing or out of date."""
    if paths.summary.is_file() and read_cached_digest(paths):
        return paths.summary.read_text(encoding="utf-8")
    record = read_recorded_run(paths)
    return render_summary(analyse_run(record)[0], record.view.submissions, record.timeline.started)


def build_summary_rows(
    findings: Findings, submissions: Sequence[Submission], started: float | None
) -> Iterator[dict[str, JsonValue]]:
    accepted = {each.id: each.accepted_at for each in submissions}
    texts = {each.id: each.text for each in findings.evidence}
    for attempt in findings.attempts:
        if attempt.submission is None and attempt.route is None:
            continue
        at = accepted.get(attempt.submission or 0, None if started is None else started + attempt.ended)
        values: tuple[JsonValue, ...] = (
            attempt.number,
            _format_minute(at),
            round(attempt.ended - attempt.began),
            _describe_status(attempt),
            None,
            attempt.score,
            attempt.gain,
            _name_training(attempt.route, texts),
            _name_failure(attempt),
        )
        yield dict(zip(PUBLISHED_SUMMARY, values, strict=True))


def _describe_status(attempt: AttemptFindings) -> str | None:
    if attempt.outcome == "waiting":
        return None
    return "success" if attempt.score is not None else "failed"


def _name_training(route: RouteVerdict | None, evidence: Mapping[str, str]) -> str:
    if route is None:
        return "unknown"
    text = " ".join(evidence.get(each, "") for each in route.evidence)
    names = [_name_algorithm(TRAIN_TYPES[each], text) for each in route.routes]
    return "+".join(dict.fromkeys(names))


def _name_algorithm(kind: str, text: str) -> str:
    """Return the algorithm if the evidence names only one, else the kind of training."""
    found = {name.upper() for name in ALGORITHMS[kind].findall(text)} if kind in ALGORITHMS else set()
    return found.pop() if len(found) == 1 else kind


def _name_failure(attempt: AttemptFindings) -> str | None:
    if attempt.outcome in ("improved", "waiting"):
        return None
    if not attempt.failures:
        return "unknown"
    kind = attempt.failures[0].kind
    if kind == "timeout" and attempt.submission is None:
        return "timeout_no_submission"
    return FAILURE_TYPES.get(kind, kind.replace("-", "_"))


def _format_minute(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
