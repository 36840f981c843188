"""The report of many runs, and the leaderboard: what they say, and what can never be in them."""

import csv
import json
import math
import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis, analyse_campaign
from agent2rl.analysis.campaigns.comparisons import compare_axes
from agent2rl.analysis.campaigns.leaderboard import build_leaderboard
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import TrainingCurves, TrainingSeries
from agent2rl.cli.main import cli
from agent2rl.record.paths import RunPaths
from agent2rl.report import campaign_page, campaign_tables, chart_style, digests, leaderboard_table
from agent2rl.report.campaign_page import list_figures
from agent2rl.report.digests import CachedDigest
from tests.helpers.bundle_files import unpack_earlier_run
from tests.helpers.run_digests import make_digest, make_digests, make_score_course
from tests.helpers.run_launcher import RunLauncher
from tests.report import sample_reports

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


def read_sample_trainings(run_id: str) -> tuple[TrainingCurves, ...]:
    """As if every run but the slow ones with an even seed had logged its trainings."""
    silent = run_id.startswith("slow") and int(run_id[-1]) % 2 == 0
    return () if silent else sample_reports.make_trainings()


def test_the_training_curves_of_a_tasks_runs_are_in_one_figure(tmp_path: Path) -> None:
    made = analyse_digests(make_campaign_digests(), read_trainings=read_sample_trainings)
    figures = [each for each in list_figures(made) if each.section == "training"]
    assert [each.name for each in figures] == ["training-games", "training-sums"]
    texts, _ = campaign_page.draw_figures(figures[1:], tmp_path)
    reward = json.loads(texts["training-sums.chart"])[0]
    lines = {each["name"]: each["colour"] for each in reward["series"] if each["name"] != "submission"}
    runs = [name.partition(",")[0] for name in lines]
    slow = [f"slow: slow-sums-{seed:05d}" for seed in (1, 3, 5)]
    quick = [f"quick: quick-sums-{seed:05d}" for seed in range(6)]
    assert sorted(runs) == sorted([*quick, *slow])
    assert len({colour for name, colour in lines.items() if name.startswith("slow")}) == 1
    assert len(set(lines.values())) == 2
    assert "training-sums.narrow" in texts
    rows = read_csv_rows(tmp_path / "training-sums.csv")
    assert {row["metric"] for row in rows} >= {"reward", "loss", "kl", "submission"}
    marks = {row["value"] for row in rows if row["metric"] == "submission" and row["run"] == slow[0][6:]}
    assert marks == {"2", "5", "6"}
    page = campaign_page.render_html(made, figures[1:], texts)
    assert 'href="figures/training-sums.csv"' in page
    assert CampaignAnalysis.model_validate_json(made.model_dump_json()) == made
    as_before = made.model_dump(mode="json")
    for task in as_before["trajectories"]:
        task["courses"] = task.pop("trajectories")
    assert CampaignAnalysis.model_validate(as_before) == made, "reports of earlier versions can be read"


def test_of_many_runs_each_entry_has_as_many_lines_whatever_its_results() -> None:
    found = [
        digest
        for agent, gain in (("best", 50.0), ("worst", -5.0))
        for digest in make_digests([gain + seed for seed in range(20)], f"{agent}-", agent=agent)
    ]
    (task,) = analyse_digests(found, read_trainings=lambda _: sample_reports.make_trainings()).trainings
    assert [each.run_id for each in task.runs] == [
        f"{agent}-{seed:05d}" for seed in range(6) for agent in ("best", "worst")
    ]
    reads: list[str] = []

    def find_none(run_id: str) -> tuple[TrainingCurves, ...]:
        reads.append(run_id)
        return ()

    assert analyse_digests(found, read_trainings=find_none).trainings == ()
    assert len(reads) == 36, "no run has any, so the others are not read"


def test_a_curve_of_any_values_can_be_drawn() -> None:
    values = (1e300, -1e300, math.nan, math.inf, 1e29, -1e29, 0.5)
    points = tuple((float(step), value) for step, value in enumerate(values))
    series = TrainingSeries(metric="reward", name="reward", points=(*points, (math.nan, 1.0), (1e300, 1.0)))
    training = TrainingCurves(name=HOSTILE, path="x", format="json-lines", series=(series,) * 3)
    made = analyse_digests(make_digests([1.0, 2.0]), read_trainings=lambda _: (training,) * 9)
    (task,) = made.trainings
    assert [len(run.trainings) for run in task.runs] == [4, 4]
    assert [each.points[-1] for each in task.runs[0].trainings[0].series] == [(6.0, 0.5)]
    assert [value for _, value in task.runs[0].trainings[0].series[0].points[:4]] == [None] * 4
    (figure,) = [each for each in list_figures(made) if each.section == "training"]
    for narrow in (False, True):
        drawn = figure.draw_figure(narrow)
        assert drawn
        texts = chart_style.render_svgs({"a": drawn})
        assert "<script>" not in texts["a"]
        assert "\u202e" not in json.loads(texts["a.chart"])[0]["series"][0]["name"]


def test_the_figure_of_each_task_has_a_name_of_its_own() -> None:
    tasks = ["a b", "a-b", "A/B", "a-b-2", "é", "", "x" * 90, "x" * 91]
    names = campaign_page.name_training_figures(tasks)
    assert len(set(names)) == len(tasks)
    assert all(re.fullmatch(r"training[a-z0-9-]*", name) for name in names)


def test_the_report_of_a_campaign_reads_the_logs_of_its_runs_once(tmp_path: Path) -> None:
    paths = unpack_earlier_run(tmp_path / "runs")
    log = paths.workspace / "progress.jsonl"
    log.write_text("".join(f'{{"step": {step}, "reward": {step / 9}}}\n' for step in range(9)))
    seen = {"path": log.name, "what": "metrics", "bytes": log.stat().st_size, "changed": 1794969127.0}
    with paths.events.open("a") as file:
        file.write(json.dumps({"time": 1794969127.0, "kind": "file", "data": seen}) + "\n")
    arguments = ["campaign", "report", str(tmp_path / "runs"), "-o", str(tmp_path / "all")]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Training curves of gsm8k-mini" in (tmp_path / "all/campaign.html").read_text()
    rows = read_csv_rows(tmp_path / "all/figures/training-gsm8k-mini.csv")
    assert [float(row["value"]) for row in rows if row["metric"] == "reward"][-1] == pytest.approx(8 / 9)
    log.unlink()
    (training,) = digests.find_trainings([paths])(paths.run_id)
    assert (training.name, len(training.series[0].points)) == ("progress.jsonl", 9)
    paths.ledger_head.write_text("elsewhere")
    assert digests.read_cached_trainings(paths) is None
    assert digests.find_trainings([])(paths.run_id) == ()


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


@pytest.mark.thorough
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
