"""`submit:PATH`: a model that was trained elsewhere, in a real run."""

from agent2rl import registry
from agent2rl.models.abacus import Abacus
from tests.helpers.run_launcher import RunLauncher


def test_a_model_from_elsewhere_is_graded_and_no_ranking_counts_it(launcher: RunLauncher) -> None:
    examples = registry.find_task("gsm8k-mini").load(None).train[:60]
    model = Abacus.base()
    model.fit([each.prompt for each in examples], [each.target for each in examples])
    registry.find_model("abacus").write(launcher.home / "mine")
    model.save(launcher.home / "mine")
    for path in (launcher.home / "mine").iterdir():
        path.chmod(0o644)  # where root runs the tests, the sandbox has another user
    done = launcher.cli(
        *("run", "--task", "gsm8k-mini", "--agent", "submit:mine", "--budget", "5m", "--no-report", "--json")
    )
    run = launcher.ended(done.returncode, done.stdout, done.stderr)
    assert run.result.improvement is not None
    assert run.result.improvement > 0
    assert run.result.spec.agent == f"submit:{(launcher.home / 'mine').resolve()}"
    ranked = launcher.cli("leaderboard")
    assert "1 trained-elsewhere" in " ".join(ranked.stdout.split()), ranked.stderr
