"""AlpacaEval's miniature made short: few instructions, and few comparisons of constant answers."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Splits, Task
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.tasks.alpacaeval.mini import TASK as MINI

INSTRUCTIONS = 30
CONSTANTS = 5


def load(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    return Splits(whole.train, whole.feedback[:INSTRUCTIONS], whole.heldout[:INSTRUCTIONS])


assert isinstance(MINI.evaluator, Pairwise)
TASK: Task = replace(
    MINI, id="short-alpacaeval", load=load, evaluator=replace(MINI.evaluator, constants=CONSTANTS)
)
