"""GSM8K made short: a few problems and a few tokens each, for models that are slow or never stop."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Splits, Task
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k.mini import TASK as MINI

PROBLEMS = 4
TOKENS = 16


def load(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    return Splits(whole.train, whole.feedback[:PROBLEMS], whole.heldout[:PROBLEMS])


ASKING = replace(EVALUATOR.asking, sampling=Sampling(max_tokens=TOKENS))
TASK: Task = replace(MINI, id="short", load=load, evaluator=replace(EVALUATOR, asking=ASKING))
