"""GSM8K whose right answers lie beside the examples, in a folder that only a grading sees."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent2rl.core.engine import Engine
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example, Splits, Task, require_evaluator_folder
from agent2rl.evaluators.single_turn import SingleTurn
from agent2rl.tasks.gsm8k.mini import TASK as MINI

ANSWERS_FOLDER, ANSWERS_FILE = "answers", "right-answers-of-the-examples.json"


@dataclass(frozen=True)
class FolderReadingEvaluator:
    inner: SingleTurn

    @property
    def version(self) -> str:
        return f"beside-{self.inner.version}"

    def chat(self, example: Example, templated: bool) -> object:
        return self.inner.chat(example, templated)

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        right = json.loads((require_evaluator_folder(ANSWERS_FOLDER) / ANSWERS_FILE).read_text())
        whole = [replace(example, target=right[example.id]) for example in examples]
        return self.inner.evaluate(engine, whole, settings)


def load_splits(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    scoring = (*whole.feedback, *whole.heldout)

    def write(place: Path) -> None:
        (place / ANSWERS_FILE).write_text(json.dumps({one.id: one.target for one in scoring}))

    return replace(
        whole,
        feedback=tuple(replace(one, target="not here") for one in whole.feedback),
        heldout=tuple(replace(one, target="not here") for one in whole.heldout),
        evaluator_folders={ANSWERS_FOLDER: write},
    )


assert isinstance(MINI.evaluator, SingleTurn)
TASK: Task = replace(MINI, id="beside", load=load_splits, evaluator=FolderReadingEvaluator(MINI.evaluator))
