"""Training curves from the logs that trainers write: one record for each training, in the report's metrics.

A format is a module with a `READER`. The files are the agent's: sizes are bounded, links are not followed,
and a file that cannot be read becomes a problem in its record. What trainings only printed is added, unless a
file has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from agent2rl.analysis.findings import (
    METRICS,
    AttemptFindings,
    LogFormat,
    MetricName,
    SubmissionMark,
    TrainingCurves,
    TrainingSeries,
)
from agent2rl.analysis.logs import thin_points
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.analysis.training_logs import json_logs, protobuf_logs
from agent2rl.analysis.training_logs.log_reading import (
    FILE_BYTES,
    STEP_SECONDS,
    TOKENS_TOTAL,
    LogReader,
    LogReading,
    LogRow,
    find_metric,
    strip_prefix,
)
from agent2rl.core.grading_records import Submission
from agent2rl.record.untrusted_files import read_untrusted_file, sanitize_line

READERS: tuple[LogReader, ...] = (
    json_logs.TRAINER_STATE,
    json_logs.JSON_LINES,
    protobuf_logs.TENSORBOARD,
    protobuf_logs.WANDB_OFFLINE,
)
MOST_FILES, TOTAL_BYTES = 64, 128 << 20
"""Limits on what is read of a run."""
MOST_TRAININGS = 24
LONGEST_NAME = 80
ALIKE = 0.8
"""Share of equal points that makes two curves the same."""
PRINTED_NAMES: Mapping[str, MetricName] = {"length": "response_length", "clip_ratio": "clip_fraction"}
"""Metrics that printed curves call by another name."""

Points = dict[float, float | None]


@dataclass(frozen=True)
class _Training:
    """A training while it is put together."""

    name: str
    path: str
    format: LogFormat
    series: Mapping[MetricName, tuple[str, Points]]
    """By metric: its name in the log, and its values by step."""
    times: Sequence[tuple[float, float]] = ()
    """Time and step of each row, in seconds since the epoch, if the log has times."""
    problem: str = ""
    marks: tuple[SubmissionMark, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(points) for _, points in self.series.values())


def read_trainings(
    workspace: Path,
    timeline: AgentTimeline,
    attempts: Sequence[AttemptFindings],
    submissions: Sequence[Submission],
) -> tuple[TrainingCurves, ...]:
    """Return the curves of all trainings of a run, in the order in which their logs appeared."""
    logged = list(_read_files(workspace, timeline))
    printed = [each for attempt in attempts for each in _group_printed(attempt)]
    kept = _drop_duplicates([*logged, *printed])
    kept = _mark_submissions(kept, submissions)[:MOST_TRAININGS]
    return tuple(_make_record(each) for each in kept)


def _read_files(workspace: Path, timeline: AgentTimeline) -> Iterable[_Training]:
    left = TOTAL_BYTES
    for path, reader in _list_files(timeline):
        # One byte more than is read, to notice that there is more.
        content = read_untrusted_file(workspace, path, min(FILE_BYTES, left) + 1) if left else b""
        if content is None:
            continue  # deleted since
        whole = len(content) <= min(FILE_BYTES, left)
        reading = reader.read(content)
        if not whole or not left:
            problem = "it is too large to be read in full"
            reading = LogReading(reading.rows, problem)
        left = max(0, left - len(content))
        yield from _split_trainings(path, reader.format, reading)


def _list_files(timeline: AgentTimeline) -> list[tuple[str, LogReader]]:
    found: dict[str, LogReader] = {}
    for _, seen in timeline.files:
        reader = next((each for each in READERS if each.matches(seen.path)), None)
        if reader and seen.what != "weights" and len(found) < MOST_FILES:
            found.setdefault(seen.path, reader)
    return list(found.items())


def _split_trainings(path: str, form: LogFormat, reading: LogReading) -> Iterable[_Training]:
    """Yield the trainings of a file. Only JSON lines may have several, one after the other."""
    if not reading.rows:
        if reading.problem:
            yield _Training(_name_file(path), path, form, {}, problem=reading.problem)
        return
    parts = _split_rows(reading.rows) if form == "json-lines" else [list(reading.rows)]
    counts: dict[str, int] = {}
    for rows in parts:
        stage = rows[0].stage
        counts[stage] = counts.get(stage, 0) + 1
        number = f" {counts[stage]}" if counts[stage] > 1 else ""
        name = f"{stage}{number}" if stage else f"{_name_file(path)}{number}"
        times = [(row.time, row.step) for row in rows if row.time is not None]
        yield _Training(name, path, form, _collect_series(rows), times, reading.problem)


def _split_rows(rows: Sequence[LogRow]) -> list[list[LogRow]]:
    """Split where the stage changes, or the step falls so far that a new training began."""
    parts: list[list[LogRow]] = [[rows[0]]]
    for before, row in pairwise(rows):
        first = parts[-1][0].step
        restarted = row.step < before.step and (row.step <= first or row.step < before.step / 2)
        if row.stage != before.stage or restarted:
            parts.append([])
        parts[-1].append(row)
    return parts


def _name_file(path: str) -> str:
    """Return a short name: of a checkpoint or an event file its folder, otherwise the file's."""
    folders = [part for part in path.split("/")[:-1] if not part.startswith("checkpoint-")]
    last = path.rpartition("/")[2]
    in_folder = last == "trainer_state.json" or "tfevents." in last
    return "/".join(folders[-2:]) if in_folder and folders else last


def _collect_series(rows: Sequence[LogRow]) -> dict[MetricName, tuple[str, Points]]:
    """Return the values of each metric, of the name that takes precedence."""
    by_name: dict[str, Points] = {}
    for row in rows:
        for name, value in row.values.items():
            by_name.setdefault(name, {})[row.step] = value
    best: dict[MetricName, tuple[int, str]] = {}
    for name in by_name:
        if known := find_metric(name):
            best[known.metric] = min(best.get(known.metric, (1 << 30, "")), (known.rank, name))
    series = {metric: (name, by_name[name]) for metric, (_, name) in best.items()}
    if "tokens_per_second" not in series and (points := _derive_token_rate(rows, by_name)):
        series["tokens_per_second"] = (f"{TOKENS_TOTAL} over time", points)
    return series


def _derive_token_rate(rows: Sequence[LogRow], by_name: Mapping[str, Points]) -> Points:
    """Return tokens per second, from the total of tokens and the time of steps or rows."""
    totals = _find_points(by_name, TOKENS_TOTAL)
    seconds = _find_points(by_name, STEP_SECONDS)
    times = {row.step: row.time for row in rows if row.time is not None}
    rates: Points = {}
    for before, step in pairwise(sorted(totals)):
        new = (totals[step] or 0.0) - (totals[before] or 0.0)
        spent = (step - before) * (seconds.get(step) or 0.0)
        if not spent and step in times and before in times:
            spent = times[step] - times[before]
        if new > 0 and spent > 0:
            rates[step] = new / spent
    return rates


def _find_points(by_name: Mapping[str, Points], wanted: str) -> Points:
    return next((points for name, points in by_name.items() if strip_prefix(name) == wanted), {})


# What trainings only printed, duplicates, and submissions.


def _group_printed(attempt: AttemptFindings) -> list[_Training]:
    """Return the printed curves of an attempt; those that begin on the same line are of one training."""
    groups: dict[str, dict[MetricName, tuple[str, Points]]] = {}
    for curve in attempt.curves:
        metric = PRINTED_NAMES.get(curve.name, curve.name)
        known = next((name for name in METRICS if name == metric), None)
        if known and len(curve.points) > 1:
            groups.setdefault(curve.where, {}).setdefault(known, (curve.name, dict(curve.points)))
    return [
        _Training(
            f"attempt {attempt.number}" + (f", {place}" if place > 1 else ""),
            where,
            "printed",
            series,
            marks=_mark_end(attempt, series),
        )
        for place, (where, series) in enumerate(groups.items(), start=1)
    ]


def _mark_end(
    attempt: AttemptFindings, series: Mapping[MetricName, tuple[str, Points]]
) -> tuple[SubmissionMark, ...]:
    """Mark the submission that ends an attempt at the last step that was printed before it."""
    if attempt.submission is None:
        return ()
    step = max(step for _, points in series.values() for step in points)
    return (SubmissionMark(submission=attempt.submission, step=step),)


def _drop_duplicates(found: Sequence[_Training]) -> list[_Training]:
    """Drop trainings that another log contains: checkpoints repeat the log, and most logs are printed too."""
    kept: list[_Training] = []
    ordered = sorted(found, key=lambda each: (each.format == "printed", -each.size))
    for each in ordered:
        if not each.series or not any(_contains_training(other, each) for other in kept):
            kept.append(each)
    chosen = {id(each) for each in kept}
    return [each for each in found if id(each) in chosen and (each.series or each.problem)]


def _contains_training(larger: _Training, smaller: _Training) -> bool:
    shared = [metric for metric in smaller.series if metric in larger.series]
    # Two trainings in one file are two, however alike they are.
    if larger.path == smaller.path:
        return False
    return bool(shared) and all(
        _contains_points(larger.series[metric][1], smaller.series[metric][1]) for metric in shared
    )


def _contains_points(larger: Points, smaller: Points) -> bool:
    equal = sum(step in larger and _values_match(larger[step], value) for step, value in smaller.items())
    return equal >= ALIKE * len(smaller)


def _values_match(one: float | None, other: float | None) -> bool:
    """Whether two values are equal up to rounding, as in printing."""
    if one is None or other is None:
        return one is other
    size = max(abs(one), abs(other))
    return abs(one - other) <= (2e-3 * size + 6e-4 if size > 0.05 else 0.02 * size)


def _mark_submissions(trainings: Sequence[_Training], submissions: Sequence[Submission]) -> list[_Training]:
    """Mark each submission on the training that logged last before it, at the step it had reached."""
    marks: dict[int, list[SubmissionMark]] = {}
    for submission in submissions:
        reached = [
            (time, place, step)
            for place, training in enumerate(trainings)
            for time, step in training.times
            if time <= submission.accepted_at
        ]
        if reached:
            _, place, step = max(reached)
            marks.setdefault(place, []).append(SubmissionMark(submission=submission.id, step=step))
    return [
        replace(training, marks=tuple(marks[place])) if place in marks else training
        for place, training in enumerate(trainings)
    ]


def _make_record(training: _Training) -> TrainingCurves:
    series = [
        TrainingSeries(
            metric=metric,
            name=sanitize_line(training.series[metric][0], LONGEST_NAME),
            points=thin_points(sorted(training.series[metric][1].items())),
        )
        for metric in METRICS
        if metric in training.series
    ]
    return TrainingCurves(
        name=sanitize_line(training.name, LONGEST_NAME),
        path=training.path,
        format=training.format,
        series=tuple(series),
        submissions=training.marks,
        problem=training.problem,
    )
