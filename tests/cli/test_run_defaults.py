"""`agent2rl run` with nothing but a task: it asks nothing, and says what it chose."""

import json

import pytest

from agent2rl.cli.run_defaults import choose_agent_and_model
from agent2rl.core.errors import UserError
from tests.helpers.run_launcher import RunLauncher


def test_a_run_with_nothing_but_a_task_explains_its_choices_in_three_lines(launcher: RunLauncher) -> None:
    done = launcher.cli("run", "--task", "gsm8k-mini", "--no-report")
    assert done.returncode == 0, done.stderr
    sandbox = json.loads(next(launcher.runs.glob("*/spec.json")).read_text())["sandbox"]
    assert done.stderr.splitlines()[:4] == [
        "agent:  script, which needs no LLM. Another: --agent NAME (agent2rl list agents)",
        "model:  abacus. Another: --model NAME (agent2rl list models)",
        f"limits: 10 min for the agent, in the sandbox {sandbox}. Others: --budget, --sandbox",
        f"watch:  agent2rl view {launcher.runs}",
    ]
    assert "submission 3 scored" in done.stderr


@pytest.mark.parametrize(
    ("task", "model", "chosen"),
    [
        ("gsm8k-mini", None, ("script", "abacus")),
        ("alfworld-mini", None, ("recipe", "seedling")),
        ("gsm8k-mini", "seedling", ("recipe", "seedling")),
        ("humaneval-mini", "abacus", ("script", "abacus")),
    ],
)
def test_the_agent_needs_no_llm_and_the_model_fits_the_task(
    task: str, model: str | None, chosen: tuple[str, str]
) -> None:
    options = {"task": task, "model": model or "abacus", "driver": None, "agent": None}
    made = choose_agent_and_model(options, model_given=model is not None)
    assert (made["agent"], made["model"]) == chosen


def test_a_driver_without_an_agent_is_refused(launcher: RunLauncher) -> None:
    with pytest.raises(UserError, match="no agent that it drives"):
        choose_agent_and_model({"task": "gsm8k-mini", "driver": "gpt-5.4", "model": "abacus"}, False)
