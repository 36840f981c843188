"""The site of real runs: what is verified, what is refused, and what is never on it."""

import csv
import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from agent2rl.record.paths import RunPaths
from agent2rl.site.writer import SiteData
from tests.helpers.run_launcher import RunLauncher

AGENT_CODE = """
OUTPUT.mkdir(exist_ok=True)
rows = [{"step": step, "loss": 2.0 / step, "reward": 0.1 * step} for step in range(1, 9)]
(OUTPUT / "log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
submit(trained("a", 20))
submit(trained("b", 60))
"""


@dataclass(frozen=True)
class BuiltSite:
    folder: Path
    done: CompletedProcess[str]
    data: SiteData
    run_id: str
    home: Path


def change_answer(paths: RunPaths) -> None:
    file = paths.submission_paths(2).results_file("heldout")
    file.write_text(file.read_text().replace('"score":0.0', '"score":1.0'))


def link_outside(paths: RunPaths) -> None:
    paths.usage.symlink_to("/etc/passwd")


def forge_digest(paths: RunPaths) -> None:
    """A report that claims more than the record: nothing is taken from it."""
    paths.report.mkdir()
    paths.digest.write_text('{"improvement": 99}')
    paths.report_page.write_text("<script>window.hit = 1</script>")


CHANGES: dict[str, Callable[[RunPaths], object]] = {
    "changed-answer": change_answer,
    "linked": link_outside,
    "copied": lambda _: None,
    "unreadable": lambda paths: paths.spec.write_text("{"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> BuiltSite:
    """The site of one honest run and of what others made of it."""
    home = tmp_path_factory.mktemp("home")
    launcher = RunLauncher(home.parent / f"{home.name}-runs", cache, home)
    run = launcher.run(AGENT_CODE, "--keep", "none", "--budget", "1m")
    assert run.code == 0, run.errors
    (home / "site").mkdir()
    (home / "site/CNAME").write_text("example.org")
    honest = home / "submissions/alice" / run.paths.run_id
    copy_sent_files(run.paths, honest)
    forge_digest(RunPaths(honest))
    for name, change in CHANGES.items():
        folder = home / "submissions" / name / (run.paths.run_id if name == "changed-answer" else name)
        copy_sent_files(run.paths, folder)
        change(RunPaths(folder))
    sources = [str(home / "submissions" / name) for name in ("alice", *CHANGES)]
    done = launcher.cli("site", *sources, "-o", str(home / "site"), "--require-verified", "--jobs", "1")
    data = SiteData.model_validate_json((home / "site/data/runs.json").read_bytes())
    return BuiltSite(home / "site", done, data, run.paths.run_id, home)


def copy_sent_files(run: RunPaths, target: Path) -> None:
    """What docs/submitting.md says to send, and a training log, as a bundle has it."""
    shutil.copytree(run.root, target, ignore=shutil.ignore_patterns("workspace", "report"))
    (target / "workspace/output").mkdir(parents=True)
    shutil.copyfile(run.workspace / "output/log.jsonl", target / "workspace/output/log.jsonl")


def test_a_verified_run_is_on_every_page_that_concerns_it(built: BuiltSite) -> None:
    (run,) = built.data.runs
    assert (run.run_id, run.checks.verified, run.checks.fault) == (built.run_id, True, None)
    assert run.gain is not None
    assert f"{run.gain:+.2f}" in (built.folder / f"runs/{run.run_id}.html").read_text()
    assert f"runs/{run.run_id}.html" in (built.folder / "runs.html").read_text()
    assert (built.folder / "tasks/gsm8k-mini.html").is_file()
    assert (built.folder / "CNAME").read_text() == "example.org"
    with (built.folder / "data/runs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["run_id"], row["verified"], row["network"]) == (run.run_id, "yes", "none")
    assert int(row["promises_kept"]) == int(row["promises"]) > 10
    board = json.loads((built.folder / "data/leaderboard-default.json").read_text())
    assert board["rows"][0]["place"]["mean"]["value"] == pytest.approx(run.gain)


def test_the_training_curves_of_a_tasks_runs_are_on_its_page(built: BuiltSite) -> None:
    page = (built.folder / "tasks/gsm8k-mini.html").read_text()
    assert "Metrics of the trainings of several runs" in page
    charts = [json.loads(html.unescape(text)) for text in re.findall(r'data-chart="([^"]*)"', page)]
    (reward,) = (panel for chart in charts for panel in chart if panel["title"] == "reward")
    names = [each["name"] for each in reward["series"] if each["name"] != "submission"]
    assert [name.rpartition(": ")[2] for name in names] == [f"{built.run_id}, log.jsonl"]
    assert page.count(">reward</text>") == 2, "drawn for wide and for narrow screens, without scripts"


def test_the_reports_of_others_and_the_paths_of_their_machines_are_not_on_the_site(built: BuiltSite) -> None:
    for page in built.folder.rglob("*.*"):
        text = page.read_text(encoding="utf-8")
        assert "window.hit" not in text
        assert str(built.home) not in text
    assert built.data.runs[0].agent.startswith("script:agent.py #")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("linked", "a symlink"), ("copied", "does not have the name"), ("unreadable", "not a readable")],
)
def test_what_cannot_be_shown_is_named_with_the_reason(name: str, reason: str, built: BuiltSite) -> None:
    refused = {each.name: each.reason for each in built.data.refused}
    assert reason in refused[name]
    assert name in (built.folder / "index.html").read_text()
    assert f"{name} is not shown" in built.done.stderr


def test_a_second_run_of_the_same_name_is_refused_and_fails_the_check(built: BuiltSite) -> None:
    refused = {each.name: each.reason for each in built.data.refused}
    assert "Another run has the same name: it came from alice" in refused[built.run_id]
    assert built.done.returncode == 1


def test_a_changed_record_is_shown_and_not_ranked_and_a_new_site_replaces_the_old_one(
    built: BuiltSite, launcher: RunLauncher, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(built.folder, site)
    changed = str(built.home / "submissions/changed-answer")
    done = launcher.cli("site", changed, "-o", str(site), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "is not ranked: submissions/2/heldout.jsonl was changed" in done.stderr
    (run,) = SiteData.model_validate_json((site / "data/runs.json").read_bytes()).runs
    assert run.checks.verified is False
    page = (site / "index.html").read_text()
    assert "No run can be ranked" in page
    assert "1 run is not ranked, because its record is not verified." in page
    assert len(list((site / "agents").iterdir())) == 1


def test_pages_of_others_are_never_replaced(launcher: RunLauncher, tmp_path: Path, built: BuiltSite) -> None:
    (tmp_path / "index.html").write_text("mine")
    done = launcher.cli("site", str(built.home / "submissions/linked"), "-o", str(tmp_path), "--jobs", "1")
    assert done.returncode == 2
    assert "has pages that agent2rl site did not write" in done.stderr
    assert (tmp_path / "index.html").read_text() == "mine"
    none = launcher.cli("site", str(tmp_path), "-o", str(tmp_path / "new"))
    assert none.returncode == 2
    assert "There are no runs below" in none.stderr
