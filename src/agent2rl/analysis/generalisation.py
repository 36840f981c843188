"""Measure how a model generalises and how it plays a world: untouched, after training, and in training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from agent2rl.analysis import statistics
from agent2rl.analysis.findings import (
    Generalisation,
    GeneralisationFigure,
    MeasuredFigure,
    ModelGeneralisation,
)
from agent2rl.core.grading_records import (
    EvalScore,
    ExampleResult,
    Interval,
    PanelResult,
    Split,
    Submission,
    TrajectoryTurn,
    find_best_submission,
)
from agent2rl.core.records import RolloutCounts, Rollouts
from agent2rl.record.reader import RunView

Answers = Mapping[int, Sequence[ExampleResult]]
"""By submission; 0 is the untouched model."""
Figure = MeasuredFigure | str
"""A figure, or the reason why it is not known."""

WON = 1.0
LEAST_OBSERVATIONS = 5
"""With fewer there is no interval."""
LAST_PART = 0.25
"""The part of the training's episodes that tells how the trained model plays: its last."""
LEAST_EPISODES = 20
"""With fewer episodes of the training, its last part tells nothing."""
PLACES = 6
TRAIN = "train"
"""The regression panel's name for training examples of the run's own task."""
REFUSALS = ("Nothing happens.", "There is no action in this.")
"""How ALFWorld and search answer an invalid action, in records that do not mark these."""

NO_RESULT = "the run has no result"
NO_BEST = "no submission counts"
NO_PANEL = "the models were not graded on training examples (--also train)"
NOT_UNSEEN = "the model has no score on the examples that rank the run"
NO_WORLD = "the task is no world"
NOT_SAID = "the record does not say whether the task is a world"
NO_EPISODE = "no episode was recorded"
NONE_WON = "no episode was won"
NO_ACTION = "no action was taken"
NOT_MARKED = "the record does not say which actions were invalid"


def measure_generalisation(
    view: RunView, results: Mapping[Split, Answers], played: Sequence[Rollouts] = ()
) -> Generalisation:
    """Measure what is recorded. `played` are the episodes of the training, as they were counted in turn."""
    best = view.result.best if view.result else find_best_submission(view.submissions)
    chosen = _choose_answers(view, results, best)
    episodes = [*_list_episodes(chosen.before), *_list_episodes(chosen.after)]
    world = _find_world(view, results, played)
    by_reply = any(map(_looks_refused, _list_actions(episodes)))
    train, unseen = _find_panel(view), _find_unseen_scores(view)
    no_gap = _explain_gap(view, train)
    return Generalisation(
        world=world,
        submission=best.id if best else None,
        unseen_split="test" if view.spec.protocol == "paper" else "heldout",
        episodes_split=chosen.split if episodes else None,
        baseline=_measure_model(
            train.baseline if train else None,
            unseen[0],
            no_gap,
            _measure_play(chosen.before, world, by_reply, NO_EPISODE),
        ),
        best=_measure_model(
            train.best if train else None,
            unseen[1],
            no_gap if best or not view.result else NO_BEST,
            _measure_play(chosen.after, world, by_reply, NO_EPISODE if best else NO_BEST),
        ),
        training_win_rate=_measure_training(played),
    )


def _measure_model(
    train: EvalScore | None,
    unseen: EvalScore | None,
    no_gap: str,
    play: Mapping[GeneralisationFigure, Figure],
) -> ModelGeneralisation:
    gap = _measure_gap(train, unseen) or (no_gap if train is None else NOT_UNSEEN)
    figures: dict[GeneralisationFigure, Figure] = {"train_gap": gap, **play}
    return ModelGeneralisation.model_validate(
        {
            "train_score": train.value if train else None,
            "unseen_score": unseen.value if unseen else None,
            **{name: each for name, each in figures.items() if isinstance(each, MeasuredFigure)},
            "unknown": {name: each for name, each in figures.items() if isinstance(each, str)},
        }
    )


# The score on training examples against that on examples which no training has seen.


def _find_panel(view: RunView) -> PanelResult | None:
    panel = view.result.also if view.result else ()
    return next((each for each in panel if each.task == TRAIN), None)


def _find_unseen_scores(view: RunView) -> tuple[EvalScore | None, EvalScore | None]:
    """Return the scores of the untouched model and the best submission on the split that ranks."""
    result = view.result
    if result is None:
        return None, None
    if view.spec.protocol == "paper":
        return result.baseline, result.best.score if result.best else None
    return result.baseline_heldout, result.best_heldout


def _measure_gap(train: EvalScore | None, unseen: EvalScore | None) -> MeasuredFigure | None:
    if train is None or unseen is None:
        return None
    ci = statistics.difference_interval(unseen.value, unseen.ci, train.value, train.ci)
    return _make_figure(train.value - unseen.value, ci, train.n)


def _explain_gap(view: RunView, panel: PanelResult | None) -> str:
    if view.result is None:
        return NO_RESULT
    if panel is None:
        return NO_PANEL
    return f"the training examples were not graded: {panel.reason.rstrip('.') or 'the record has no reason'}"


# How a model plays, by the first recorded episode of each example.


@dataclass(frozen=True)
class _ChosenAnswers:
    split: Split | Literal["test"] | None
    before: Sequence[ExampleResult] = ()
    after: Sequence[ExampleResult] = ()


def _choose_answers(
    view: RunView, results: Mapping[Split, Answers], best: Submission | None
) -> _ChosenAnswers:
    """Choose the split that ranks if both models have answers on it, else feedback, else any that has."""
    heldout, feedback = _get_answers("heldout", results, best), _get_answers("feedback", results, best)
    if view.spec.protocol == "paper":
        before, after = (*feedback.before, *heldout.before), (*feedback.after, *heldout.after)
        return _ChosenAnswers("test", before, after)
    complete = [each for each in (heldout, feedback) if each.before and each.after]
    partial = [each for each in (feedback, heldout) if each.before or each.after]
    return next(iter([*complete, *partial]), _ChosenAnswers(None))


def _get_answers(split: Split, results: Mapping[Split, Answers], best: Submission | None) -> _ChosenAnswers:
    answers = results.get(split, {})
    after = (answers.get(best.id) or answers.get(best.same_as or -1, ())) if best else ()
    return _ChosenAnswers(split, answers.get(0, ()), after)


def _find_world(view: RunView, results: Mapping[Split, Answers], played: Sequence[Rollouts]) -> bool | None:
    """Return whether the task is a world: whether anything was played in one. None if nothing was graded."""
    graded = [each for answers in results.values() for group in answers.values() for each in group]
    if (
        played
        or (view.result and view.result.rollouts is not None)
        or any(each.trajectory for each in graded)
    ):
        return True
    return False if graded else None


def _measure_play(
    results: Sequence[ExampleResult], world: bool | None, by_reply: bool, no_episode: str
) -> dict[GeneralisationFigure, Figure]:
    episodes = _list_episodes(results)
    if not episodes:
        reason = NO_WORLD if world is False else NOT_SAID if world is None else no_episode
        return dict.fromkeys(
            ("win_rate", "steps_to_success", "steps_per_episode", "invalid_action_rate"), reason
        )
    won = [each for each in episodes if _read_score(each) >= WON]
    return {
        "win_rate": _make_rate(len(won), len(episodes)),
        "steps_to_success": _average_steps(won) if won else NONE_WON,
        "steps_per_episode": _average_steps(episodes),
        "invalid_action_rate": _measure_invalid_actions(episodes, by_reply),
    }


def _list_episodes(results: Iterable[ExampleResult]) -> list[ExampleResult]:
    return [each for each in results if each.trajectory]


def _list_actions(episodes: Iterable[ExampleResult]) -> Iterable[TrajectoryTurn]:
    """Yield the turns that have an action: all but the first of each episode."""
    return (turn for each in episodes for turn in each.trajectory[1:])


def _read_score(episode: ExampleResult) -> float:
    """Return the score of the recorded episode, which is the first of an example's attempts."""
    return episode.attempts[0].score if episode.attempts else episode.score


def _average_steps(episodes: Sequence[ExampleResult]) -> MeasuredFigure:
    steps = [len(each.trajectory) - 1 for each in episodes]
    ci = statistics.ratio_interval(steps, [1] * len(steps)) if len(steps) >= LEAST_OBSERVATIONS else None
    return _make_figure(sum(steps) / len(steps), ci, len(steps))


def _measure_invalid_actions(episodes: Sequence[ExampleResult], by_reply: bool) -> Figure:
    """Return the share of invalid actions. `by_reply`: read unmarked ones from the world's reply."""
    active = [each.trajectory[1:] for each in episodes if len(each.trajectory) > 1]
    if not active:
        return NO_ACTION
    if not by_reply and any(turn.invalid is None for turns in active for turn in turns):
        return NOT_MARKED
    invalid = [sum(_is_invalid(turn) for turn in turns) for turns in active]
    actions = [len(turns) for turns in active]
    if sum(invalid) in (0, sum(actions)):  # resampling equal episodes would give an interval of no width
        return _make_rate(len(active) if sum(invalid) else 0, len(active))
    ci = statistics.ratio_interval(invalid, actions) if len(active) >= LEAST_OBSERVATIONS else None
    return _make_figure(sum(invalid) / sum(actions), ci, len(active))


def _is_invalid(turn: TrajectoryTurn) -> bool:
    return _looks_refused(turn) if turn.invalid is None else turn.invalid


def _looks_refused(turn: TrajectoryTurn) -> bool:
    return turn.invalid is None and turn.observation.startswith(REFUSALS)


def _measure_training(played: Sequence[Rollouts]) -> MeasuredFigure | None:
    """Return the share of wins among the last episodes of the training that were served or replayed."""
    sums = [each.witnessed for each in accumulate(played)]
    if not sums or sums[-1].episodes < LEAST_EPISODES:
        return None
    begins = (1 - LAST_PART) * sums[-1].episodes
    before = next((each for each in reversed(sums) if each.episodes <= begins), RolloutCounts())
    last = sums[-1].subtract(before)
    return _make_rate(min(last.successes, last.episodes), last.episodes)


def _make_rate(count: int, n: int) -> MeasuredFigure:
    ci = statistics.wilson_interval(count, n)
    share = ci.model_copy(update={"low": ci.low / 100, "high": ci.high / 100})
    return _make_figure(count / n, share, n)


def _make_figure(value: float, ci: Interval | None, n: int) -> MeasuredFigure:
    """Round, so that the figure is the same on every machine."""
    if ci:
        ci = ci.model_copy(update={"low": round(ci.low, PLACES), "high": round(ci.high, PLACES)})
    return MeasuredFigure(value=round(value, PLACES), ci=ci, n=n)
