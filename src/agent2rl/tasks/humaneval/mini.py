"""HumanEval in miniature: generated one- and two-step functions, the same format and the same evaluator."""

from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.task import Splits, Task
from agent2rl.tasks.humaneval import EVALUATOR
from agent2rl.tasks.humaneval import TASK as HUMANEVAL
from agent2rl.tasks.humaneval.problems import generate_problems


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("humaneval-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=generate_problems("train", 2000),
        feedback=generate_problems("feedback", 150),
        heldout=generate_problems("heldout", 150),
    )


TASK: Task = Task(
    id="humaneval-mini",
    level=1,
    description=HUMANEVAL.description
    + """
## The miniature

These problems are generated and short: one or two steps on a list, a text or a number. The problems that
score you combine the same steps in other ways, with other constants.
""",
    load=load,
    evaluator=EVALUATOR,
    exposes=HUMANEVAL.exposes,
)
