"""Grade a run's kept outputs again, with another judge or another rule of its task. No model is needed.

Old and new scores are compared on the same examples, paired. Nothing in the run's record changes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import (
    EvalResult,
    EvalScore,
    EvalSettings,
    ExampleResult,
    HeldoutComparison,
    Split,
)
from agent2rl.core.records import Isolation, Record
from agent2rl.core.task import ChatEvaluator, Example, Splits, Task
from agent2rl.record.crash_recovery import ResumeState, read_resume_state
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.reader import RunView
from agent2rl.run.assets import test_set, write_split_file
from agent2rl.run.grading_proxy_setup import GradingProxyOptions, open_grading_proxy
from agent2rl.run.output_scoring import SECONDS, grade_outputs, join_actions, make_replay_child
from agent2rl.run.private_places import find_private_places
from agent2rl.run.sandbox_choice import open_sandbox
from agent2rl.run.settings import Settings
from agent2rl.run.task_data import load_task_data

Rule = Literal["task", "paper"]
"""`task`: the task's own rule. `paper`: its published profile."""
TASK_RULE = "the task's rule"
SPLITS: tuple[Split, ...] = ("feedback", "heldout")


class RejudgedScore(Record):
    """The score of the same outputs before and after."""

    submission: int
    """0 is the base model."""
    split: Split
    old: EvalScore
    new: EvalScore
    difference: HeldoutComparison
    """New minus old, on the same examples."""


class RejudgedGain(Record):
    """What a submission gains over the base model, by the old scores and by the new ones."""

    submission: int
    split: Split
    old: HeldoutComparison
    new: HeldoutComparison


class Rejudgement(Record):
    run_id: str
    task: str
    old_rule: str
    new_rule: str
    scores: tuple[RejudgedScore, ...]
    gains: tuple[RejudgedGain, ...]
    not_graded: tuple[str, ...]
    """What could not be graded again, and why."""
    notes: tuple[str, ...]
    isolation: Isolation | None = None
    """The sandbox in which the outputs were graded."""


@dataclass(frozen=True)
class RejudgeOptions:
    judge: str | None = None
    rule: Rule | None = None
    """None: the rule of the run."""
    search: str | None = None
    submissions: tuple[int, ...] = ()
    """Empty: the best one. The base model is always graded."""
    task: str | None = None
    """The task's name or folder here; None: as the run names it."""
    data_dir: Path | None = None
    sandbox: str = "auto"


@dataclass(frozen=True)
class _KeptResults:
    submission: int
    split: Split
    results: EvalResult


def rejudge_run(
    view: RunView,
    options: RejudgeOptions,
    settings: Settings,
    tell: Callable[[str], None] = lambda _: None,
) -> Rejudgement:
    name, profile, task = _find_rule(view, options, settings)
    kept_results, not_graded = _read_kept_results(view, options)
    if not kept_results:
        raise UserError(f"Nothing of {view.paths.run_id} can be graded again: {'; '.join(not_graded)}.")
    opened = open_sandbox(options.sandbox, find_private_places(settings))
    tell(opened.description)
    splits = load_task_data(task, options.data_dir, settings.cache, opened.sandbox)
    notes = tuple(_compare_data(view, splits, settings))
    graded: list[tuple[_KeptResults, EvalResult]] = []
    with open_grading_proxy(
        GradingProxyOptions(options.search, judge=options.judge), task, settings, needed=False
    ) as proxy:
        child = make_replay_child(task, name, splits, settings, opened.sandbox, SECONDS, proxy)
        child = replace(child, profile=profile, settings=EvalSettings(seed=view.spec.seed))
        for each in kept_results:
            tell(f"grading {_describe_part(each)}: {len(each.results.results)} outputs")
            examples, outputs = _collect_outputs(each, splits)
            graded.append((each, grade_outputs(child, examples, outputs)))
    return Rejudgement(
        run_id=view.paths.run_id,
        task=task.id,
        old_rule=_describe_old_rule(view),
        new_rule=_describe_new_rule(task, options.judge, profile),
        scores=tuple(_compare_scores(old, new) for old, new in graded),
        gains=tuple(_list_gains(graded)),
        not_graded=tuple(not_graded),
        notes=notes,
        isolation=opened.isolation,
    )


def _find_rule(view: RunView, options: RejudgeOptions, settings: Settings) -> tuple[str, str | None, Task]:
    """Return the task's name, the profile, and the task as it is to be graded."""
    name = registry.resolve_task_name(options.task or view.spec.task, settings.tasks, options.data_dir)
    task = registry.find_task(name)
    profile = view.spec.profile
    if options.rule == "task":
        profile = None
    elif options.rule == "paper":
        if task.paper is None:
            raise UserError(f"The task {task.id!r} has no published profile.", "Use --rule task.")
        profile = task.paper.label
    task = task.apply_profile(profile)
    if not isinstance(task.evaluator, ChatEvaluator) and task.world is None:
        raise UserError(
            f"The task {task.id!r} cannot be graded from outputs: its evaluator queries the model itself.",
            "Its outputs are not kept in a form that another rule could grade.",
        )
    if task.judged and options.judge is None:
        raise UserError(f"No rule scores the task {task.id!r}.", "Name a judge: --judge NAME.")
    return name, profile, task


def _read_kept_results(view: RunView, options: RejudgeOptions) -> tuple[list[_KeptResults], list[str]]:
    """Return the recorded results to grade again, and why others cannot be."""
    state = read_resume_state(view.paths, view.chain.entries, None)
    best = view.result.best if view.result else None
    numbers = options.submissions or ((best.same_as or best.id,) if best else ())
    submissions = {submission.id: submission for submission in view.submissions}
    kept_results, problems = list(_read_parts(view.paths.baseline, 0, state, view)), []
    for number in numbers:
        if number not in submissions:
            raise UserError(f"{view.paths.run_id} has no submission {number}.", f"It has {len(submissions)}.")
        parts = list(_read_parts(view.paths.submission_paths(number), number, state, view))
        if not parts:
            same = submissions[number].same_as
            why = (
                f"it is a copy of submission {same}"
                if same
                else f"its verdict is {submissions[number].verdict}"
            )
            problems.append(f"submission {number} has no results ({why})")
        kept_results += parts
    problems += [
        f"{_describe_part(each)}: {fault}" for each in kept_results if (fault := _find_output_fault(each))
    ]
    return [each for each in kept_results if not _find_output_fault(each)], problems


def _read_parts(
    where: SubmissionPaths, number: int, state: ResumeState, view: RunView
) -> Iterator[_KeptResults]:
    for split in SPLITS:
        if results := state.read_recorded_results(view.paths, where, split):
            yield _KeptResults(number, split, results)


def _find_output_fault(part: _KeptResults) -> str | None:
    """Return why these outputs cannot be graded, or None."""
    results = part.results.results
    if any(result.averaged is not None for result in results):
        return "its outputs were not kept, only the score that the task's evaluator computed"
    if any(result.trajectory and result.attempts for result in results):
        return "of several episodes for each example, only the first was kept"
    counts = {len(list_kept_outputs(result)) for result in results}
    return None if len(counts) == 1 else "its examples have different numbers of outputs"


def list_kept_outputs(result: ExampleResult) -> list[str]:
    """Return the recorded outputs of an example; of an episode, its actions."""
    if result.trajectory:
        return [join_actions([turn.action for turn in result.trajectory])]
    return [answer.output for answer in result.attempts] or [result.output]


def _collect_outputs(part: _KeptResults, splits: Splits) -> tuple[list[Example], dict[str, list[str]]]:
    outputs = {result.id: list_kept_outputs(result) for result in part.results.results}
    examples = [example for example in _list_examples(splits) if example.id in outputs]
    if len(examples) < len(outputs):
        unknown = next(iter(outputs.keys() - {example.id for example in examples}))
        raise UserError(
            f"The task here has no example {unknown!r}, which the run was graded on.",
            "Name the task or the data that the run had: --task, --data-dir.",
        )
    return examples, outputs


def _list_examples(splits: Splits) -> Sequence[Example]:
    examples = {example.id: example for example in (*splits.feedback, *splits.heldout, *test_set(splits))}
    return list(examples.values())


def _compare_data(view: RunView, splits: Splits, settings: Settings) -> Iterator[str]:
    """Yield a note for each split whose examples are not those of the run."""
    recorded = {asset.name: asset.sha256 for asset in (view.result.assets if view.result else ())}
    paper = view.spec.protocol == "paper"
    current = {"feedback": test_set(splits) if paper else splits.feedback, "heldout": splits.heldout}
    for name, examples in current.items():
        if name in recorded and write_split_file(examples, settings.cache).sha256 != recorded[name]:
            yield f"the {name} split here is not the run's: questions or reference answers differ"


def _compare_scores(old: _KeptResults, new: EvalResult) -> RejudgedScore:
    comparable = EvalResult(results=old.results.results)  # outputs without a result were not kept
    if not new.results:
        raise UserError(f"No output of {_describe_part(old)} has a new score.")
    return RejudgedScore(
        submission=old.submission,
        split=old.split,
        old=statistics.score_evaluation(old.results, old.split),
        new=statistics.score_evaluation(new, old.split),
        difference=statistics.compare_evaluations(comparable, new),
    )


def _list_gains(graded: Sequence[tuple[_KeptResults, EvalResult]]) -> Iterator[RejudgedGain]:
    baselines = {old.split: (old, new) for old, new in graded if old.submission == 0}
    for old, new in graded:
        if old.submission == 0 or old.split not in baselines:
            continue
        old_base, new_base = baselines[old.split]
        ids = {each.id for each in old.results.results} & {each.id for each in old_base.results.results}
        if not ids:
            continue
        yield RejudgedGain(
            submission=old.submission,
            split=old.split,
            old=statistics.compare_evaluations(
                *(_select_results(each.results, ids) for each in (old_base, old))
            ),
            new=statistics.compare_evaluations(_select_results(new_base, ids), _select_results(new, ids)),
        )


def _select_results(results: EvalResult, ids: set[str]) -> EvalResult:
    return EvalResult(
        results=tuple(each for each in results.results if each.id in ids),
        missing={name: why for name, why in results.missing.items() if name in ids},
    )


def _describe_part(part: _KeptResults) -> str:
    what = f"submission {part.submission}" if part.submission else "the base model"
    return f"{what}, {part.split}"


def _describe_old_rule(view: RunView) -> str:
    rule = view.spec.profile or TASK_RULE
    return f"{rule}, judged by {view.spec.judge}" if view.spec.judge else rule


def _describe_new_rule(task: Task, judge: str | None, profile: str | None) -> str:
    rule = f"{profile or TASK_RULE} ({task.evaluator.version})"
    return f"{rule}, judged by {judge}" if judge else rule
