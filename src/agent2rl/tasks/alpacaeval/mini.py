"""AlpacaEval in miniature: generated instructions, the same evaluator, and a judge that is a rule."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators import rubric
from agent2rl.evaluators.asking import Asking
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.evaluators.referees import Rule
from agent2rl.tasks.alpacaeval import EVALUATOR
from agent2rl.tasks.alpacaeval import TASK as ALPACAEVAL
from agent2rl.tasks.alpacaeval.requests import requests


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("alpacaeval-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(requests("train", 2000), requests("feedback", 150), requests("heldout", 150))


def reference(example: Example) -> str:
    return str(example.meta["reference"])


TASK: Task = replace(
    ALPACAEVAL,
    id="alpacaeval-mini",
    description=Path(__file__).with_name("mini.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=Pairwise(
        rule=f"alpacaeval-mini-1-{rubric.NAME}",
        reference=reference,
        asking=Asking(
            plain="Instruction: {question}\nAnswer:", stop=("\n",), sampling=Sampling(max_tokens=48)
        ),
        referee=Rule(rubric.NAME, rubric.worth),
        group="form",
        constants=EVALUATOR.constants,
    ),
    judged=False,
    published=None,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
)
