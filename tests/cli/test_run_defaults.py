"""What `agent2rl run` chooses if it is told little."""

import pytest

from agent2rl.cli.run_defaults import choose_agent_and_model
from agent2rl.core.errors import UserError
from tests.helpers.run_launcher import RunLauncher


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
