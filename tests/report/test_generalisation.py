"""How models generalise and how they play a world: in report.json, report.md and the page."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from agent2rl.analysis.findings import Generalisation, MeasuredFigure, ModelGeneralisation
from agent2rl.analysis.generalisation import measure_generalisation
from agent2rl.core.grading_records import (
    ExampleResult,
    HeldoutComparison,
    Interval,
    PanelResult,
    SampledAnswer,
    TrajectoryTurn,
)
from agent2rl.core.records import RolloutCounts, Rollouts
from agent2rl.record.paths import RunPaths
from agent2rl.report import html, markdown, run_report
from agent2rl.report.report_data import ReportData, RunReport
from tests.helpers.bundle_files import unpack_earlier_run
from tests.report import sample_reports

FIRST_TURN = TrajectoryTurn(action="", observation="a room")


def make_episode(name: str, score: float, *observations: str) -> ExampleResult:
    """An episode as versions before the mark of invalid actions recorded it."""
    turns = (TrajectoryTurn(action="go", observation=text) for text in observations)
    return ExampleResult(id=name, output="go", score=score, trajectory=(FIRST_TURN, *turns))


def make_marked_episode(name: str, score: float, *invalid: bool) -> ExampleResult:
    turns = (TrajectoryTurn(action="click[6]", observation="a page", invalid=each) for each in invalid)
    return ExampleResult(id=name, output="", score=score, trajectory=(FIRST_TURN, *turns))


BEFORE = [make_episode("a", 0, "Nothing happens.", "Nothing happens."), make_episode("b", 0, "a room")]
AFTER = [make_episode("a", 1, "a shelf", "a mug", "a desk"), make_episode("b", 0, "a door")]


def measure(before: list[ExampleResult], after: list[ExampleResult], *played: Rollouts) -> Generalisation:
    results = {"heldout": {0: before, 6: after}}
    return measure_generalisation(sample_reports.make_view(), results, played)  # type: ignore[arg-type]


def report(found: Generalisation) -> ReportData:
    findings = sample_reports.make_findings(generalisation=found)
    return dataclasses.replace(sample_reports.make_small_report(), findings=findings)


def read_values(model: ModelGeneralisation) -> dict[str, float | None]:
    names = ("win_rate", "steps_to_success", "steps_per_episode", "invalid_action_rate")
    figures: list[MeasuredFigure | None] = [getattr(model, name) for name in names]
    return {
        name: None if each is None else round(each.value, 4)
        for name, each in zip(names, figures, strict=True)
    }


def make_panel(**other: Any) -> PanelResult:
    return PanelResult(
        **{
            "task": "train",
            "baseline": sample_reports.make_score(24.0, 100, "train"),
            "best": sample_reports.make_score(61.5, 100, "train"),
            "change": HeldoutComparison(
                improvement=37.5, ci=Interval(low=30, high=45, method="paired-bootstrap")
            ),
            **other,
        }
    )


def measure_gap(*panel: PanelResult, **other: Any) -> Generalisation:
    result = sample_reports.make_result(also=panel, rollouts=None, **other)
    plain = [ExampleResult(id="a", output="4", score=1)]
    view = sample_reports.make_view(result=result)
    return measure_generalisation(view, {"heldout": {0: plain, 6: plain}})


def test_episodes_are_measured_before_and_after_training() -> None:
    found = measure(BEFORE, AFTER)
    assert (found.world, found.submission, found.episodes_split) == (True, 6, "heldout")
    assert read_values(found.baseline) == {
        "win_rate": 0.0,
        "steps_to_success": None,
        "steps_per_episode": 1.5,
        "invalid_action_rate": 0.6667,
    }
    assert read_values(found.best) == {
        "win_rate": 0.5,
        "steps_to_success": 3.0,
        "steps_per_episode": 2.0,
        "invalid_action_rate": 0.0,
    }
    assert found.baseline.unknown["steps_to_success"] == "no episode was won"
    text = markdown.page(report(found))
    assert "| Invalid actions | 66.67% | 0.00% &#91;0.0, 65.8] |" in text.replace("[", "&#91;")
    assert "- Actions until an episode is won of the untouched model: not known, because no episode" in text


def test_what_the_world_marked_counts_whatever_it_showed() -> None:
    found = measure(
        [make_marked_episode("a", 0, True, True, False, False)], [make_marked_episode("a", 1, False)]
    )
    assert found.baseline.invalid_action_rate == MeasuredFigure(value=0.5, ci=None, n=1)
    assert found.best.invalid_action_rate is not None
    assert found.best.invalid_action_rate.value == 0.0


def test_a_rate_that_no_record_tells_is_not_known() -> None:
    silent = [make_episode("a", 1, "a page", "a page")]
    found = measure(silent, silent)
    assert found.best.invalid_action_rate is None
    assert "does not say which actions were invalid" in found.best.unknown["invalid_action_rate"]
    assert found.best.steps_to_success == MeasuredFigure(value=2.0, ci=None, n=1)


def test_the_first_of_several_attempts_is_the_episode_that_is_measured() -> None:
    attempts = (SampledAnswer(output="go", score=1), SampledAnswer(output="go", score=0))
    episode = make_episode("a", 0.5, "a desk").model_copy(update={"attempts": attempts})
    found = measure([episode], [episode])
    assert found.best.win_rate is not None
    assert found.best.win_rate.value == 1.0


def test_figures_of_enough_episodes_have_an_interval() -> None:
    episodes = [make_marked_episode(f"{n}", n % 2, *[n % 3 == 0] * (1 + n % 4)) for n in range(24)]
    best = measure(episodes, episodes).best
    for figure in (best.win_rate, best.steps_to_success, best.steps_per_episode, best.invalid_action_rate):
        assert figure is not None
        assert figure.ci is not None
        assert figure.ci.low < figure.value < figure.ci.high


def test_the_last_episodes_of_the_training_are_compared_with_the_graded_ones() -> None:
    played = [
        Rollouts(served=RolloutCounts(episodes=30, steps=30)),
        Rollouts(replayed=RolloutCounts(episodes=10, steps=10, successes=8)),
    ]
    found = measure(BEFORE, AFTER, *played)
    assert found.training_win_rate is not None
    assert (found.training_win_rate.value, found.training_win_rate.n) == (0.8, 10)
    for text in (html.page(report(found), {}), markdown.page(report(found))):
        assert "80.00% of the last 10 episodes" in text
        assert "+30.00 points against the graded ones" in text
    assert measure(BEFORE, AFTER, *played[1:]).training_win_rate is None


def test_a_task_that_is_no_world_is_said_to_be_none() -> None:
    found = measure_gap()
    assert found.world is False
    assert set(found.best.unknown) == {*found.baseline.unknown}
    for text in (html.page(report(found), {}), markdown.page(report(found))):
        assert "Episodes and their actions: none, because the task is no world." in text
        assert "not known, because the models were not graded on training examples (--also train)" in text
        assert "Invalid actions" not in text


def test_the_gap_to_the_training_examples_has_an_interval() -> None:
    found = measure_gap(make_panel())
    gap = found.best.train_gap
    assert (found.best.train_score, found.best.unseen_score, found.unseen_split) == (61.5, 36.5, "heldout")
    assert gap is not None
    assert gap.ci is not None
    assert (gap.value, gap.n) == (25.0, 100)
    assert 0 < gap.ci.low < 25 < gap.ci.high
    assert found.baseline.train_gap is not None
    assert found.baseline.train_gap.value == 2.0
    text = markdown.page(report(found))
    assert "| Score on training examples | 24.00 | 61.50 |" in text
    assert "| Gap between these two, points | +2.00 [-" in text


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (measure_gap(make_panel(best=None, change=None, reason="It took too long.")), "it took too long"),
        (measure_gap(make_panel(), best_heldout=None), "no score on the examples that rank"),
        (measure_gap(make_panel(best=None, change=None), best=None), "no submission counts"),
    ],
    ids=["failed", "not-graded", "nothing-submitted"],
)
def test_a_grading_that_failed_is_a_reason_and_never_a_number(found: Generalisation, reason: str) -> None:
    assert found.best.train_gap is None
    assert reason in found.best.unknown["train_gap"].lower()
    assert found.baseline.train_gap is not None
    assert "| Gap between these two, points | +2.00" in markdown.page(report(found))


def test_a_figure_without_a_value_must_have_a_reason() -> None:
    with pytest.raises(ValueError, match="has a reason why it is not"):
        ModelGeneralisation(unknown={"train_gap": "unknown"})


def test_the_report_of_a_recorded_run_has_these_figures(tmp_path: Path) -> None:
    paths = unpack_earlier_run(tmp_path)
    plain = read_report(paths)
    assert plain["world"] is False
    assert plain["best"]["unknown"]["invalid_action_rate"] == "the task is no world"
    for place in (paths.baseline, paths.submission_paths(3)):
        write_episodes(place.results_file("heldout"))
    result = json.loads(paths.result.read_text(encoding="utf-8"))
    result["also"] = [make_panel().model_dump(mode="json")]
    paths.result.write_text(json.dumps(result), encoding="utf-8")
    played = read_report(paths)
    assert (played["world"], played["submission"], played["episodes_split"]) == (True, 3, "heldout")
    assert played["best"]["invalid_action_rate"]["value"] == pytest.approx(1 / 3)
    assert played["best"]["steps_to_success"]["value"] == 3.0
    unseen = result["best_heldout"]["value"]
    assert played["best"]["train_gap"]["value"] == pytest.approx(61.5 - unseen, abs=1e-6)


def read_report(paths: RunPaths) -> dict[str, Any]:
    """What report.json says; report.md has a section about it."""
    data = run_report.gather_report_data(paths)
    assert "\n## Generalisation\n" in markdown.page(data)
    written = json.loads(RunReport.from_report_data(data).model_dump_json())
    found: dict[str, Any] = written["findings"]["generalisation"]
    return found


def write_episodes(file: Path) -> None:
    """Turn answers into episodes of three actions, of which the world could not take one."""
    turns = make_marked_episode("", 0, True, False, False).trajectory
    answers = map(ExampleResult.model_validate_json, file.read_text(encoding="utf-8").splitlines())
    lines = [each.model_copy(update={"trajectory": turns}).model_dump_json() for each in answers]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
