"""Runs in whose workspace evaluation data was found: marked in their own report, left out of rankings."""

import csv
import dataclasses
import json
import time
from pathlib import Path

import httpx
import pytest
from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.grading_records import Contamination
from agent2rl.core.records import LedgerEntry, RunResult
from agent2rl.record.ledger import LedgerReading
from agent2rl.record.paths import RunPaths
from agent2rl.report import headline, html, markdown
from agent2rl.report.digests import VERSION, CachedDigest
from agent2rl.report.sections import build_setup_rows
from tests.dashboard.conftest import serve_dashboard
from tests.helpers.run_digests import make_digest, make_score_course
from tests.helpers.run_launcher import RunLauncher
from tests.report import sample_reports

LEFT_OUT = (
    "2 contaminated runs are left out: evaluation data was found in their workspaces. "
    "Include them with --include-contaminated."
)
UNKNOWN = (
    "1 run was not searched for evaluation data: whether it is contaminated is unknown, and it is counted."
)


def write_run(runs: Path, run_id: str, **known: object) -> RunPaths:
    """A run directory, as far as rankings look into one whose digest is kept."""
    paths = RunPaths(runs / run_id)
    paths.report.mkdir(parents=True)
    paths.spec.write_text("{}")
    paths.ledger_head.write_text("1 head")
    digest = make_digest(run_id=run_id, **{"curve": make_score_course((9, 2)), **known})  # type: ignore[arg-type]
    paths.digest.write_text(
        CachedDigest(version=VERSION, ledger_head="1 head", digest=digest).model_dump_json()
    )
    return paths


def write_runs(runs: Path) -> None:
    """Six honest runs, one of which was not searched; an entry of one honest and one contaminated run; and an
    entry that only has a contaminated run."""
    for seed in range(6):
        write_run(runs, f"r{seed}", gain=5.0 + seed, seed=seed, contaminated=None if seed == 5 else False)
    write_run(runs, "r6", gain=3.0, agent="mixed")
    write_run(runs, "r7", gain=60.0, agent="mixed", seed=1, contaminated=True)
    write_run(runs, "r8", gain=70.0, agent="cheat", contaminated=True)


@pytest.fixture
def runs(launcher: RunLauncher) -> RunLauncher:
    write_runs(launcher.runs)
    return launcher


def read_rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["agent"]: row for row in csv.DictReader(file)}


def test_the_leaderboard_leaves_contaminated_runs_out_and_says_how_to_include_them(runs: RunLauncher) -> None:
    told = runs.cli("leaderboard", "--format", "markdown").stdout
    assert "cheat" not in told
    assert "| mixed | +3.00 |" in told
    assert LEFT_OUT in told
    assert UNKNOWN in told
    made = json.loads((done := runs.cli("leaderboard", "--format", "json")).stdout)
    assert (made["runs"], made["contaminated"], made["contaminated_left_out"]) == (7, 0, 2)
    assert made["contamination_unknown"] == 1
    assert f"note: {LEFT_OUT}" in done.stderr
    table = " ".join(runs.cli("leaderboard").stdout.split())
    assert LEFT_OUT in table


def test_contaminated_runs_that_are_asked_for_carry_a_mark(runs: RunLauncher) -> None:
    told = runs.cli("leaderboard", "--include-contaminated", "--format", "markdown").stdout
    assert "| † cheat | +70.00 | 1 of 1 | 1 (1 †) |" in told
    assert "| † mixed | +31.50 | 2 of 2 | 2 (1 †) |" in told
    assert "| tester | " in told
    assert "left out" not in told
    assert "† 2 contaminated runs are included: evaluation data was found in their workspaces." in told
    page = runs.cli("leaderboard", "--include-contaminated", "--format", "html").stdout
    assert "† cheat" in page
    table = runs.cli("leaderboard", "--include-contaminated", "--format", "csv", "-o", "board.csv")
    assert "2 contaminated runs are included" in table.stderr
    found = {name: row["contaminated"] for name, row in read_rows(runs.home / "board.csv").items()}
    assert found == {"cheat": "1", "mixed": "1", "tester": "0"}


def test_a_directory_with_contaminated_runs_alone_has_no_leaderboard_until_they_are_asked_for(
    launcher: RunLauncher,
) -> None:
    write_run(launcher.runs, "r0", gain=70.0, contaminated=True)
    done = launcher.cli("leaderboard")
    assert done.returncode != 0
    assert "is contaminated" in done.stderr
    assert "--include-contaminated" in done.stderr
    assert "r0" not in done.stdout
    assert launcher.cli("leaderboard", "--include-contaminated").returncode == 0
    report = launcher.cli("campaign", "report", str(launcher.runs), "-o", "report")
    assert "0 runs, none with a gain yet." in report.stdout


@pytest.mark.thorough
def test_the_report_of_a_campaign_leaves_them_out_of_every_table_and_figure(runs: RunLauncher) -> None:
    done = runs.cli("campaign", "report", str(runs.runs), "-o", "report")
    assert f"note: {LEFT_OUT}" in done.stderr
    assert f"note: {UNKNOWN}" in done.stderr
    folder = runs.home / "report"
    for name in ("campaign.html", "campaign.md"):
        assert (folder / name).read_text().count(LEFT_OUT) == 1
    for path in folder.rglob("*"):
        if path.suffix in (".csv", ".json", ".md", ".html"):
            assert "cheat" not in path.read_text()
            assert "r7" not in (path.read_text() if path.suffix == ".csv" else "")
    with_them = runs.cli(
        "campaign", "report", str(runs.runs), "-o", "all", "--include-contaminated", "--json"
    )
    made = json.loads(with_them.stdout)
    assert made["leaderboard"]["contaminated"] == 2
    assert [each["name"] for each in made["lines"] if each["contaminated"]] == ["cheat", "mixed"]
    folder = runs.home / "all"
    assert "† 2 contaminated runs are included" in (folder / "campaign.html").read_text()
    assert read_rows(folder / "cells.csv")["mixed"]["contaminated"] == "1"
    with (folder / "figures/gains.csv").open(newline="") as file:
        marked = {row["run"] for row in csv.DictReader(file) if row["contaminated"] == "yes"}
    assert marked == {"r7", "r8"}
    assert "† cheat" in (folder / "figures/ranking.svg").read_text()


@pytest.mark.thorough
def test_the_dashboard_marks_them_and_ranks_without_them_unless_asked(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs")
    with (
        serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):

        def made(address: str) -> str:
            ends = time.monotonic() + 120
            while "data-stale" in (text := client.get(address).text):
                assert time.monotonic() < ends
                time.sleep(0.2)
            return text

        table = client.get("/table").text
        assert table.count('<span class="badge bad">contaminated</span>') == 2
        without = made("/leaderboard/analysis")
        assert LEFT_OUT in without
        assert "cheat" not in without
        with_them = made("/leaderboard/analysis?contaminated=included")
        assert "† cheat" in with_them
        page = client.get("/leaderboard?contaminated=included").text
        assert 'data-live="/leaderboard/analysis?contaminated=included"' in page
        assert '<option value="included" selected>included</option>' in page


def test_the_report_of_a_contaminated_run_keeps_its_score_and_says_so_in_its_headline() -> None:
    given = sample_reports.make_finished_report()
    assert headline.build_title(given) == "+14.50 points on gsm8k-mini, contaminated"
    assert "The run is contaminated" in headline.build_sentence(given)
    (flag,) = [each for each in headline.build_flags(given) if "contaminated" in each.text]
    assert flag.tone == "bad"
    assert "leaderboards and campaign statistics leave it out" in flag.text
    assert ", contaminated</bdi></h1>" in html.page(given, {})
    assert "**This run is contaminated" in markdown.page(given)


def test_a_run_that_was_not_searched_is_unknown_and_not_contaminated() -> None:
    unsearched = Contamination(done=False, reason="it took too long")
    view = sample_reports.make_view(
        contamination=unsearched, result=sample_reports.make_result(contamination=unsearched.summary)
    )
    given = dataclasses.replace(sample_reports.make_finished_report(), view=view)
    assert headline.build_title(given) == "+14.50 points on gsm8k-mini"
    (flag,) = [each for each in headline.build_flags(given) if "contaminated" in each.text]
    assert flag.tone == "warn"
    assert flag.text == "It is unknown whether this run is contaminated: it took too long."


def test_the_set_up_tells_the_version_of_the_instructions_that_the_agent_was_given() -> None:
    def told(*starts: dict[str, JsonValue]) -> str | None:
        entries = tuple(
            LedgerEntry(index=at, time=0.0, kind="started", data=data, previous="", hash="")
            for at, data in enumerate(starts)
        )
        view = sample_reports.make_view(chain=LedgerReading(entries=entries, fault=None, torn=False))
        return dict(
            build_setup_rows(dataclasses.replace(sample_reports.make_finished_report(), view=view))
        ).get("instructions")

    assert told({"deadline": 1.0, "instructions_version": 2}) == "version 2"
    assert told({"deadline": 1.0}) == "version 1"
    assert told({}, {"instructions_version": 2}) == "version 1, then 2"
    assert told() is None


def test_a_real_run_is_marked_everywhere_and_an_old_one_still_opens(launcher: RunLauncher) -> None:
    asked = registry.find_task("gsm8k-mini").load(None).heldout[3].prompt
    run = launcher.run(f"(OUTPUT / 'n.txt').write_text({asked!r}); submit(trained('m'))", "--budget", "20m")
    assert run.result.contaminated is True
    run_id = run.result.run_id
    assert "leave this run out" in launcher.cli("show", run_id).stdout
    assert "This run is contaminated" in launcher.report(run)
    assert json.loads(run.paths.report_json.read_bytes())["contaminated"] is True
    done = launcher.cli("export", "jsonl")
    exported = json.loads(done.stdout)
    assert (exported["contaminated"], exported["instructions_version"]) == (True, 10)
    assert "1 of these runs is contaminated" in launcher.cli("export", "csv").stderr
    assert "--include-contaminated" in launcher.cli("leaderboard").stderr
    campaign = launcher.home / "small.toml"
    campaign.write_text(
        f'name = "small"\n[axes]\ntask = ["gsm8k-mini"]\nagent = ["script:{launcher.home}/agent.py"]\n'
        '[settings]\nbudget = "20m"\n'
    )
    (standing,) = json.loads(launcher.cli("campaign", "status", str(campaign), "--json").stdout)["runs"]
    assert (standing["run_id"], standing["contaminated"]) == (run_id, True)
    assert "contaminated" in launcher.cli("campaign", "status", str(campaign), "--once").stdout
    # As the first version wrote it: no search, no version of the instructions in the ledger.
    run.paths.contamination.unlink()
    result = RunResult.model_validate_json(run.paths.result.read_bytes())
    run.paths.result.write_text(result.model_copy(update={"contamination": None}).model_dump_json())
    kept = json.loads(run.paths.digest.read_bytes())
    del kept["digest"]["contaminated"]
    run.paths.digest.write_text(json.dumps({**kept, "version": 1}))
    told = launcher.cli("leaderboard", "--format", "markdown").stdout
    assert UNKNOWN in told
    assert json.loads(launcher.cli("export", "jsonl").stdout)["contaminated"] is None
