"""AlpacaEval's miniature made short: few instructions, and few comparisons of constant answers."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Splits, Task
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.tasks.alpacaeval.mini import TASK as MINI

INSTRUCTION_COUNT = 30
CONSTANT_COUNT = 5


def load_splits(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    return Splits(whole.train, whole.feedback[:INSTRUCTION_COUNT], whole.heldout[:INSTRUCTION_COUNT])


assert isinstance(MINI.evaluator, Pairwise)
TASK: Task = replace(
    MINI, id="short-alpacaeval", load=load_splits, evaluator=replace(MINI.evaluator, constants=CONSTANT_COUNT)
)
