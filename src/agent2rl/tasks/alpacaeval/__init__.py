"""AlpacaEval 2.0: 805 instructions, answers held against GPT-4-turbo's by a judge, at equal length.

The official instructions, reference outputs and difficulties, from the hub or a directory; the judge is for
the run to name (`--judge`). A model with a chat template gets the bare instruction; one without goes on after
two of our own that are answered.
"""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Task
from agent2rl.evaluators.answer_sampling import QuestionPrompt
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.tasks.alpacaeval import official

PLAIN = Path(__file__).with_name("shots.txt").read_text(encoding="utf-8")

EVALUATOR = Pairwise(
    rule="alpacaeval-1",
    reference=official.get_reference,
    asking=QuestionPrompt(
        plain=PLAIN + "\nInstruction: {question}\nAnswer:",
        shots=2,
        stop=("\nInstruction:",),
        sampling=Sampling(max_tokens=2048),
    ),
    group="dataset",
)

TASK: Task = Task(
    id="alpacaeval",
    level=2,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=official.load,
    evaluator=EVALUATOR,
    desk=frozenset({"judge"}),
    judged=True,
    published=official.AlpacaAnnotations(),
)
