"""The complete training in docs/worlds.md: the instructions have the same one, and it works in a run."""

import re
from typing import get_args

from agent2rl import registry
from agent2rl.core.records import Budget
from agent2rl.environments.adapters.openenv_messages import ErrorCode, SocketRequest, StepRequest, StepResult
from agent2rl.record.reader import read_run
from agent2rl.run.training_services import render_world_instructions
from tests.docs.test_examples import ROOT, blocks
from tests.helpers.run_launcher import RunLauncher

PAGE = ROOT / "docs" / "worlds.md"


def read_titled_block(title: str) -> str:
    (code,) = [block.code for block in blocks(PAGE) if block.title == title]
    return code


def test_the_training_in_the_docs_is_the_one_in_the_instructions_and_works_in_a_run(
    bench: RunLauncher,
) -> None:
    program = read_titled_block("train.py")
    task = registry.find_task("alfworld-mini")
    assert program in render_world_instructions(task, Budget(wall_seconds=60))
    done = bench.run(
        program,
        "--task",
        "tests.helpers.short_alfworld:TASK",
        "--model",
        "seedling",
        "--budget",
        "20m",
        "--protocol",
        "paper",
        PYTHONPATH=str(ROOT),
    )
    assert done.code == 0, done.errors + done.log
    assert [each.verdict for each in read_run(done.paths).submissions] == ["scored", "scored"], done.log
    played = done.result.rollouts
    assert played is not None
    assert played.claimed.episodes == 12
    assert played.witnessed.episodes == 2 * 2 * 4


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
