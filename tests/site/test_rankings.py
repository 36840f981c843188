"""Who is ranked on a site, and with whom."""

from pathlib import Path
from typing import Any

import pytest

from agent2rl.core.errors import UserError
from agent2rl.site.collected_runs import CollectedRuns, PublishedRun
from agent2rl.site.listing import publish_digest
from agent2rl.site.rankings import SiteContents, build_contents
from agent2rl.site.references import read_references
from tests.helpers.run_digests import make_digest
from tests.site.sample_runs import make_published_run


def build_site_of(*runs: PublishedRun, **known: object) -> SiteContents:
    return build_contents(CollectedRuns(tuple(runs), ()), **known)  # type: ignore[arg-type]


def make_runs(gains: list[float], agent: str, **known: Any) -> list[PublishedRun]:
    return [
        make_published_run(gain, f"{agent}-{place}-{len(known)}", agent=agent, seed=place, **known)
        for place, gain in enumerate(gains)
    ]


def test_the_better_agent_is_first_and_references_are_marked() -> None:
    contents = build_site_of(
        *make_runs([20.0, 21, 22, 23, 24], "good"), *make_runs([5.0, 6, 7, 8, 9], "recipe:sft")
    )
    (ranking,) = contents.by_setting
    assert [(entry.row.agent, entry.reference) for entry in ranking.entries] == [
        ("good", ""),
        ("recipe:sft", "recipe, SFT"),
    ]
    assert ranking.entries[0].score == pytest.approx(42.0)


def test_runs_that_are_not_verified_are_counted_and_not_ranked() -> None:
    cheat = make_published_run(80.0, "c", verified=False, agent="cheat")
    contents = build_site_of(*make_runs([5.0, 6.0], "honest"), cheat)
    for ranking in (*contents.by_setting, *contents.by_protocol):
        assert [entry.row.agent for entry in ranking.entries] == ["honest"]
        assert ranking.not_verified == 1


def test_a_model_that_was_trained_elsewhere_is_shown_and_not_ranked() -> None:
    submitted = make_published_run(80.0, "s", agent="submit:final #1a2b3c")
    contents = build_site_of(*make_runs([5.0, 6.0], "mine"), submitted)
    for ranking in (*contents.by_setting, *contents.by_protocol):
        ranked = [entry.row.agent for entry in ranking.entries if entry.row.place.mean]
        assert ranked == ["mine"]
        assert ranking.board.excluded == {"trained-elsewhere": 1}
    (listing,) = (each for each in contents.listings if each.run_id == "s")
    assert (listing.excluded, listing.is_counted, listing.gain) == ("trained-elsewhere", False, None)


def test_the_endpoint_of_a_driver_is_not_published() -> None:
    drivers = ("qwen@http://10.1.2.3:8000/v1", "qwen@http://10.1.2.4:8000/v1", "gpt-5.4", None)
    published = [publish_digest(make_digest(driver=driver), "alice").driver for driver in drivers]
    assert published[2:] == ["gpt-5.4", None]
    assert len({*published}) == 4
    assert all(str(name).startswith("qwen #") for name in published[:2])


def test_contaminated_runs_are_left_out_unless_they_are_asked_for() -> None:
    runs = [make_published_run(5.0, "a"), make_published_run(50.0, "b", agent="other", contaminated=True)]
    assert [len(build_site_of(*runs).by_setting[0].entries)] == [1]
    assert len(build_site_of(*runs, include_contaminated=True).by_setting[0].entries) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"protocol": "paper"},
        {"profile": "published 1", "protocol": "paper"},
        {"network": "packages"},
        {"expert": 96},
        {"clock": "training"},
        {"budget_seconds": 900.0},
    ],
    ids=str,
)
def test_runs_under_other_conditions_are_in_another_ranking(other: dict[str, object]) -> None:
    contents = build_site_of(*make_runs([5.0, 6.0], "mine"), *make_runs([9.0, 9.5], "other", **other))
    agents = [[entry.row.agent for entry in ranking.entries] for ranking in contents.by_setting]
    assert sorted(agents) == [["mine"], ["other"]]


def test_a_run_of_nop_measures_a_model_to_compare_with() -> None:
    instruct = make_published_run(
        None, "i", agent="nop", model="instruct", baseline=61.0, submissions=0, scored=0
    )
    (ranking,) = build_site_of(*make_runs([5.0], "mine"), instruct, named_models=["instruct"]).by_setting
    assert [entry.row.agent for entry in ranking.entries] == ["mine"]
    rows = {row.name: row for row in ranking.references}
    assert (rows["instruct"].score, rows["instruct"].kind) == (61.0, "named model")
    assert (rows["tiny"].score, rows["tiny"].gain, rows["tiny"].kind) == (20.0, 0.0, "untouched model")


RESULT = '[[result]]\nname = "A person"\nkind = "human"\ntask = "sums"\n'


def test_a_result_from_a_file_is_shown_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "references.toml"
    file.write_text(f'{RESULT}score = 90\ninterval = [80, 95]\nsource = "https://example.org/a"\n')
    contents = build_site_of(*make_runs([5.0], "mine"), results=read_references(file))
    row = next(row for row in contents.by_setting[0].references if row.kind == "human")
    assert (row.score, row.interval, row.runs, row.link) == (90, (80, 95), None, "https://example.org/a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{RESULT}score = 90\n", "result.0.source: Field required"),
        (f'{RESULT}source = "a book"\n', "needs a score, a gain or both"),
        (f'{RESULT}score = 190\nsource = "a book"\n', "less than or equal to 100"),
        (f'{RESULT}score = 9\ninterval = [10, 20]\nsource = "a book"\n', "a score inside it"),
        (f'{RESULT}scoer = 9\nsource = "a book"\n', "result.0.scoer: Extra inputs"),
        ("[[result", "not a TOML file"),
    ],
)
def test_a_wrong_file_of_references_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "references.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_references(file)
    with pytest.raises(UserError, match="Cannot read"):
        read_references(tmp_path / "none.toml")
