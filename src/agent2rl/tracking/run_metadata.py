"""What a tracker is told of a run beside its points: how it was set up, and how it ended.

Never weights, and nothing of the workspace: only the report, the result, the specification and the ledger.
"""

import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.records import EvalScore, RunResult, RunSpec
from agent2rl.core.tracker import FinalSummary, Scalar, Status, TrackedRun
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import RunView
from agent2rl.store.untrusted_files import sanitize_line
from agent2rl.tracking.tracker_names import sanitize_name

LONGEST_VALUE = 500
LONGEST_GROUP = 200


def describe_run(view: RunView, group: str | None = None) -> TrackedRun:
    entries = view.chain.entries
    began = entries[0].time if entries else view.result.started_at if view.result else None
    return TrackedRun(
        id=sanitize_name(view.paths.run_id),
        group=sanitize_line(group or view.spec.task, LONGEST_GROUP),
        began_at=view.paths.spec.stat().st_mtime if began is None else began,
        config=dict(_flatten_config(view.spec.model_dump(mode="json"))),
        tags=_make_tags(view.spec),
    )


def describe_end(view: RunView) -> FinalSummary:
    result, entries = view.result, view.chain.entries
    ended = result.ended_at if result else entries[-1].time if entries else view.paths.spec.stat().st_mtime
    more = {"reason": sanitize_line(result.reason, LONGEST_VALUE)} if result and result.reason else {}
    more |= {"contaminated": "yes"} if view.contaminated else {}
    return FinalSummary(
        status=_classify_status(result),
        ended_at=ended,
        tags={"ending": result.ending if result else view.state, **more},
        numbers=_collect_final_numbers(result) if result else {},
        files=dict(_list_uploaded_files(view.paths)),
    )


def _flatten_config(value: JsonValue, name: str = "") -> Iterator[tuple[str, Scalar]]:
    """budget.wall_seconds: 600.0; what is not said is left out."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flatten_config(below, f"{name}.{sanitize_name(key)}" if name else sanitize_name(key))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _flatten_config(below, f"{name}.{place}")
    elif value is not None:
        yield name, sanitize_line(value, LONGEST_VALUE) if isinstance(value, str) else value


def _make_tags(spec: RunSpec) -> Mapping[str, str]:
    found = {name: getattr(spec, name) for name in ("task", "agent", "driver", "model", "mode", "protocol")}
    if spec.task in registry.list_names("tasks"):  # another's task is not imported for the sake of a tag
        with suppress(Exception):
            found["level"] = registry.find_task(spec.task).level
    return {
        name: sanitize_line(str(value), LONGEST_VALUE) for name, value in found.items() if value is not None
    }


def _classify_status(result: RunResult | None) -> Status:
    if result is None or result.ending == "interrupted":
        return "stopped"
    return "finished" if result.ended_well else "failed"


def _collect_final_numbers(result: RunResult) -> dict[str, float]:
    """Of the split that ranks. What is not known is not there: no number stands for a failure."""
    before = result.baseline_heldout if result.best_heldout else result.baseline
    after = result.best_heldout or (result.best.score if result.best else None)
    compared = result.heldout
    usage, clock = result.usage, result.clock
    found: dict[str, float | None] = {
        "final/score": result.score,
        **(_make_interval_numbers("final/score", after) if result.score is not None else {}),
        "final/baseline": before.value if before else None,
        "final/improvement": result.improvement,
        "final/improvement_low": compared.ci.low if compared else None,
        "final/improvement_high": compared.ci.high if compared else None,
        "final/optimism_gap": result.optimism_gap,
        "final/submissions": result.submissions,
        "final/scored": result.scored,
        "final/wall_seconds": clock.agent if clock else None,
        "final/tokens": usage.tokens.total if usage else None,
        "final/usd": usage.usd if usage else None,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _make_interval_numbers(name: str, score: EvalScore | None) -> dict[str, float | None]:
    return {f"{name}_low": score.ci.low, f"{name}_high": score.ci.high} if score else {}


def _list_uploaded_files(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    """Plain files alone: no link of a directory that came from elsewhere leads out of it."""
    named = [paths.spec, paths.result, paths.ledger]
    if _has_file_type(paths.report, stat.S_ISDIR):
        named += [paths.report_json, paths.report_text, paths.report_page]
        named += sorted(paths.figures.iterdir()) if _has_file_type(paths.figures, stat.S_ISDIR) else []
    for path in named:
        if _has_file_type(path, stat.S_ISREG) and re.fullmatch(r"[\w.-]+", path.name):
            yield paths.relative_name(path), path


def _has_file_type(path: Path, kind: Callable[[int], bool]) -> bool:
    with suppress(OSError):
        return kind(path.lstat().st_mode)
    return False
