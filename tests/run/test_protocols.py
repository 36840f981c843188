"""The protocols: what `--protocol paper` selects and refuses, what is recorded, what is never mixed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.analysis.campaigns.leaderboard import build_leaderboard
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, RunSpec
from agent2rl.core.task import make_split_profile
from agent2rl.run.assets import test_set as paper_test_set
from tests.helpers.run_digests import make_digest, make_digests
from tests.helpers.run_launcher import RunLauncher

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {
    "alfworld": "paper-alfworld-1",
    "alpacaeval": "paper-alpacaeval-1",
    "deepsearchqa": "paper-deepsearchqa-1",
    "gsm8k": "paper-gsm8k-2",
    "humaneval": "paper-humaneval-1",
    "webshop": "paper-webshop-1",
}
UNKNOWN = """
from dataclasses import replace
from agent2rl.tasks.gsm8k.mini import TASK as MINI
TASK = replace(MINI, id="own", paper=None)
"""


@pytest.mark.parametrize(("name", "profile"), PROFILES.items())
def test_the_tasks_and_their_miniatures_share_a_profile(name: str, profile: str) -> None:
    assert registry.find_profile(name, "paper") == profile
    assert registry.find_profile(f"{name}-mini", "paper") == profile
    assert registry.find_profile(name, "default") is None


@pytest.mark.parametrize(("name", "profile"), PROFILES.items())
def test_a_profile_changes_the_evaluation_and_what_the_agent_is_told_and_nothing_else(
    name: str, profile: str
) -> None:
    task = registry.find_task(f"{name}-mini")
    profiled = task.apply_profile(profile)
    assert profiled.evaluator.version != task.evaluator.version
    assert profiled.evaluator.version.startswith("paper-")
    assert profiled.description.count("## How it is scored") == 1
    assert task.description.partition("\n")[0] == profiled.description.partition("\n")[0]
    assert (profiled.id, profiled.world, profiled.level) == (task.id, task.world, task.level)
    assert task.apply_profile(None) is task


def test_a_miniature_has_its_own_examples_under_the_profile() -> None:
    task = registry.find_task("gsm8k-mini")
    own, profiled = task.load(None), task.apply_profile("paper-gsm8k-2").load(None)
    assert paper_test_set(profiled) == paper_test_set(own)


def test_an_unknown_profile_names_the_one_that_exists() -> None:
    with pytest.raises(UserError, match="no published profile 'paper-gsm8k-9'") as caught:
        registry.find_task("gsm8k").apply_profile("paper-gsm8k-9")
    assert caught.value.hint == "It has paper-gsm8k-2."
    with pytest.raises(UserError) as caught:
        replace(registry.find_task("gsm8k"), paper=None).apply_profile("paper-gsm8k-1")
    assert caught.value.hint == "It has none."


def test_a_task_without_a_profile_lists_those_that_have_one(launcher: RunLauncher, tmp_path: Path) -> None:
    (tmp_path / "own_task.py").write_text(UNKNOWN)
    options = ("run", "--task", "own_task:TASK", "--agent", "nop", "--protocol", "paper")
    done = launcher.cli(*options, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "The task 'own_task:TASK' has no published profile" in done.stderr
    for name in PROFILES:
        assert f"{name}, {name}-mini" in done.stderr
    assert "--protocol default" in done.stderr
    assert not list(launcher.runs.glob("*/"))


def test_a_task_of_ones_own_may_use_the_papers_split_with_its_own_evaluation() -> None:
    task = registry.find_task("gsm8k-mini")
    own = replace(task, paper=make_split_profile(task.evaluator)).apply_profile("paper-split-1")
    assert (own.evaluator, own.description) == (task.evaluator, task.description)
    assert own.load(None) == task.load(None)


def test_other_prompts_and_unknown_protocols_are_refused(launcher: RunLauncher, tmp_path: Path) -> None:
    (tmp_path / "prompts.toml").write_text('chat = "{question}"')
    start = ("run", "--task", "gsm8k-mini", "--agent", "nop", "--protocol")
    refused = launcher.cli(*start, "paper", "--prompts", str(tmp_path / "prompts.toml"))
    assert refused.returncode == 2
    assert "has its own prompts" in refused.stderr
    unknown = launcher.cli(*start, "published")
    assert unknown.returncode == 2
    assert "'default', 'paper'" in unknown.stderr


def test_a_specification_of_an_earlier_version_names_the_default_protocol_heldout() -> None:
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=1))
    assert (spec.protocol, spec.profile) == ("default", None)
    old = {**json.loads(spec.model_dump_json(exclude={"profile"})), "protocol": "heldout"}
    assert RunSpec.model_validate(old) == spec
    digest = make_digest(1.0).model_dump(mode="json", exclude={"profile"})
    assert RunDigest.model_validate({**digest, "protocol": "heldout"}).protocol == "default"


def test_the_earlier_name_is_still_understood_on_the_command_line(launcher: RunLauncher) -> None:
    asked = launcher.cli("leaderboard", "--protocol", "heldout")
    assert "invalid" not in asked.stderr.lower()


def test_profiles_are_never_ranked_together() -> None:
    known = {"protocol": "paper", "task": "gsm8k", "real": None}
    before = make_digests([1.0, 2.0], "old", **known)
    one = make_digests([5.0, 6.0], "one", profile="paper-gsm8k-1", **known)
    two = make_digests([7.0, 8.0], "two", profile="paper-gsm8k-2", **known)
    default = make_digests([9.0, 9.5], "default", task="gsm8k")
    board = build_leaderboard([*before, *one, *two, *default], "paper")
    assert board.tasks == ("gsm8k", "gsm8k (paper-gsm8k-1)", "gsm8k (paper-gsm8k-2)")
    (row,) = board.rows
    assert {task: cell.n for task, cell in row.by_task.items()} == dict.fromkeys(board.tasks, 2)
    assert build_leaderboard([*before, *one, *two, *default]).tasks == ("gsm8k",)


def test_a_profile_and_expert_help_are_both_part_of_the_setting() -> None:
    found = make_digest(1.0, task="alfworld", profile="paper-alfworld-1", expert=96)
    assert found.task_setting == "alfworld (paper-alfworld-1, expert 96)"


@pytest.mark.parametrize(
    ("task", "profile"),
    [
        ("tests.helpers.short_alfworld:TASK", "paper-alfworld-1"),
        pytest.param("tests.helpers.short_webshop:PAPER_TASK", "paper-webshop-1", marks=pytest.mark.thorough),
        pytest.param(
            "tests.helpers.short_deepsearchqa:TASK", "paper-deepsearchqa-1", marks=pytest.mark.thorough
        ),
        ("tests.helpers.short_alpacaeval:TASK", "paper-alpacaeval-1"),
    ],
)
def test_a_whole_run_under_the_profile_is_graded(launcher: RunLauncher, task: str, profile: str) -> None:
    engine = ("--engine", "scripted:tests.helpers.short_gsm8k:open_constant_model")
    options = ("--task", task, "--protocol", "paper", "--agent", "nop", "--json", "--no-report", *engine)
    done = launcher.cli("run", *options, PYTHONPATH=str(ROOT))
    result = json.loads(done.stdout)
    assert (result["ending"], result["spec"]["profile"]) == ("completed", profile), result["reason"]
    assert result["baseline"]["how"]["evaluator"].startswith("paper-")
    assert result["baseline_heldout"] is None
