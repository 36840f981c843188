"""GSM8K: grade-school word problems, answered with one exact number.

The official data set, from the hub at a pinned revision or from a directory with the official files. Its
training set is the agent's; its test set is divided once and for all into feedback and held-out halves.

A model with a chat template is told what to do; one without goes on after eight worked problems (shots.txt),
which are our own and in no part of the data.
"""

from collections.abc import Iterable
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators import task_data
from agent2rl.evaluators.scorers import exact_number, final_answer
from agent2rl.evaluators.single_turn import QuestionPrompt, SingleTurn
from agent2rl.evaluators.task_data import Row, read_rows, split_halves

HUB_DATASET = "openai/gsm8k"
HUB_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
SPLIT_SEED = 0
SHOTS = Path(__file__).with_name("shots.txt").read_text(encoding="utf-8")


def score_answer(output: str, example: Example) -> float:
    return exact_number(output, example.target)


EVALUATOR = SingleTurn(
    rule="gsm8k-exact-number-2",
    score=score_answer,
    asking=QuestionPrompt(
        # No number stands in it: a model that reads numbers out of the prompt meets only the question's.
        chat="{question}\n\n"
        "Reason step by step. End with a line that holds #### and the answer as a plain number.",
        plain=SHOTS + "\nQuestion: {question}\nAnswer:",
        shots=8,
        # Where it would go on to a problem of its own.
        stop=("\nQuestion:",),
        sampling=Sampling(max_tokens=512),
    ),
    answer=final_answer,
)


def load(data_dir: Path | None) -> Splits:
    train, test = (_build_examples(split, _read_rows(split, data_dir)) for split in ("train", "test"))
    return Splits(train, *split_halves(test, SPLIT_SEED))


def _read_rows(split: str, data_dir: Path | None) -> Iterable[Row]:
    if data_dir is None:
        return _download_rows(split)
    path = data_dir / f"{split}.jsonl"
    if not path.is_file():
        raise UserError(
            f"There is no {split}.jsonl in {data_dir}.",
            "--data-dir wants the directory with the official train.jsonl and test.jsonl.",
        )
    return read_rows(path)


def _build_examples(split: str, placed: Iterable[Row]) -> tuple[Example, ...]:
    found = []
    for index, (place, row) in enumerate(placed):
        question, answer = row["question"], row["answer"]
        if not (isinstance(question, str) and isinstance(answer, str)):
            raise UserError(f"{place}: question and answer must be text.")
        if final_answer(answer) is None:
            raise UserError(f"{place}: the answer does not end in #### and a number.")
        found.append(Example(f"gsm8k-{split}-{index:04d}", question, answer))
    if len(found) < 2:
        raise UserError(f"The {split} set has fewer than two problems.")
    return tuple(found)


def _download_rows(split: str) -> Iterable[Row]:
    file = f"main/{split}-00000-of-00001.parquet"
    return task_data.read_parquet_rows(HUB_DATASET, HUB_REVISION, file, ("question", "answer"))


TASK: Task = Task(
    id="gsm8k",
    level=1,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
)
