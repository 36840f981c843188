"""GSM8K: grade-school word problems, answered with one exact number.

The official data set, from the hub at a pinned revision or from a directory with the official files. Its
training set is for the agent; a fixed split divides its test set into feedback and held-out halves.

A model with a chat template gets an instruction; one without gets eight worked problems first (shots.txt),
which we wrote ourselves and are in no part of the data.

The score is the strict rule: the number after `####`, which the prompt asks for. The metric `flexible` takes
the last number of a reply, as lm-evaluation-harness and the paper do.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, PublishedProfile, Splits, Task
from agent2rl.evaluators import task_data
from agent2rl.evaluators.scorers import (
    exact_number,
    final_answer,
    published_number,
    same_last_number,
    same_published_number,
)
from agent2rl.evaluators.single_turn import FewShotPrompt, QuestionPrompt, SingleTurn
from agent2rl.evaluators.task_data import Row, read_rows, split_halves

# GSM8K as published: four worked problems as turns of the chat, and the last number of the reply.
#
# The published rule is that of OpenCompass's `gsm8k_gen_1d7fe4`. It takes the last run of digits, so `1,234`
# is 234. The metric `flexible` reads commas.


def score_published_number(output: str, example: Example) -> float:
    return same_published_number(output, example.target)


def score_last_number(output: str, example: Example) -> float:
    return same_last_number(output, example.target)


def read_shots(path: Path) -> tuple[tuple[str, str], ...]:
    """Read the worked problems. As published, an answer ends with a line break."""
    shots = tomllib.loads(path.read_text(encoding="utf-8"))["shots"]
    return tuple((shot["question"], f"{shot['answer']}\n") for shot in shots)


PAPER = PublishedProfile(
    name="paper-gsm8k",
    version=2,
    evaluator=SingleTurn(
        rule="paper-gsm8k-2",
        score=score_published_number,
        prompt=FewShotPrompt(
            chat="Question: {question}\nLet's think step by step\nAnswer:",
            turns=read_shots(Path(__file__).with_name("paper_shots.toml")),
            sampling=Sampling(max_tokens=512),
        ),
        answer=published_number,
        metrics={"flexible": score_last_number},
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    exposes={"eval.py": Path(__file__).with_name("paper_eval.py")},
)


HUB_DATASET = "openai/gsm8k"
HUB_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
SPLIT_SEED = 0
SHOTS = Path(__file__).with_name("shots.txt").read_text(encoding="utf-8")


def score_answer(output: str, example: Example) -> float:
    return exact_number(output, example.target)


EVALUATOR = SingleTurn(
    rule="gsm8k-exact-number-3",
    score=score_answer,
    prompt=QuestionPrompt(
        # It has no numbers: a model that copies numbers from the prompt finds only those of the question.
        chat="{question}\n\n"
        "Reason step by step. End with a line that holds #### and the answer as a plain number.",
        plain=SHOTS + "\nQuestion: {question}\nAnswer:",
        shots=8,
        # Stop before the model writes a problem of its own.
        stop=("\nQuestion:",),
        sampling=Sampling(max_tokens=512),
    ),
    answer=final_answer,
    metrics={"flexible": score_last_number},
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
            "--data-dir must be the directory with the official train.jsonl and test.jsonl.",
        )
    return read_rows(path)


def _build_examples(split: str, rows: Iterable[Row]) -> tuple[Example, ...]:
    examples = []
    for index, (source, row) in enumerate(rows):
        question, answer = row["question"], row["answer"]
        if not (isinstance(question, str) and isinstance(answer, str)):
            raise UserError(f"{source}: question and answer must be text.")
        if final_answer(answer) is None:
            raise UserError(f"{source}: the answer does not end in #### and a number.")
        examples.append(Example(f"gsm8k-{split}-{index:04d}", question, answer))
    if len(examples) < 2:
        raise UserError(f"The {split} set has fewer than two problems.")
    return tuple(examples)


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
    paper=PAPER,
)
