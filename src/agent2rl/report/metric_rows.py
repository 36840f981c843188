"""The process metrics and the split of time as rows for people."""

from agent2rl.analysis.findings import ProcessMetrics, TimeSplit
from agent2rl.report import formatting
from agent2rl.report.colours import DOING
from agent2rl.report.report_data import Activity

MEANINGS = {
    "valid_submission_rate": "of the submissions, those that have a score",
    "first_valid_idx": "number of the first submission with a score",
    "first_valid_delay": "from the start to the first submission with a score",
    "score_trajectory": "scores in their order; a dash where there is none",
    "time_to_first_improvement": "from the start to the first score above the untouched model's",
    "time_to_best": "from the start to the best score",
    "monotonic_ratio": "of the steps from one score to the next, those that go up",
    "copy_model_count": "submissions that are the base model",
    "time_used_ratio": "of the budget's time",
    "last_submit_gap": "from the last submission to the end",
    "best_area": "points: mean gain of the best so far over the whole budget",
    "cpu_busy": "cores, on average",
    "gpu_busy": "of the GPUs' time",
}
SECONDS = {"first_valid_delay", "time_to_first_improvement", "time_to_best", "last_submit_gap"}
SHARES = {"valid_submission_rate", "monotonic_ratio", "time_used_ratio", "gpu_busy"}
UNKNOWN = "–"


def build_metric_rows(found: ProcessMetrics) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each; unknown is a dash, never a zero."""
    return [(name, _format_metric(name, getattr(found, name)), meaning) for name, meaning in MEANINGS.items()]


def _format_metric(name: str, value: float | tuple[float | None, ...] | None) -> str:
    if value is None or value == ():
        return UNKNOWN
    if isinstance(value, tuple):
        return ", ".join(UNKNOWN if each is None else f"{each:.2f}" for each in value)
    if name in SECONDS:
        return formatting.format_duration(value)
    return formatting.format_share(value) if name in SHARES else formatting.format_number(value)


def build_activity_rows(time: TimeSplit | None) -> list[tuple[Activity, str, str]]:
    """Where the agent's time went: what, how long, and the share."""
    if time is None:
        return []
    spent = {name: float(getattr(time, name)) for name in DOING}
    total = sum(spent.values()) or 1.0
    return [
        (name, formatting.format_duration(each), formatting.format_share(each / total))
        for name, each in spent.items()
    ]
