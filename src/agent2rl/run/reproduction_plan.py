"""Plan a reproduction: find a submission's recorded code and programs, and what to compare with."""

import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.analysis.recorded_steps import FoundSteps, RecordedWorkspace, find_steps, has_directories
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalResult, Split, Submission
from agent2rl.core.records import RunResult, RunSpec
from agent2rl.core.reproduction import RecordedStep, Reproduction, ReproductionAnswer
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.grading.verify import ALL_CHECKED, verify_run
from agent2rl.record.crash_recovery import ResumeState, read_resume_state
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_events, read_run
from agent2rl.record.revisions import read_revision_files
from agent2rl.record.untrusted_files import sanitize_line
from agent2rl.run.execution import FinishedRun
from agent2rl.run.recorded_code import (
    MOST_CODE_BYTES,
    MOST_DATA_CHARACTERS,
    SortedFiles,
    count_recorded_data,
    measure_code_bytes,
    normalise_submitted_path,
    read_texts,
    sort_files,
)
from agent2rl.run.settings import Settings
from agent2rl.run.third_party_runs import ThirdPartyRun, find_recorded_workspace, restrict_spec
from agent2rl.run.workspace import HARNESS_FILES

AGENT = "recorded-code"
"""The agent of a reproduction, in its specification."""
MOST_WITHHELD = 50
LONGEST_REASON = 500
EARLIER_VERSION = "An earlier version recorded this run, and it did not record {}."


@dataclass(frozen=True)
class ReproductionRequest:
    """What the user asks for; None: what the original run had."""

    submission: int | None = None
    """None: the best."""
    wall_seconds: float | None = None
    entry: tuple[str, ...] = ()
    """Commands that train the submission, in order; empty: the recorded ones."""
    sandbox: str | None = None
    third_party_run: ThirdPartyRun | None = None
    """For a run from other people: where results are stored, and what replaces the names in its record."""


@dataclass(frozen=True)
class ReproductionPlan:
    """What will run, and what it is compared with."""

    paths: RunPaths
    target: RunPaths
    """Where the reproduction and its answer are written; usually the run itself."""
    hidden: tuple[Path, ...]
    """Where the original run is, which no sandbox may show."""
    view: RunView
    submission: Submission
    submitted: str
    """Path of the model in the workspace."""
    count: int
    """How many submissions had this path, up to this one."""
    revision: int
    split: Split
    original: EvalResult
    untouched: EvalResult
    """The untouched model's results on the same split."""
    files: SortedFiles
    found: FoundSteps
    named: bool
    spec: RunSpec

    def answer(
        self, answer: ReproductionAnswer, reason: str = "", finished: FinishedRun | None = None
    ) -> Reproduction:
        """Return an answer without figures of a retrained model."""
        withheld = [f"{path}: {why}" for path, why in self.files.withheld.items()]
        not_listed = len(withheld) - MOST_WITHHELD
        return Reproduction(
            at=time.time(),
            submission=self.submission.id,
            revision=self.revision,
            answer=answer,
            reason=sanitize_line(reason, LONGEST_REASON),
            split=self.split,
            original=statistics.score_evaluation(self.original, self.split),
            baseline=statistics.score_evaluation(self.untouched, self.split).value,
            named=self.named,
            steps=self.found.steps,
            left_out=self.found.left_out,
            withheld=(*withheld[:MOST_WITHHELD], *([f"and {not_listed} more"] if not_listed > 0 else [])),
            differences=tuple(self._list_differences(finished)),
            run=finished.paths.run_id if finished else None,
            run_head=finished.ledger_head if finished else None,
        )

    def _list_differences(self, finished: FinishedRun | None) -> Iterator[str]:
        """Yield what differs from the original run's environment."""
        if self.view.spec.network != "none":
            yield f"no network, where the original run had {self.view.spec.network}"
        reproduced = read_run(finished.paths) if finished else None
        sandbox = reproduced.used_sandbox if reproduced else self.spec.sandbox
        if sandbox not in (self.view.used_sandbox, AUTO_SANDBOX):
            yield f"the sandbox {sandbox} instead of {self.view.used_sandbox}"
        if self.spec.budget.wall_seconds != self.view.spec.budget.wall_seconds:
            was, now = self.view.spec.budget.wall_seconds, self.spec.budget.wall_seconds
            yield f"{now:g} s instead of {was:g} s"
        before, after = self.view.agent_python, reproduced.agent_python if reproduced else None
        if before and after and before.sha256 != after.sha256:
            changed = sorted(set(after.packages) ^ set(before.packages))
            yield f"other packages: {', '.join(changed[:8]) or 'another Python'}"


def plan_reproduction(paths: RunPaths, request: ReproductionRequest, settings: Settings) -> ReproductionPlan:
    """Read what is recorded of a submission; raise UserError if that is not a reproducible record."""
    third_party_run = request.third_party_run
    view = read_run(paths)
    if view.result is None:
        raise UserError(
            f"{paths.run_id} has no result: it is {view.state}.",
            "Reproduce a run when it has ended. `agent2rl resume` continues one that crashed.",
        )
    verification = verify_run(paths, unchecked=third_party_run.unchecked if third_party_run else ALL_CHECKED)
    if not verification.holds:
        raise UserError(
            f"The record of {paths.run_id} does not hold: {verification.fault}.",
            "Only an unchanged record can be reproduced.",
        )
    submission = _choose_submission(view, view.result, request.submission)
    revision = _find_revision(view, submission)
    state = read_resume_state(paths, view.chain.entries, None)
    split, original, untouched = _read_results(view, submission, state)
    if third_party_run:
        root = find_recorded_workspace(view, submission.path)
    else:
        root = str(registry.find_sandbox(view.used_sandbox).workspace(paths.workspace))
    submitted = normalise_submitted_path(submission.path, root)
    same_path = [each for each in view.submissions if normalise_submitted_path(each.path, root) == submitted]
    files = sort_files(read_revision_files(paths.revisions, revision))
    workspace = RecordedWorkspace(
        root=root,
        files=dict(read_texts(files.given)),
        given=HARNESS_FILES,
        driven=view.spec.driver is not None,
        submitted=submitted,
        accepted_at=submission.accepted_at,
    )
    found = _find_steps(view, workspace, files, request)
    return ReproductionPlan(
        paths=paths,
        target=third_party_run.target if third_party_run else paths,
        hidden=(
            paths.root,
            paths.root.parent,
            settings.runs,
            *(third_party_run.hidden if third_party_run else ()),
        ),
        view=view,
        submission=submission,
        submitted=submitted,
        count=1 + sum(each.id < submission.id for each in same_path),
        revision=revision,
        split=split,
        original=original,
        untouched=untouched,
        files=files,
        found=found,
        named=bool(request.entry),
        spec=_make_spec(view, request, found, settings),
    )


def _choose_submission(view: RunView, result: RunResult, number: int | None) -> Submission:
    if number is None and result.best is None:
        raise UserError(
            f"{view.paths.run_id} has no best submission.", "Name one with --submission; `show` lists them."
        )
    chosen = number or (result.best.id if result.best else 0)
    submission = next((each for each in view.submissions if each.id == chosen), None)
    if submission is None:
        numbers = ", ".join(str(each.id) for each in view.submissions) or "none"
        raise UserError(f"{view.paths.run_id} has no submission {chosen}.", f"It has: {numbers}.")
    if submission.score is None:
        raise UserError(
            f"Submission {chosen} has no score: it was {submission.verdict or 'not graded'}.",
            "Only a scored submission can be reproduced.",
        )
    if submission.lineage == "copied":
        raise UserError(f"Submission {chosen} is the base model itself: there is no training to reproduce.")
    return submission


def _find_revision(view: RunView, submission: Submission) -> int:
    for entry in view.chain.entries:
        number = entry.data.get("number")
        is_pin = entry.kind == "revision_of" and entry.data.get("submission") == submission.id
        if is_pin and isinstance(number, int):
            return number
    raise UserError(
        EARLIER_VERSION.format("the code of each submission"), "It cannot be reproduced from its record."
    )


def _read_results(
    view: RunView, submission: Submission, state: ResumeState
) -> tuple[Split, EvalResult, EvalResult]:
    """Return the split to compare on, and the results on it of the submission and of the untouched model.

    The held-out split was not used to choose the submission, so it comes first.
    """
    paths = view.paths
    where = paths.submission_paths(submission.same_as or submission.id)
    splits: tuple[Split, ...] = ("heldout", "feedback")
    for split in splits:
        original = state.read_recorded_results(paths, where, split)
        untouched = state.read_recorded_results(paths, paths.baseline, split)
        if original and untouched:
            return split, original, untouched
    raise UserError(
        EARLIER_VERSION.format("the settings of its gradings"), "It cannot be compared with anything."
    )


def _find_steps(
    view: RunView, workspace: RecordedWorkspace, files: SortedFiles, request: ReproductionRequest
) -> FoundSteps:
    if request.entry:
        found_steps = FoundSteps(tuple(RecordedStep(argv=_split_entry(text)) for text in request.entry))
    else:
        events = read_events(view.paths, [])
        if not has_directories(events):
            raise UserError(
                EARLIER_VERSION.format("where the agent's programs ran"),
                "Name the commands that trained the submission: --entry 'python code/train.py'.",
            )
        found_steps = find_steps(events, workspace)
    size = measure_code_bytes(files.given)
    if size > MOST_CODE_BYTES:
        problem = f"the recorded code is so large ({size / 1e6:.1f} MB compressed) that it could hold weights"
        return replace(found_steps, problem=problem)
    words = [text for step in found_steps.steps for text in _list_words(step)]
    if count_recorded_data(files.given, words) > MOST_DATA_CHARACTERS:
        problem = "small files, file names or command lines hold data that could be weights"
        return replace(found_steps, problem=problem)
    return _explain_withheld(found_steps, files.withheld)


def _list_words(step: RecordedStep) -> tuple[str, ...]:
    """Return all text of a step that its program can read."""
    return (*step.argv, step.directory, *step.environment, *step.environment.values())


def _explain_withheld(found_steps: FoundSteps, withheld: Mapping[str, str]) -> FoundSteps:
    """Say why a file that a program ran is missing, if it was withheld."""
    reasons = [why for path, why in withheld.items() if found_steps.problem.startswith(f"{path} is not in")]
    return replace(found_steps, problem=f"{found_steps.problem}; {reasons[0]}") if reasons else found_steps


def _split_entry(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{text!r} is not a command line: {error}.") from error
    if not words:
        raise UserError("An entry point is a command, such as --entry 'python code/train.py'.")
    return words


def _make_spec(
    view: RunView, request: ReproductionRequest, found_steps: FoundSteps, settings: Settings
) -> RunSpec:
    spec = view.spec.model_copy(update={"sandbox": view.used_sandbox})
    if request.third_party_run:
        spec = restrict_spec(spec, request.third_party_run.inputs, settings)
    wall_seconds = request.wall_seconds or spec.budget.wall_seconds
    needed = sum(step.gap_seconds if step.background else step.seconds for step in found_steps.steps)
    if wall_seconds < needed:
        raise UserError(
            f"A budget of {wall_seconds:g} s is too short: the recorded steps took {needed:.0f} s.",
            f"Give at least --budget {needed + 1:.0f}s, or leave it out: the run had "
            f"{spec.budget.wall_seconds:g} s.",
        )
    budget = spec.budget.model_copy(update={"wall_seconds": wall_seconds, "tokens": None, "usd": None})
    changes: dict[str, object] = {"agent": AGENT, "continues": 0, "network": "none", "keep": "none"}
    changes |= {"also": ()}
    changes |= {"driver": None, "record_driver": None, "replay_driver": None, "budget": budget}
    return spec.model_copy(update={**changes, "sandbox": request.sandbox or spec.sandbox})
