"""The complete training in docs/worlds.md: the instructions have the same one, and it works in a run."""

import re
from typing import get_args

import pytest

from agent2rl.environments.adapters.openenv_messages import ErrorCode, SocketRequest, StepRequest, StepResult
from agent2rl.record.reader import read_run
from tests.docs.test_examples import ROOT, blocks
from tests.helpers.run_launcher import RunLauncher

PAGE = ROOT / "docs" / "worlds.md"


def read_titled_block(title: str) -> str:
    (code,) = [block.code for block in blocks(PAGE) if block.title == title]
    return code


@pytest.mark.parametrize(
    ("expert", "claimed_episodes", "engine"),
    [
        pytest.param("full", 12, "transformers", marks=pytest.mark.thorough),
        pytest.param(
            *("12", 0, "scripted:tests.helpers.short_gsm8k:open_constant_model"), marks=pytest.mark.thorough
        ),
    ],
)
def test_the_training_in_the_docs_is_the_one_in_the_instructions_and_works_in_a_run(
    launcher: RunLauncher, expert: str, claimed_episodes: int, engine: str
) -> None:
    """Whether the run has an expert or a file of its games. What is trained is real, with either engine."""
    program = read_titled_block("train.py")
    done = launcher.run(
        program,
        "--task",
        "tests.helpers.short_alfworld:TASK",
        "--expert",
        expert,
        "--model",
        "seedling",
        "--engine",
        engine,
        "--budget",
        "20m",
        "--protocol",
        "paper",
        PYTHONPATH=str(ROOT),
    )
    assert program in (done.paths.workspace / "instructions.md").read_text(encoding="utf-8")
    assert done.code == 0, done.errors + done.log
    assert [each.verdict for each in read_run(done.paths).submissions] == ["scored", "scored"], done.log
    played = done.result.rollouts
    assert played is not None
    assert played.claimed.episodes == claimed_episodes
    assert played.served.episodes == 2 * 2 * 4


def test_the_messages_in_the_docs_are_those_of_the_server() -> None:
    text = PAGE.read_text(encoding="utf-8")
    StepResult.model_validate_json(read_titled_block("step-result.json"))
    (body,) = re.findall(r"`POST /step` \| `(.+?)` ", text)
    StepRequest.model_validate_json(body)
    messages = re.findall(r"^\| `(\{\"type\": .+?\})` \|", text, re.M)
    assert [SocketRequest.model_validate_json(message).type for message in messages] == [
        "reset",
        "step",
        "state",
        "close",
    ]
    assert all(f"`{code}`" in text for code in get_args(ErrorCode))
