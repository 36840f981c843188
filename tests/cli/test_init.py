"""What a user begins with works as it is written, and never takes the place of what is there."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent2rl.cli.main import cli
from tests.helpers.run_launcher import RunLauncher


def test_what_init_writes_can_be_checked_and_planned(
    launcher: RunLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = launcher.cli("init", "mine")
    assert done.returncode == 0, done.stderr
    tasks = str(launcher.home / "mine/tasks")
    assert launcher.cli("check", "shout", "--tasks-dir", tasks).returncode == 0
    assert (launcher.home / "mine/agents/beginner/start.sh").stat().st_mode & 0o111
    monkeypatch.chdir(launcher.home / "mine")  # its paths start where it is called
    told = CliRunner().invoke(
        cli, ["campaign", "plan", "campaign.toml", "--runs-dir", str(launcher.runs), "--json"]
    )
    assert told.exit_code == 0, told.output
    assert told.output.count('"task":"shout"') >= 2


def test_init_touches_nothing_that_is_there(launcher: RunLauncher) -> None:
    (launcher.home / "campaign.toml").write_text("mine")
    done = launcher.cli("init")
    assert done.returncode == 2
    assert "campaign.toml already exists" in done.stderr
    assert (launcher.home / "campaign.toml").read_text() == "mine"
    assert not (launcher.home / "tasks").exists()
    assert launcher.cli("init", "--only", "task").returncode == 0
    assert (launcher.home / "tasks/shout/eval.py").is_file()


@pytest.mark.parametrize(
    ("words", "found"), [("run --task alf", "alfworld-mini"), ("le", "leaderboard"), ("show lat", "latest")]
)
def test_a_shell_completes_commands_and_names(words: str, found: str, tmp_path: Path) -> None:
    place = {"_AGENT2RL_COMPLETE": "bash_complete", "COMP_WORDS": f"agent2rl {words}"}
    count = {"COMP_CWORD": str(len(words.split())), "AGENT2RL_RUNS": str(tmp_path)}
    told = CliRunner().invoke(cli, [], prog_name="agent2rl", env={**place, **count})
    assert found in [line.partition(",")[2] for line in told.output.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_told_how_to_complete(shell: str) -> None:
    told = CliRunner().invoke(cli, ["completion", shell])
    assert told.exit_code == 0
    assert "_AGENT2RL_COMPLETE" in told.output
