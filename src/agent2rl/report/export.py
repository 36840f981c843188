"""Exports runs as rows: results.csv in the published columns, other formats with all known columns.

csv       the published columns, which scripts for the published harness read
jsonl     one object per run: specification, scores with intervals, metrics, route of the best, usage
parquet   the same, typed, for data frames
atif      each driven agent's trajectory, in the format that Harbor and others read
inspect   the agent's transcript and each grading, as logs of Inspect
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue, ValidationError

from agent2rl.analysis.atif import build_trajectory
from agent2rl.analysis.inspect_log import build_logs
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import PanelResult
from agent2rl.core.records import RunResult
from agent2rl.record.files import read_regular_file, write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_run, read_transcript
from agent2rl.report.report_data import RunReport
from agent2rl.system.unix import fcntl

PUBLISHED = (
    "run_id",
    "timestamp",
    "task",
    "agent",
    "driver_model",
    "base_model",
    "baseline",
    "best_score",
    "improvement",
    "submissions",
    "duration_s",
    "success",
    "workspace",
)
Row = dict[str, JsonValue]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def runs_below(folder: Path) -> list[RunPaths]:
    """Return all runs of a runs directory, the oldest first."""
    return [RunPaths(path.parent) for path in sorted(folder.glob("*/spec.json"))]


def build_published_row(view: RunView) -> Row:
    """Build the published columns. Scores are on the ranking split; unknown is empty, never 0."""
    result, spec = view.result, view.spec
    return {
        "run_id": view.paths.run_id,
        "timestamp": _format_time(_find_start_time(view)),
        "task": spec.task,
        "agent": spec.agent,
        "driver_model": spec.driver or "",
        "base_model": spec.model,
        **_extract_scores(result),
        "submissions": len(view.submissions),
        "duration_s": round(result.ended_at - result.started_at - result.dead_seconds, 1) if result else None,
        "success": result.ended_well if result else None,
        "workspace": f"{view.paths.run_id}/workspace",
    }


def build_wide_row(view: RunView) -> Row:
    """Build all columns; those that need a report are null without one."""
    spec, result = view.spec, view.result
    row: Row = {
        **build_published_row(view),
        "state": view.state,
        "contaminated": view.contaminated,
        "warning": view.warning,
        "instructions_version": max(view.instructions_versions, default=None),
        "ending": result.ending if result else None,
        "mode": spec.mode,
        "protocol": spec.protocol,
        "profile": spec.profile,
        "expert": spec.expert,
        "clock": spec.clock,
        "network": spec.network,
        "downloaded_bytes": result.network.received_bytes if result and result.network else None,
        "seed": spec.seed,
        "engine": spec.engine,
        "sandbox": view.used_sandbox,
        "isolation": result.isolation.level if result and result.isolation else None,
        "wall_seconds": spec.budget.wall_seconds,
        "keep": spec.keep,
        "best_weights_kept": result.best.kept if result and result.best else None,
        "scored": sum(each.verdict == "scored" for each in view.submissions),
        "improvement_low": result.heldout.ci.low if result and result.heldout else None,
        "improvement_high": result.heldout.ci.high if result and result.heldout else None,
        "optimism_gap": result.optimism_gap if result else None,
        "agent_seconds": result.clock.agent if result and result.clock else None,
        "grading_seconds": result.clock.grading if result and result.clock else None,
        "training_seconds": result.clock.training if result and result.clock else None,
        "reserved_gpu_seconds": result.clock.gpu if result and result.clock else None,
    }
    row["also"] = [_build_panel_entry(each) for each in result.also] if result else None
    usage = result.usage if result else None
    row |= {
        "requests": usage.requests if usage else None,
        "input_tokens": usage.tokens.input if usage else None,
        "output_tokens": usage.tokens.output if usage else None,
        "usd": usage.usd if usage else None,
    }
    rollouts = result.rollouts if result else None
    for source in ("claimed", "witnessed", "served", "replayed", "refuted"):
        counts = getattr(rollouts, source) if rollouts else None
        for name in ("episodes", "steps", "successes"):
            row[f"{source}_{name}"] = getattr(counts, name) if counts else None
    return {**row, **_read_findings(view.paths)}


def _build_panel_entry(each: PanelResult) -> Row:
    """Build an entry of the regression panel; a score that is missing is null, with the reason."""
    change = each.change
    return {
        "task": each.task,
        "baseline": each.baseline.value if each.baseline else None,
        "best": each.best.value if each.best else None,
        "change": change.improvement if change else None,
        "change_low": change.ci.low if change else None,
        "change_high": change.ci.high if change else None,
        "reason": each.reason,
    }


def _extract_scores(result: RunResult | None) -> Row:
    if result is None:
        return {"baseline": None, "best_score": None, "improvement": None}
    before = result.baseline_heldout if result.best_heldout else result.baseline
    return {
        "baseline": before.value if before else None,
        "best_score": result.score,
        "improvement": result.improvement,
    }


def _read_findings(paths: RunPaths) -> Row:
    """Read the columns that come from the report."""
    try:
        report = RunReport.model_validate_json(read_regular_file(paths.report_json))
    except (OSError, ValidationError):
        report = None
    findings = report.findings if report else None
    metrics = findings.metrics.model_dump(mode="json") if findings else {}
    best = report.result.best.id if report and report.result and report.result.best else None
    attempts = findings.attempts if findings else ()
    route = next((each.route for each in attempts if each.submission == best and each.route), None)
    gain = findings.gain if findings else None
    return {
        "real": gain.real if gain else None,
        "p_value": gain.p_value if gain else None,
        "route": route.name if route else None,
        "compliance": findings.compliance.verdict if findings else None,
        **{name: metrics.get(name) for name in _METRICS},
    }


_METRICS = (
    "valid_submission_rate",
    "first_valid_idx",
    "first_valid_delay",
    "time_to_first_improvement",
    "time_to_best",
    "monotonic_ratio",
    "copy_model_count",
    "time_used_ratio",
    "last_submit_gap",
    "best_area",
    "cpu_busy",
    "gpu_busy",
)


def update_results_csv(paths: RunPaths) -> None:
    """Add or replace a run's row in the results.csv of its runs directory."""
    target = paths.results_csv
    # Runs of a campaign may end at the same time. The lock is on a file beside it, because writing
    # replaces results.csv itself.
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        own_row = {
            name: escape_csv_cell(value) for name, value in build_published_row(read_run(paths)).items()
        }
        rows = [row for row in _read_results_csv(target) if row.get("run_id") != paths.run_id]
        write_atomically(target, _render_published_csv([*rows, own_row]))


def _read_results_csv(target: Path) -> list[dict[str, str]]:
    try:
        with target.open(newline="", encoding="utf-8") as file:
            return [{name: row.get(name) or "" for name in PUBLISHED} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def render_csv(views: Iterable[RunView]) -> str:
    return _render_published_csv(
        [
            {name: escape_csv_cell(value) for name, value in build_published_row(view).items()}
            for view in views
        ]
    )


def render_jsonl(views: Iterable[RunView]) -> Iterator[str]:
    for view in views:
        yield json.dumps(build_wide_row(view), ensure_ascii=False)


def write_parquet(views: Iterable[RunView], target: Path) -> int:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MachineError(
            "Parquet export needs pyarrow, which is not installed.",
            "Install it: pip install 'agent2rl[hub]'.",
        ) from error
    rows = [build_wide_row(view) for view in views]
    parquet.write_table(arrow.Table.from_pylist(rows), target)
    return len(rows)


def write_atif(runs: Sequence[RunPaths], folder: Path) -> int:
    """Write a file for each run that has a transcript, and return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for paths in runs:
        if transcript := read_transcript(paths):
            write_atomically(
                folder / f"{paths.run_id}.json", build_trajectory(transcript, paths.run_id).json_text
            )
            count += 1
    if not count:
        raise UserError("None of these runs has a transcript.", "Only agents driven by an LLM have one.")
    return count


def write_inspect_logs(runs: Sequence[RunPaths], folder: Path) -> int:
    """Write the logs of each run, and return their number."""
    logs = [log for paths in runs for log in build_logs(read_run(paths))]
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        write_atomically(folder / log.file_name, log.json_text)
    return len(logs)


def _render_published_csv(rows: Iterable[dict[str, str]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, PUBLISHED, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def escape_csv_cell(value: JsonValue) -> str:
    """Format a value for CSV; a quote mark goes before text that a spreadsheet would take for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def _find_start_time(view: RunView) -> float | None:
    if view.result:
        return view.result.started_at
    return view.chain.entries[0].time if view.chain.entries else None


def _format_time(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds is not None else None
