"""The paper's figures by number: what they show, what they lack, and what is refused."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent2rl.analysis.campaigns.paper_view import PAPER_MODES, PAPER_TASKS
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.report.digests import VERSION, CachedDigest
from agent2rl.report.paper_page import PaperData
from tests.helpers.run_digests import make_digest, make_score_course
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import write_campaign

NUMBERS = (3, 5, 6, 7, 9)
HOURS_12 = 43200.0
LINE = json.dumps({"iteration": 1, "score": 5.0}) + "\n"


def store_runs(launcher: RunLauncher, digests: Sequence[RunDigest]) -> str:
    """Write runs of which only the digest and the summary are there, which is all that a report reads."""
    for each in digests:
        report = launcher.runs / each.run_id / "report"
        report.mkdir(parents=True)
        (report.parent / "spec.json").write_text("{}")
        cached = CachedDigest(version=VERSION, ledger_head="", digest=each)
        (report / "digest.json").write_text(cached.model_dump_json())
        (report / "summary.jsonl").write_text(LINE)
    return str(launcher.runs)


def make_run(gain: float, **known: object) -> RunDigest:
    fields = {
        "protocol": "paper",
        "budget_seconds": HOURS_12,
        "curve": make_score_course((10, gain)),
        "run_id": "-".join(str(value).replace("/", "_") for value in known.values()),
        **known,
    }
    return make_digest(gain, **fields)  # type: ignore[arg-type]


def make_paper_runs() -> list[RunDigest]:
    """The paper's matrix in small: one agent in four modes, and one with three drivers."""
    gains = {"free": 10.0, "sft-only": 30.0, "rl-oriented": -5.0, "multi": 12.0}
    modes = [
        make_run(gains[mode] + at, agent="claude-code", driver="claude-opus-4-6", task=task, mode=mode)
        for mode in PAPER_MODES
        for at, task in enumerate(PAPER_TASKS)
    ]
    drivers = [
        make_run(gain, agent="opencode", driver=driver, task=task)
        for driver, gain in (("gpt-5.4", 40.0), ("gpt-5.2", 20.0), ("gpt-4o", 0.5))
        for task in PAPER_TASKS
    ]
    return [*modes, *drivers]


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def paper_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The report of the small matrix, and what the command printed."""
    home = tmp_path_factory.mktemp("paper") / "home"
    home.mkdir()
    launcher = RunLauncher(home / "runs", home / "cache", home)
    runs, target = store_runs(launcher, make_paper_runs()), home / "out"
    done = launcher.cli("campaign", "report", runs, "--paper", "-o", str(target))
    assert done.returncode == 0, done.stderr
    return target, done.stdout


def test_the_papers_matrix_has_every_figure_of_the_paper(paper_report: tuple[Path, str]) -> None:
    target, said = paper_report
    assert said.splitlines()[:5] == [f"figure {number}: drawn" for number in NUMBERS]
    page = (target / "paper.html").read_text()
    for number in NUMBERS:
        for ending in ("svg", "png", "csv"):
            assert (target / f"figures/figure-{number}.{ending}").stat().st_size > 50
        assert f"Figure {number}. " in page
    data = PaperData.model_validate_json((target / "paper.json").read_bytes())
    assert [figure.number for figure in data.figures] == list(NUMBERS)
    assert data.deviations == ()
    assert {row["tasks_not_run"] for row in read_csv_rows(target / "coverage.csv")} == {""}
    counts = {row["entry"]: row for row in read_csv_rows(target / "coverage-runs.csv")}
    assert counts["opencode · gpt-4o · free"]["alfworld"] == "1"
    assert len(list((target / "summaries").iterdir())) == len(make_paper_runs())
    assert {path.read_text() for path in (target / "summaries").iterdir()} == {LINE}


def test_figure_6_marks_the_best_and_the_worst_mode_of_each_task(paper_report: tuple[Path, str]) -> None:
    target, _ = paper_report
    rows = read_csv_rows(target / "figures/figure-6.csv")
    marks = {(row["task"], row["mark"]): row["mode"] for row in rows if row["mark"]}
    assert marks == {(task, "best"): "sft-only" for task in PAPER_TASKS} | {
        (task, "worst"): "rl-oriented" for task in PAPER_TASKS
    }
    text = (target / "figures/figure-6.svg").read_text()
    assert text.count("· best") == text.count("· worst") == len(PAPER_TASKS)


def test_figure_7_compares_drivers_only_within_an_agent(paper_report: tuple[Path, str]) -> None:
    target, _ = paper_report
    rows = read_csv_rows(target / "figures/figure-7.csv")
    assert {row["driver"] for row in rows} == {"gpt-5.4", "gpt-5.2", "gpt-4o"}
    assert {row["driver"] for row in rows if row["mark"] == "worst"} == {"gpt-4o"}


def test_modes_of_different_agents_are_never_compared(launcher: RunLauncher) -> None:
    runs = [
        make_run(1.0, agent="a", task="gsm8k", mode="free"),
        make_run(9.0, agent="b", task="gsm8k", mode="sft-only"),
    ]
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", store_runs(launcher, runs), "--paper", "-o", str(target))
    assert "figure 6: missing. It needs an agent that ran in more than one mode" in done.stdout


def test_equal_modes_have_no_best_one(launcher: RunLauncher) -> None:
    runs = [make_run(4.0, task="gsm8k", mode=mode) for mode in PAPER_MODES]
    target = launcher.home / "out"
    launcher.cli("campaign", "report", store_runs(launcher, runs), "--paper", "-o", str(target))
    (figure,) = [
        each
        for each in PaperData.model_validate_json((target / "paper.json").read_bytes()).figures
        if each.number == 6
    ]
    assert not figure.missing
    assert len(figure.rows) == 4
    assert not any(row.get("mark") for row in figure.rows)


def test_a_figure_without_data_says_what_is_missing_and_has_no_number(launcher: RunLauncher) -> None:
    runs = [make_run(3.0, task="gsm8k", budget_seconds=3600.0)]
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", store_runs(launcher, runs), "--paper", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert "figure 6: missing. It needs an agent that ran in more than one mode" in done.stdout
    assert (
        "figure 7: missing. It needs an agent that ran in the mode free with more than one driver"
        in done.stdout
    )
    assert "Time budgets differ: 1 h. The paper's runs have 12 h." in done.stderr
    assert "These modes of the paper have no runs: sft-only, rl-oriented, multi." in done.stderr
    assert "cannot be drawn" in (target / "figures/figure-6.svg").read_text()
    (row,) = read_csv_rows(target / "figures/figure-6.csv")
    assert list(row) == ["missing"]
    data = PaperData.model_validate_json((target / "paper.json").read_bytes())
    assert [figure.rows for figure in data.figures if figure.missing] == [(), ()]


@pytest.mark.parametrize(
    "runs",
    [
        [make_run(3.0, task="gsm8k", state="crashed", ending=None)],
        [make_run(3.0, task="gsm8k", ending="rate-limited")],
        [make_run(3.0, task="gsm8k", protocol="heldout")],
        [make_run(3.0, task="gsm8k", contaminated=True)],
    ],
    ids=["crashed", "broken by the provider", "another protocol", "contaminated"],
)
def test_a_campaign_without_a_finished_run_is_refused_and_leaves_nothing(
    launcher: RunLauncher, runs: list[RunDigest]
) -> None:
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", store_runs(launcher, runs), "--paper", "-o", str(target))
    assert done.returncode != 0
    assert "None of the 1 runs is finished and has a gain under protocol paper" in done.stderr
    assert not target.exists()


def test_a_campaign_file_without_runs_is_refused_and_leaves_nothing(launcher: RunLauncher) -> None:
    file, target = write_campaign(launcher, ["nop"]), launcher.home / "out"
    done = launcher.cli("campaign", "report", file, "--paper", "-o", str(target))
    assert done.returncode != 0
    assert "small has no runs" in done.stderr
    assert not target.exists()
    done = launcher.cli("campaign", "report", str(launcher.home), "--paper", "--budget", "12h")
    assert "--budget needs a campaign file." in done.stderr


def test_names_from_others_are_text_on_the_page(launcher: RunLauncher) -> None:
    hostile = "<script>alert(1)</script>=cmd\u202e"
    runs = [make_run(1.0 + at, run_id=mode, driver=hostile, mode=mode) for at, mode in enumerate(PAPER_MODES)]
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", store_runs(launcher, runs), "--paper", "-o", str(target))
    assert done.returncode == 0, done.stderr
    page = (target / "paper.html").read_text()
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_another_protocol_can_be_asked_for(launcher: RunLauncher) -> None:
    runs = store_runs(launcher, [make_run(3.0, task="gsm8k", protocol="heldout")])
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", runs, "--paper", "--protocol", "heldout", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert "note: The gains are on held-out data." in done.stderr


def test_every_run_has_a_summary_in_the_published_schema(launcher: RunLauncher) -> None:
    run = launcher.run("submit(trained('m'))\nsubmit(OUTPUT / 'nothing')", "--protocol=paper")
    target = launcher.home / "out"
    done = launcher.cli("campaign", "report", str(launcher.runs), "--paper", "-o", str(target))
    assert done.returncode == 0, done.stderr
    lines = (target / "summaries" / f"{run.paths.run_id}.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines[:2])
    fields = "iteration timestamp duration_s status exit_code score improvement train_type failure_type"
    assert " ".join(first) == fields
    assert (first["iteration"], first["status"], first["exit_code"]) == (1, "success", None)
    assert first["score"] == run.result.best.score.value  # type: ignore[union-attr]
    assert (second["iteration"], second["status"], second["score"]) == (2, "failed", None)
    assert second["failure_type"]
    launcher.cli("report", run.paths.run_id)
    assert run.paths.summary.read_text().splitlines() == lines
