"""Where experiments stand, and what a plan says of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent2rl.campaign.campaign_file import Experiment, expand_experiments, parse_campaign
from agent2rl.campaign.claims_and_sessions import ExperimentClaims
from agent2rl.campaign.experiment_status import (
    BLAMELESS_ENDINGS,
    ENDINGS,
    RunHistory,
    find_statuses,
    select_failed,
    select_runnable,
)
from agent2rl.campaign.plan import CostEstimator, estimate_makespan, make_plan
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import Budget, Ending, RunResult, RunSpec, TimeBreakdown
from agent2rl.record.files import write_record
from agent2rl.record.paths import RunPaths
from tests.helpers.run_launcher import RunLauncher

CAMPAIGNS = Path(__file__).resolve().parents[2] / "campaigns"
COUNTS = {"drivers": 90, "paper": 414, "references": 72, "smoke": 12}
TEXT = 'name = "n"\n[axes]\ntask = ["a", "b"]\nagent = ["x"]\ndriver = ["d"]\nseed = [0, 1]'


def spec(arguments: Sequence[str], gpus: bool) -> RunSpec:
    said = dict(each.removeprefix("--").partition("=")[::2] for each in arguments)
    budget = Budget(wall_seconds=100, usd=float(said["max-usd"]) if "max-usd" in said else None)
    seed, driver = int(said["seed"]), said["driver"]
    return RunSpec(
        task=said["task"], agent=said["agent"], driver=driver, model="m", engine="e", seed=seed, budget=budget
    )


def finished(
    runs: Path, name: str, made: RunSpec, ending: Ending = "completed", usd: float | None = 2.0
) -> None:
    """A run that took 130 s, 100 of them the agent's."""
    paths = RunPaths(runs / name)
    paths.root.mkdir(parents=True)
    write_record(paths.spec, made)
    write_record(
        paths.result,
        RunResult(
            run_id=name,
            spec=made,
            ending=ending,
            started_at=1000,
            ended_at=1130,
            clock=TimeBreakdown(agent=100, queue=0, grading=10),
            usage=LlmUsage(usd=usd),
        ),
    )


def crashed(runs: Path, name: str, made: RunSpec) -> None:
    paths = RunPaths(runs / name)
    paths.root.mkdir(parents=True)
    write_record(paths.spec, made)


def made(text: str = TEXT) -> tuple[Experiment, ...]:
    return expand_experiments(parse_campaign(text, "n"), spec)


def test_an_experiment_stands_where_its_runs_left_it(tmp_path: Path) -> None:
    first, second, third, fourth = made()
    finished(tmp_path, "1", first.spec, "interrupted")
    finished(tmp_path, "2", first.spec)
    finished(tmp_path, "3", second.spec, "rate-limited")
    crashed(tmp_path, "4", third.spec)
    standings = find_statuses(made(), RunHistory(tmp_path), ExperimentClaims(tmp_path / ".claims"))
    assert [one.state for one in standings] == ["done", "failed", "crashed", "todo"]
    assert [one.experiment.id for one in select_runnable(standings, again=False)] == [third.id, fourth.id]
    assert len(select_runnable(standings, again=True)) == 4
    assert [one.experiment.id for one in select_failed(standings, True, ())] == [second.id]
    assert [one.experiment.id for one in select_failed(standings, False, ("completed",))] == [first.id]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_a_result_a_failure_or_a_stop(tmp_path: Path, ending: Ending) -> None:
    first, *_ = made()
    finished(tmp_path, "1", first.spec, ending)
    (one, *_) = find_statuses(made(), RunHistory(tmp_path), ExperimentClaims(tmp_path / ".claims"))
    expected = "failed" if ending in BLAMELESS_ENDINGS else "stopped" if ending == "interrupted" else "done"
    assert one.state == expected


def test_what_somebody_has_claimed_is_running_and_comes_last(tmp_path: Path) -> None:
    first, *_ = made()
    claims = ExperimentClaims(tmp_path / ".claims")
    held = claims.claim_experiment(first.id)
    assert held is not None
    standings = find_statuses(made(), RunHistory(tmp_path), claims)
    assert standings[0].state == "running"
    assert select_runnable(standings, again=False)[-1].experiment == first
    held.release()
    assert find_statuses(made(), RunHistory(tmp_path), claims)[0].state == "todo"


def test_a_run_of_another_version_is_nobodys_experiment(tmp_path: Path) -> None:
    crashed(tmp_path, "1", made()[0].spec)
    (tmp_path / "1" / "spec.json").write_text('{"unheard": "of"}')
    assert RunHistory(tmp_path).list_runs_by_experiment() == {}


def test_what_is_settled_is_read_once_and_what_is_new_is_seen(tmp_path: Path) -> None:
    history, (first, second, *_) = RunHistory(tmp_path), made()
    finished(tmp_path, "1", first.spec)
    crashed(tmp_path, "2", second.spec)
    assert {key: [run.state for run in runs] for key, runs in history.list_runs_by_experiment().items()} == {
        first.id: ["done"],
        second.id: ["crashed"],
    }
    (tmp_path / "1" / "result.json").unlink()
    finished(tmp_path, "3", second.spec)
    assert [run.state for run in history.list_experiment_runs(first.id)] == ["done"]
    assert [run.state for run in history.list_experiment_runs(second.id)] == ["crashed", "done"]


def test_a_plan_learns_from_earlier_runs_of_the_task_and_of_the_driver(tmp_path: Path) -> None:
    first, *_ = made()
    finished(tmp_path, "1", first.spec)
    history = RunHistory(tmp_path)
    standings = find_statuses(made(), history, ExperimentClaims(tmp_path / ".claims"))
    found = make_plan(
        "n",
        "",
        standings,
        select_runnable(standings, again=False),
        CostEstimator(history.list_runs_by_experiment()),
        2,
    )
    assert [run.seconds for run in found.runs] == [130, 130, 100, 100]
    assert [run.beside_known for run in found.runs] == [True, True, False, False]
    assert [run.chosen for run in found.runs] == [False, True, True, True]
    assert found.run_seconds == 330
    assert found.wall_seconds == 200
    assert found.usd == 6.0


def test_a_cost_that_nobody_knows_is_no_zero(tmp_path: Path) -> None:
    standings = find_statuses(made(), RunHistory(tmp_path), ExperimentClaims(tmp_path / ".claims"))
    found = make_plan("n", "", standings, select_runnable(standings, again=False), CostEstimator({}), None)
    assert [run.usd for run in found.runs] == [None] * 4
    assert found.usd_unknown == 4
    assert found.wall_seconds is None
    capped = find_statuses(
        made(TEXT + "\n[settings]\nmax-usd = 5"), RunHistory(tmp_path), ExperimentClaims(tmp_path / ".claims")
    )
    assert make_plan("n", "", capped, select_runnable(capped, again=False), CostEstimator({}), None).usd == 20


def test_a_limit_for_a_scheduler_leaves_room_for_grading(tmp_path: Path) -> None:
    (first, *_) = made()
    assert CostEstimator({}).estimate_limit_seconds(first.spec) == 100 + 3600
    finished(tmp_path, "1", first.spec)
    assert (
        CostEstimator(RunHistory(tmp_path).list_runs_by_experiment()).estimate_limit_seconds(first.spec)
        == 100 + 600
    )


@pytest.mark.parametrize(
    ("seconds", "slots", "expected"),
    [([], 2, 0), ([5, 5, 5], 1, 15), ([5, 5, 5], 2, 10), ([9, 1, 1, 1], 2, 9)],
)
def test_runs_that_begin_as_soon_as_there_is_room(seconds: list[float], slots: int, expected: float) -> None:
    assert estimate_makespan(seconds, slots) == expected


def test_every_campaign_of_the_repository_is_known_here() -> None:
    assert {path.stem for path in CAMPAIGNS.glob("*.toml")} == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_a_campaign_of_the_repository_can_be_planned(launcher: RunLauncher, name: str) -> None:
    done = launcher.cli("campaign", "plan", str(CAMPAIGNS / f"{name}.toml"), "--executor", "slurm", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["campaign"] == name
    assert len(found["runs"]) == COUNTS[name]
    assert all(run["state"] == "todo" for run in found["runs"])
    assert not launcher.runs.exists(), "looking at a plan leaves nothing"


def plan_paper(launcher: RunLauncher, *options: str, **environment: str) -> dict[str, Any]:
    done = launcher.cli("campaign", "plan", str(CAMPAIGNS / "paper.toml"), "--json", *options, **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_papers_campaign_states_its_cost_on_any_machine(launcher: RunLauncher) -> None:
    found = plan_paper(launcher, "--budget", "12h")
    assert found["gpu_hours"] == 414 * 12
    drivers = {each["driver"]: each for each in found["drivers"]}
    assert sum(each["runs"] for each in drivers.values()) == 414
    assert sum(each["usd"] for each in drivers.values()) == found["usd"] == 414 * 50
    assert all(each["at_most"] for each in drivers.values())
    assert drivers["claude-opus-4-6"]["usd_per_million_output"] == 25.0
    assert found["judges"] == ["gpt-4o", "gpt-5.2"]
    assert plan_paper(launcher)["gpu_hours"] == 414, "the default budget is short"


def test_a_plan_warns_of_what_is_not_here_and_a_run_refuses(launcher: RunLauncher) -> None:
    warnings = "\n".join(plan_paper(launcher, ANTHROPIC_API_KEY="k" * 20)["warnings"])
    assert "OPENAI_API_KEY is not set. Needed by" in warnings
    assert "ANTHROPIC_API_KEY" not in warnings
    assert "The data of webshop is not on this machine" in warnings
    assert "The model Qwen/Qwen2.5-7B-Instruct@" in warnings
    file = launcher.home / "large.toml"
    file.write_text(
        'name = "large"\n[axes]\ntask = ["gsm8k-mini"]\nagent = ["nop"]\n'
        '[resources]\ncpus = 100000\ngpus = 1000\nmemory = "999T"\n'
    )
    done = launcher.cli("campaign", "plan", str(file))
    assert done.returncode == 0
    assert "warning: A run of this campaign needs 100,000 cores" in done.stderr
    assert "warning: A run of this campaign needs 1,000 GPUs" in done.stderr
    assert re.search(r"needs 1,022,976\.0G of memory, but this machine has [\d,.]+G of memory\.", done.stderr)
    done = launcher.cli("campaign", "run", str(file))
    assert done.returncode != 0
    assert "error: A run of this campaign needs 100,000 cores" in done.stderr
    assert not launcher.runs.exists()


def test_a_price_that_nobody_knows_is_said(launcher: RunLauncher) -> None:
    file = launcher.home / "unpriced.toml"
    file.write_text(
        'name = "unpriced"\n[axes]\ntask = ["gsm8k-mini"]\nagent = ["script"]\n'
        'driver = ["mine@http://127.0.0.1:9/v1"]\n'
    )
    done = launcher.cli("campaign", "plan", str(file))
    assert "mine@http://127.0.0.1:9/v1: 1 run, unknown cost of 1 run (price unknown)" in done.stdout
    assert "has no known price: its cost is unknown" in done.stderr
    prices = launcher.home / "prices.toml"
    prices.write_text('["mine"]\ninput = 1.0\noutput = 2.0\n')
    done = launcher.cli("campaign", "plan", str(file), AGENT2RL_PRICES=str(prices))
    assert "($1.00 in and $2.00 out per million tokens)" in done.stdout
    assert "no known price" not in done.stderr


def test_another_budget_is_another_experiment_in_overrides_too(launcher: RunLauncher) -> None:
    file = str(CAMPAIGNS / "smoke.toml")
    ids, seconds = {}, {}
    for options in ((), ("--budget", "3m"), ("--budget", "7m")):
        found = json.loads(launcher.cli("campaign", "plan", file, "--json", *options).stdout)
        ids[options] = {run["experiment"] for run in found["runs"]}
        seconds[options] = {run["seconds"] for run in found["runs"]}
    assert seconds == {(): {180, 300}, ("--budget", "3m"): {180}, ("--budget", "7m"): {420}}
    assert len(ids[()] & ids["--budget", "3m"]) == 6
    assert not ids[()] & ids["--budget", "7m"]
