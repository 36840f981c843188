"""GSM8K made short: a few problems and a few tokens each, for models that are slow or never stop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.task import Example, Splits, Task, make_split_profile
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k.mini import TASK as MINI

PROBLEM_COUNT = 4
MAX_TOKENS = 16


def load_splits(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    return Splits(whole.train, whole.feedback[:PROBLEM_COUNT], whole.heldout[:PROBLEM_COUNT])


SHORT_PROMPT = replace(EVALUATOR.prompt, sampling=Sampling(max_tokens=MAX_TOKENS))
SHORT_EVALUATOR = replace(EVALUATOR, prompt=SHORT_PROMPT)
TASK: Task = replace(
    MINI,
    id="short",
    load=load_splits,
    evaluator=SHORT_EVALUATOR,
    paper=make_split_profile(SHORT_EVALUATOR),
)
"""With `--protocol paper`, the same evaluation on all eight problems at once."""


def open_constant_model(_: Path) -> Callable[[Chat], str]:
    """For the scripted engine: a model that loads in no time and always answers the same."""
    return lambda _: "#### 7"


def fail_to_score(output: str, example: Example) -> float:
    raise RuntimeError("this scorer is broken")


UNGRADABLE: Task = replace(TASK, id="ungradable", evaluator=replace(SHORT_EVALUATOR, score=fail_to_score))
"""Every grading of it fails."""
