"""Reproduce a submission: run its recorded code again, without an LLM, and compare what it trains.

A reproduction is a run of its own, in `reproductions/` of the original run. It has the same task, data, base
model, seed, budget and sandbox, and its agent is the recorded code. It has no network and cannot see the
original run. The answer is added to the original run's record.
"""

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core.errors import MachineError
from agent2rl.core.grading_records import EvalResult, EvalScore, HeldoutComparison, Submission
from agent2rl.core.reproduction import Reproduction
from agent2rl.record.crash_recovery import read_resume_state
from agent2rl.record.files import remove_tree
from agent2rl.record.ledger import append_addition, read_additions, read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_run
from agent2rl.record.recorder import Notify
from agent2rl.record.run_lock import RunLock
from agent2rl.record.untrusted_files import read_lines
from agent2rl.run.execution import FinishedRun, start_run
from agent2rl.run.recorded_code import CodeReproduction, normalise_submitted_path, write_recorded_code
from agent2rl.run.reproduction_plan import ReproductionPlan, ReproductionRequest, plan_reproduction
from agent2rl.run.settings import Settings

REPLAY_LINE = b"replay: "
WEAK = (
    "This says little: the submission's own gain is not significant, so the untouched model would pass too."
)


def reproduce_submission(
    paths: RunPaths,
    request: ReproductionRequest,
    settings: Settings,
    notify: Notify,
    stop: threading.Event,
) -> Reproduction | None:
    """Reproduce a submission and add the answer to the run's record; None if it was stopped."""
    plan = plan_reproduction(paths, request, settings)
    with RunLock(plan.target.lock), _keep_only_recorded(plan.target):
        reproduction = _run_recorded_code(plan, settings, notify, stop)
        if reproduction:
            append_addition(plan.target, "reproduction", reproduction.model_dump(mode="json"))
        return reproduction


@contextmanager
def _keep_only_recorded(paths: RunPaths) -> Iterator[None]:
    """Delete what no record names: reproductions that were interrupted, failed or died."""
    paths.reproductions.mkdir(mode=0o700, exist_ok=True)
    try:
        _remove_unrecorded(paths)
        yield
    finally:
        _remove_unrecorded(paths)
        if not any(paths.reproductions.iterdir()):
            paths.reproductions.rmdir()


def _remove_unrecorded(paths: RunPaths) -> None:
    entries = read_ledger(paths.ledger, paths.ledger_head).entries
    added = read_additions(paths, entries[-1].hash)
    if added.fault:  # then it is not known what is recorded
        return
    recorded = {each.run for each in added.list_reproductions()}
    for path in paths.reproductions.iterdir():
        if path.name in recorded:
            continue
        if path.is_symlink():
            path.unlink()
        else:
            remove_tree(path)


def _run_recorded_code(
    plan: ReproductionPlan, settings: Settings, notify: Notify, stop: threading.Event
) -> Reproduction | None:
    if plan.found.problem:
        return plan.answer("cannot", plan.found.problem)
    result = plan.view.result
    assert result is not None
    with tempfile.TemporaryDirectory(dir=plan.target.reproductions, prefix="code-") as folder:
        Path(folder).chmod(0o755)  # sandboxes read it as another user
        code = write_recorded_code(
            Path(folder), plan.files.given, plan.found.steps, plan.submitted, plan.count
        )
        reproduction = CodeReproduction(
            agent=code,
            assets=result.assets,
            choose=lambda submissions, root: _choose_trained(plan, submissions, root),
            heldout=plan.split == "heldout",
            hidden=plan.hidden,
        )
        here = replace(settings, runs=plan.target.reproductions)
        finished = start_run(plan.spec, here, notify, stop, reproduction)
    if finished.result.ending == "interrupted":
        return None
    if finished.result.ending == "failed":
        raise MachineError(f"The reproduction could not run: {finished.result.reason}")
    return _compare_models(plan, finished)


def _find_retrained(
    plan: ReproductionPlan, submissions: Sequence[Submission], root: PurePosixPath
) -> Submission | None:
    """Return the submission that corresponds to the original one: the same path, as often as it was used."""
    mine = [each for each in submissions if normalise_submitted_path(each.path, str(root)) == plan.submitted]
    return mine[min(plan.count, len(mine)) - 1] if mine else None


def _choose_trained(
    plan: ReproductionPlan, submissions: Sequence[Submission], root: PurePosixPath
) -> Submission | None:
    """Return the submission with the content to grade on the held-out split; None if there is nothing to."""
    retrained = _find_retrained(plan, submissions, root)
    if retrained is None or retrained.score is None or retrained.lineage == "copied":
        return None
    by_id = {each.id: each for each in submissions}
    return by_id[retrained.same_as] if retrained.same_as else retrained


# Comparing


def _compare_models(plan: ReproductionPlan, finished: FinishedRun) -> Reproduction:
    view = read_run(finished.paths)
    root = registry.find_sandbox(view.used_sandbox).workspace(finished.paths.workspace)
    retrained = _find_retrained(plan, view.submissions, root)
    if retrained is None:
        return plan.answer("cannot", _explain_missing(finished), finished)
    if retrained.verdict == "rejected":
        reason = f"the retrained model was rejected: {retrained.message}"
        return plan.answer("not reproduced", reason, finished)
    if retrained.score is None:
        return plan.answer("cannot", f"the retrained model has no score: {retrained.message}", finished)
    results = _read_retrained_results(plan, view, retrained)
    if results is None:
        return plan.answer("cannot", f"the retrained model was not graded on {plan.split}", finished)
    same = None
    if retrained.weights_sha256 and plan.submission.weights_sha256:
        same = retrained.weights_sha256 == plan.submission.weights_sha256
    return _compare_scores(plan, finished, results, same)


def _read_retrained_results(
    plan: ReproductionPlan, view: RunView, retrained: Submission
) -> EvalResult | None:
    if retrained.lineage == "copied":  # it is the base model, with the same results
        return plan.untouched
    state = read_resume_state(view.paths, view.chain.entries, None)
    where = view.paths.submission_paths(retrained.same_as or retrained.id)
    return state.read_recorded_results(view.paths, where, plan.split)


def _compare_scores(
    plan: ReproductionPlan, finished: FinishedRun, results: EvalResult, same_weights: bool | None
) -> Reproduction:
    """Compare: reproduced if the intervals overlap and the paired difference is not significant."""
    score = statistics.score_evaluation(results, plan.split)
    original = statistics.score_evaluation(plan.original, plan.split)
    difference = statistics.compare_evaluations(plan.original, results)
    agrees = _do_intervals_overlap(original, score) and not _is_significant(difference)
    reason = _read_last_replay_line(finished).partition("; ")[2]  # a step that failed
    if agrees:
        gain = statistics.compare_evaluations(plan.untouched, plan.original)
        reason = "" if _is_significant(gain) else WEAK
    reproduction = plan.answer("reproduced" if agrees else "not reproduced", reason, finished)
    figures = {"retrained": score, "difference": difference, "same_weights": same_weights}
    return reproduction.model_copy(update=figures)


def _do_intervals_overlap(first: EvalScore, second: EvalScore) -> bool:
    return first.ci.low <= second.ci.high and second.ci.low <= first.ci.high


def _is_significant(comparison: HeldoutComparison) -> bool:
    return not comparison.ci.low <= 0 <= comparison.ci.high


def _explain_missing(finished: FinishedRun) -> str:
    """Say why nothing was submitted."""
    result = finished.result
    if result.ending == "deadline":
        budget = result.spec.budget.wall_seconds
        return f"the steps did not finish within {budget:g} s: give more time with --budget"
    if result.ending not in ("completed", "agent-failed"):
        return f"the steps were stopped ({result.ending}): {result.reason}"
    return _read_last_replay_line(finished) or result.reason or "the steps ended without a model"


def _read_last_replay_line(finished: FinishedRun) -> str:
    """Return how the replay ended, as it says itself. Steps can print such lines too."""
    last = b""
    for line in read_lines(finished.paths.agent_log):
        last = line if line.startswith(REPLAY_LINE) else last
    return last.removeprefix(REPLAY_LINE).decode(errors="replace")
