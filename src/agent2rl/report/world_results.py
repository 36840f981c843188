"""How a model plays a task's world, before and after training, and in training: does it generalise?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agent2rl.core.grading_records import ExampleResult
from agent2rl.core.records import RolloutCounts
from agent2rl.report.report_data import ReportData
from agent2rl.report.run_changes import choose_answers

WON = 1.0
NO_EFFECT = ("Nothing happens.", "There is no action in this.")
"""How worlds answer an action that they do not know. Others show what they showed before."""
LAST_PART = 0.25
"""The part of the training's episodes that tells how the trained model plays: its last."""
LEAST_EPISODES = 20


@dataclass(frozen=True)
class WorldMetric:
    """A row of the table; None is unknown."""

    name: str
    before: float | None
    after: float | None
    unit: str


@dataclass(frozen=True)
class WorldResults:
    split: str
    metrics: tuple[WorldMetric, ...]
    training: float | None
    """Share of episodes won in the last part of the training, in percent."""
    episodes: int
    """Number of episodes in this part. The harness served or replayed them all."""

    @property
    def gap(self) -> float | None:
        """Points won in training minus points won in the graded episodes of the best submission."""
        graded = self.metrics[0].after
        return self.training - graded if self.training is not None and graded is not None else None


def measure_world_results(data: ReportData) -> WorldResults | None:
    """Measure the recorded episodes; None if the task has no world, or if no episode was recorded."""
    split, _, before, after = choose_answers(data)
    sides = [[each for each in side if len(each.trajectory) > 1] for side in (before, after)]
    if not any(sides):
        return None
    training, episodes = _measure_training(data)
    return WorldResults(
        split=split,
        metrics=(
            _measure("Episodes won", "%", _share_won, sides),
            _measure("Turns to win", "", _turns_to_win, sides),
            _measure("Turns of an episode", "", _turns, sides),
            _measure("Actions without effect", "%", _share_without_effect, sides),
        ),
        training=training,
        episodes=episodes,
    )


def _measure(
    name: str,
    unit: str,
    measure: Callable[[Sequence[ExampleResult]], float | None],
    sides: Sequence[Sequence[ExampleResult]],
) -> WorldMetric:
    before, after = map(measure, sides)
    return WorldMetric(name, before, after, unit)


def _share_won(results: Sequence[ExampleResult]) -> float | None:
    return 100 * fmean(each.score >= WON for each in results) if results else None


def _turns_to_win(results: Sequence[ExampleResult]) -> float | None:
    return _turns([each for each in results if each.score >= WON])


def _turns(results: Sequence[ExampleResult]) -> float | None:
    return fmean(len(each.trajectory) - 1 for each in results) if results else None


def _share_without_effect(results: Sequence[ExampleResult]) -> float | None:
    turns = [pair for each in results for pair in zip(each.trajectory, each.trajectory[1:], strict=False)]
    if not turns:
        return None
    same = (
        now.observation == last.observation or now.observation.startswith(NO_EFFECT) for last, now in turns
    )
    return 100 * fmean(same)


def _measure_training(data: ReportData) -> tuple[float | None, int]:
    """Return the share of wins among the last witnessed episodes of the training, and their number."""
    played = [each.witnessed for each in data.timeline.played]
    if not played or played[-1].episodes < LEAST_EPISODES:
        return None, 0
    begins = (1 - LAST_PART) * played[-1].episodes
    before = next((each for each in reversed(played) if each.episodes <= begins), RolloutCounts())
    last = played[-1].minus(before)
    return 100 * min(1.0, last.successes / last.episodes), last.episodes
