"""AlpacaEval in miniature: generated instructions, the same evaluator, and a judge that is a rule."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators import rubric
from agent2rl.evaluators.answer_sampling import QuestionPrompt
from agent2rl.evaluators.length_control import require_sklearn
from agent2rl.evaluators.pairwise import FILE, FOLDER, Pairwise
from agent2rl.tasks.alpacaeval import EVALUATOR
from agent2rl.tasks.alpacaeval import TASK as ALPACAEVAL
from agent2rl.tasks.alpacaeval.mini_difficulties import RULE, write_difficulties
from agent2rl.tasks.alpacaeval.mini_instructions import generate_instructions


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("alpacaeval-mini is generated and reads no files.", "Leave out --data-dir.")
    require_sklearn()
    feedback, heldout = generate_instructions("feedback", 150), generate_instructions("heldout", 150)
    numbered = [replace(one, meta={**one.meta, "row": row}) for row, one in enumerate((*feedback, *heldout))]
    return Splits(
        generate_instructions("train", 2000),
        tuple(numbered[: len(feedback)]),
        tuple(numbered[len(feedback) :]),
        beside={FOLDER: lambda place: _write_difficulties_file(numbered, place)},
    )


def _write_difficulties_file(numbered: Sequence[Example], place: Path) -> None:
    (place / FILE).write_text(write_difficulties(numbered), encoding="utf-8")


def get_reference(example: Example) -> str:
    return str(example.meta["reference"])


TASK: Task = replace(
    ALPACAEVAL,
    id="alpacaeval-mini",
    description=Path(__file__).with_name("mini.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=Pairwise(
        rule=f"alpacaeval-mini-2-{rubric.RUBRIC_NAME}",
        reference=get_reference,
        asking=QuestionPrompt(
            plain="Instruction: {question}\nAnswer:", stop=("\n",), sampling=Sampling(max_tokens=48)
        ),
        referee=RULE,
        group="form",
        constants=EVALUATOR.constants,
    ),
    judged=False,
    published=None,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
)
