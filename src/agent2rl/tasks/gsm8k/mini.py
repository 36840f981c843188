"""GSM8K in miniature: generated one- and two-step word problems, the same format and the same evaluator."""

from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.task import Splits, Task
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k import TASK as GSM8K
from agent2rl.tasks.gsm8k.problems import generate_problems


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("gsm8k-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=generate_problems("train", 2000),
        feedback=generate_problems("feedback", 150),
        heldout=generate_problems("heldout", 150),
    )


TASK: Task = Task(
    id="gsm8k-mini",
    level=1,
    description=GSM8K.description
    + """
## The miniature

These problems are generated and short: one or two steps, two or three numbers. The problems that score you
tell other stories with other numbers, in the same everyday words.
""",
    load=load,
    evaluator=EVALUATOR,
    exposes=GSM8K.exposes,
)
