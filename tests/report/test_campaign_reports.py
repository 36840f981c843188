"""The report of many runs, and the leaderboard: what they say, and what can never be in them."""

import csv
import json
import random
import re
from pathlib import Path

import pytest

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis, analyse_campaign
from agent2rl.analysis.campaigns.comparisons import compare_axes
from agent2rl.analysis.campaigns.leaderboard import build_leaderboard
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.record.paths import RunPaths
from agent2rl.report import campaign_page, campaign_tables, digests, leaderboard_table
from agent2rl.report.campaign_page import list_figures
from agent2rl.report.digests import CachedDigest
from tests.helpers.bundle_files import unpack_earlier_run
from tests.helpers.run_digests import make_digest, make_digests, make_score_course
from tests.helpers.run_launcher import RunLauncher

TASKS = [TaskTraits("sums", 1, world=False), TaskTraits("games", 3, world=True)]
LATEX_COMMANDS = {
    *(rf"\{name}" for name in ("begin", "end", "centering", "toprule", "midrule", "bottomrule", "caption")),
    *(rf"\{name}" for name in ("label", "usepackage", "textbackslash", "textasciicircum", "textasciitilde")),
    *(rf"\{name}" for name in ("textless", "textgreater", "dag", "pm")),
}
HOSTILE = "<script>alert(1)</script>|=cmd\u202e"


def make_campaign_digests(**known: object) -> list[RunDigest]:
    """Two agents on two tasks, six seeds each: the second gains ten points more."""
    found = []
    for agent, more in (("slow", 0.0), ("quick", 10.0)):
        for task in ("sums", "games"):
            gains = [5.0 + more + seed / 2 for seed in range(6)]
            curve = make_score_course((10, 2.0), (60, 5.0 + more))
            fields = {"agent": agent, "task": task, "curve": curve, **known}
            found += make_digests(gains, f"{agent}-{task}-", **fields)
    return found


def analyse_digests(found: list[RunDigest], **known: object) -> CampaignAnalysis:
    return analyse_campaign(found, TASKS, "trial", "what comes of it", **known)  # type: ignore[arg-type]


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_has_every_figure_as_svg_and_png_with_its_data(tmp_path: Path) -> None:
    made = analyse_digests(make_campaign_digests())
    written = campaign_page.write(made, tmp_path / "report")
    names = [each.name for each in list_figures(made)]
    wanted = "ranking gains heatmap-agent comparisons-agent trajectories scaling best-of-k routes"
    assert names == wanted.split()
    text = written.read_text()
    for name in names:
        for ending in ("svg", "png", "csv"):
            assert (tmp_path / "report/figures" / f"{name}.{ending}").stat().st_size > 50
        assert f'href="figures/{name}.csv"' in text
    assert "quick is first in 100% of resamples" in text
    cells = {(row["task"], row["agent"]): row for row in read_csv_rows(tmp_path / "report/cells.csv")}
    assert cells["sums", "quick"]["mean_gain"] == "16.25"
    assert (
        float(cells["sums", "quick"]["mean_gain_low"])
        < 16.25
        < float(cells["sums", "quick"]["mean_gain_high"])
    )
    stars = {
        (row["agent"], row["task"]): row["star"]
        for row in read_csv_rows(tmp_path / "report/figures/heatmap-agent.csv")
    }
    assert set(stars.values()) == {"yes"}
    (pair,) = read_csv_rows(tmp_path / "report/figures/comparisons-agent.csv")
    assert (pair["first"], pair["second"], pair["difference"], pair["paired"]) == (
        "quick",
        "slow",
        "10.0",
        "yes",
    )
    assert float(pair["p_holm"]) < 0.01
    assert CampaignAnalysis.model_validate_json((tmp_path / "report/campaign.json").read_bytes()) == made
    assert "![Routes](figures/routes.svg)" in (tmp_path / "report/campaign.md").read_text()


@pytest.mark.thorough
def test_tables_are_written_for_papers_and_no_name_is_a_command(tmp_path: Path) -> None:
    hostile = {"driver": r"\input{/etc/passwd} 100% $x$ & a_b #1 ^~{" + HOSTILE}
    digests = [*make_campaign_digests(), *make_campaign_digests(**hostile)]
    campaign_page.write(analyse_digests(digests), tmp_path)
    board = (tmp_path / "leaderboard.tex").read_text(encoding="utf-8")
    pairs = (tmp_path / "comparisons-agent.tex").read_text(encoding="utf-8")
    for text in (board, pairs):
        assert text.isascii()
        assert set(re.findall(r"\\[a-z]+", text)) <= LATEX_COMMANDS
        plain = re.sub(r"\\[{}%$&#_]", "", text)
        assert plain.count("{") == plain.count("}")
        body = plain.partition("\\midrule")[2].partition("\\bottomrule")[0]
        assert {line.count("&") for line in body.strip().splitlines()} == {
            plain.partition("\\toprule\n")[2].partition("\n")[0].count("&")
        }
    assert "quick" in board
    assert "$-$10.00" in pairs
    assert r"\textbackslash{}input\{/etc/passwd\} 100\% \$x\$ \& a\_b \#1" in board


def test_a_heat_map_has_two_decimals() -> None:
    figure = next(
        each for each in list_figures(analyse_digests(make_campaign_digests())) if "heat" in each.name
    )
    drawn = figure.draw_figure(narrow=False)
    assert drawn
    texts = {text.get_text().rstrip("*") for axes in drawn.axes for text in axes.texts}
    assert {"+6.25", "+16.25"} <= texts


def test_the_same_runs_in_any_order_give_the_same_page(tmp_path: Path) -> None:
    found = make_campaign_digests()
    shuffled = random.Random(3).sample(found, len(found))
    first, second = (
        campaign_page.write(analyse_digests(each), tmp_path / name)
        for each, name in ((found, "a"), (shuffled, "b"))
    )
    assert first.read_bytes() == second.read_bytes()


def test_what_others_named_is_text_on_the_page_and_no_formula_in_the_data(tmp_path: Path) -> None:
    written = campaign_page.write(
        analyse_digests([*make_campaign_digests(), *make_campaign_digests(driver=HOSTILE, agent="=1+1")]),
        tmp_path,
    )
    assert "<script>alert" not in written.read_text()
    assert "\u202e" not in written.read_text()
    assert {row["agent"] for row in read_csv_rows(tmp_path / "leaderboard.csv")} >= {"'=1+1"}
    for line in leaderboard_table.render_markdown(
        analyse_digests(make_campaign_digests(driver=HOSTILE)).leaderboard
    ).splitlines():
        assert "<script>" not in line


def test_runs_that_others_broke_are_counted_apart_and_never_as_zero() -> None:
    broken = [make_digest(None, f"x{at}", agent="slow", ending="rate-limited", seed=at) for at in range(3)]
    with_them, without = (build_leaderboard([*make_campaign_digests(), *more]) for more in (broken, []))
    slow = [next(row for row in each.rows if row.agent == "slow") for each in (with_them, without)]
    assert slow[0].place.mean == slow[1].place.mean
    assert slow[0].all.excluded == {"rate-limited": 3}
    assert (
        "3 of 27 runs say nothing about their agent and are not counted: 3 rate-limited."
        in leaderboard_table.build_notes(with_them)
    )


def test_the_leaderboard_says_how_many_runs_kept_their_mode(tmp_path: Path) -> None:
    verdicts = ["kept", "kept", "broken", "unknown", None]
    oriented = [
        make_digest(4.0, f"o{at}", mode="rl-oriented", compliance=verdict, seed=at)
        for at, verdict in enumerate(verdicts)
    ]
    free = make_digests([3.0] * 5, "f", compliance="free")
    board = build_leaderboard([*oriented, *free])
    assert board.rows[0].all.compliance == {"broken": 1, "kept": 2, "unknown": 1}
    column = leaderboard_table.list_columns(board).index("mode kept")
    assert [row[column] for row in leaderboard_table.build_rows(board)] == ["2 of 4 (1 unknown)", "–"]
    assert leaderboard_table.build_notes(board)[-1] == "1 run broke its mode. It is counted."
    first = campaign_tables.build_leaderboard_rows(board)[0]
    assert (first["mode_kept"], first["mode_broken"], first["mode_unknown"]) == (2, 1, 1)
    page = campaign_page.write(analyse_digests([*oriented, *free]), tmp_path).read_text()
    assert "2 of 4 (1 unknown)" in page
    assert "1 run broke its mode. It is counted." in page
    (cell,) = [row for row in read_csv_rows(tmp_path / "cells.csv") if row["mode"] == "rl-oriented"]
    assert (cell["mode_kept"], cell["mode_broken"], cell["mode_unknown"]) == ("2", "1", "1")


def test_a_leaderboard_of_runs_that_may_train_as_they_like_has_no_such_column() -> None:
    board = build_leaderboard(make_digests([3.0] * 5, compliance="free"))
    assert "mode kept" not in leaderboard_table.list_columns(board)
    assert len(leaderboard_table.list_columns(board)) == len(leaderboard_table.build_rows(board)[0])


def test_two_runs_are_not_enough_to_say() -> None:
    made = build_leaderboard(make_digests([3.0, 4.0]))
    (row,) = made.rows
    assert row.place.rank == "not enough runs to say"
    assert leaderboard_table.build_rows(made)[0][:3] == ["–", "tester", "+3.50"]


def test_drivers_are_compared_within_the_agents_that_both_have() -> None:
    good = make_digests([20.0] * 6, "a", agent="only", driver="strong")
    fair = make_digests([8.0, 9, 10, 11, 12, 13], "b", agent="both", driver="strong")
    weak = make_digests([7.0, 8, 9, 10, 11, 12], "c", agent="both", driver="weak")
    family = next(each for each in compare_axes([*good, *fair, *weak]) if each.axis == "driver")
    (pair,) = family.pairs
    assert pair.found.difference is not None
    assert pair.found.difference.value == pytest.approx(1.0)
    assert pair.found.n == (6, 6)


def test_gains_under_the_papers_protocol_are_left_out_and_told_of() -> None:
    made = analyse_digests([*make_campaign_digests(), *make_digests([50.0], "p", protocol="paper")])
    assert made.leaderboard.runs == 24
    assert campaign_page.notes(made) == [
        "1 runs under protocol paper are left out: their gains are not comparable."
    ]


@pytest.mark.parametrize(
    "found", [[], [make_digest(None, state="crashed", ending=None)]], ids=["nothing", "crashed"]
)
def test_a_campaign_without_a_result_has_a_page_that_says_so(found: list[RunDigest], tmp_path: Path) -> None:
    written = campaign_page.write(analyse_digests(found), tmp_path)
    assert "none with a gain yet" in written.read_text()
    assert list((tmp_path / "figures").glob("*.svg")) == []


def test_a_table_of_nothing_is_an_empty_one() -> None:
    assert campaign_tables.render_csv([]) == "\n"


def test_real_runs_are_ranked_from_digests_that_are_kept(launcher: RunLauncher) -> None:
    first = launcher.run("print('nothing')")
    kept = RunPaths(first.paths.root).digest
    assert not kept.exists()
    told = json.loads(launcher.cli("leaderboard", str(launcher.runs), "--format", "json").stdout)
    assert [(row["agent"], row["all"]["n"]) for row in told["rows"]] == [
        (f"script:{launcher.home}/agent.py", 1)
    ]
    read = CachedDigest.model_validate_json(kept.read_bytes())
    other = read.digest.model_copy(update={"seed": 7})
    kept.write_text(read.model_copy(update={"digest": other}).model_dump_json())
    assert digests.read_digest(first.paths).seed == 7
    first.paths.ledger_head.write_text("elsewhere")
    assert digests.read_digest(first.paths).seed == 0
    (launcher.runs / "broken").mkdir()
    (launcher.runs / "broken/spec.json").write_text("{")
    done = launcher.cli("leaderboard", str(launcher.runs), "--format", "csv")
    assert "broken" in done.stderr
    assert done.stdout.count("\n") == 2
    done = launcher.cli("campaign", "report", str(launcher.runs), "-o", str(launcher.home / "all"))
    assert "1 runs of 1 tasks: script:agent.py gains +0.00" in done.stdout
    assert (launcher.home / "all/campaign.html").is_file()


def test_a_campaign_without_a_finished_run_is_refused_and_nothing_is_written(launcher: RunLauncher) -> None:
    unpack_earlier_run(launcher.runs).result.unlink()
    done = launcher.cli("campaign", "report", str(launcher.runs), "-o", str(launcher.home / "all"))
    assert done.returncode == 2
    assert "None of the 1 runs" in done.stderr
    assert not (launcher.home / "all").exists()
