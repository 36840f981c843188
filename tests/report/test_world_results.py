"""How a model plays a world, before and after: only from episodes that were recorded."""

import dataclasses

import pytest

from agent2rl.analysis.findings import CumulativeRollouts
from agent2rl.core.grading_records import ExampleResult, TrajectoryTurn
from agent2rl.core.records import RolloutCounts
from agent2rl.report import html
from agent2rl.report.html import measure_world_results
from agent2rl.report.report_data import ReportData
from tests.report import sample_reports


def make_episode(name: str, score: float, *observations: str) -> ExampleResult:
    turns = tuple(TrajectoryTurn(action="go", observation=text) for text in observations)
    return ExampleResult(id=name, output="go", score=score, trajectory=turns)


def make_report_of_episodes(before: list[ExampleResult], after: list[ExampleResult]) -> ReportData:
    data = sample_reports.make_finished_report()
    return dataclasses.replace(data, results={"heldout": {0: before, 6: after}})


def count_episodes(at: float, episodes: int, successes: int) -> CumulativeRollouts:
    return CumulativeRollouts(
        at=at, served=RolloutCounts(episodes=episodes, steps=episodes, successes=successes)
    )


BEFORE = [
    make_episode("a", 0, "a room", "Nothing happens.", "Nothing happens."),
    make_episode("b", 0, "a", "b"),
]
AFTER = [
    make_episode("a", 1, "a room", "a shelf", "a mug", "a desk"),
    make_episode("b", 0, "a page", "a page"),
]


def test_episodes_before_and_after_are_compared() -> None:
    world = measure_world_results(make_report_of_episodes(BEFORE, AFTER))
    assert world is not None
    values = {each.name: (each.before, each.after) for each in world.metrics}
    assert values == {
        "Episodes won": (0.0, 50.0),
        "Turns to win": (None, 3.0),
        "Turns of an episode": (1.5, 2.0),
        "Actions without effect": (pytest.approx(200 / 3), 25.0),
    }


def test_the_last_episodes_of_the_training_are_compared_with_the_graded_ones() -> None:
    data = make_report_of_episodes(BEFORE, AFTER)
    played = (count_episodes(1, 30, 0), count_episodes(2, 40, 8))
    data = dataclasses.replace(data, timeline=dataclasses.replace(data.timeline, played=played))
    world = measure_world_results(data)
    assert world is not None
    assert (world.training, world.episodes, world.gap) == (80.0, 10, 30.0)
    page = html.page(data, {})
    assert "80.00% of the last 10 episodes" in page
    assert "+30.00 points more" in page


def test_a_task_without_a_world_has_no_such_table() -> None:
    plain = ExampleResult(id="a", output="4", score=1)
    assert measure_world_results(make_report_of_episodes([plain], [plain])) is None
