"""The example agents that train with TRL: what they are attributed, and that they work in whole runs."""

import pytest

from agent2rl.analysis import attempt_training
from agent2rl.analysis.attempts import AgentSourceFile
from agent2rl.analysis.findings import EvidenceBook
from agent2rl.record.reader import read_run
from tests.analysis.labelled_scripts import make_span
from tests.docs.test_examples import ROOT
from tests.helpers.run_launcher import RunLauncher

EXAMPLES = ROOT / "examples"


def read_example(name: str, **constants: object) -> str:
    """Return an example with other values of its constants."""
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    for constant, value in constants.items():
        (number,) = [number for number, line in enumerate(lines) if line.startswith(f"{constant} = ")]
        lines[number] = f"{constant} = {value}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "rollouts", "routes"),
    [("trl_gsm8k.py", 0, ("sft", "policy-gradient")), ("trl_world.py", 200, ("sft", "online-rl"))],
)
def test_the_route_of_an_example_is_read_from_its_code(
    name: str, rollouts: int, routes: tuple[str, ...]
) -> None:
    source = AgentSourceFile(1, f"agent/{name}", read_example(name))
    command = f"python /workspace/agent/{name}"
    span = make_span([source], [command], "/workspace/output/grpo", rollouts=rollouts)
    assert attempt_training.attribute_route(span, {}, EvidenceBook()).routes == routes


@pytest.mark.thorough
def test_grpo_on_word_problems_is_graded_with_its_route(launcher: RunLauncher) -> None:
    program = read_example("trl_gsm8k.py", WARM_UP_PROBLEMS=64, GRPO_STEPS=2)
    done = launcher.run(program, "--model", "seedling", "--budget", "15m")
    assert done.code == 0, done.errors + done.log
    assert [each.verdict for each in read_run(done.paths).submissions] == ["scored"], done.log
    assert "sft + policy-gradient" in launcher.report(done)


@pytest.mark.thorough
def test_grpo_in_the_served_world_is_graded_with_its_route_and_its_witnessed_episodes(
    launcher: RunLauncher,
) -> None:
    program = read_example("trl_world.py", WARM_UP_EPOCHS=1, GRPO_STEPS=2)
    done = launcher.run(
        program,
        "--task",
        "tests.helpers.short_alfworld:TASK",
        "--expert",
        "12",
        "--model",
        "seedling",
        "--budget",
        "15m",
        PYTHONPATH=str(ROOT),
    )
    assert done.code == 0, done.errors + done.log
    assert [each.verdict for each in read_run(done.paths).submissions] == ["scored", "scored"], done.log
    played = done.result.rollouts
    assert played is not None
    assert (played.claimed.episodes, played.served.episodes) == (0, 2 * 4 * 8)
    report = launcher.report(done)
    assert "sft + online-rl" in report
    assert "64 episodes" in report
