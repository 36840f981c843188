"""AlpacaEval 2.0: 805 instructions; a judge compares answers with GPT-4-turbo's, with length control.

The official instructions, reference outputs and difficulties, from the hub or a directory; `--judge` names
the judge. A model with a chat template gets the bare instruction; one without gets two answered ones of our
own first.

From the hub at pinned revisions, or from a directory:

    alpaca_eval_gpt4_baseline.json   the instructions and GPT-4-turbo's outputs
    df_gamed.csv                     the instructions' difficulties, which must be the official ones
    df_gamed.NAME.csv                other difficulties instead; the result marks them as not official
    alpaca_data.json                 instructions with answers, of which the first 2,000 are for training

Without difficulties the score is the raw win rate. gpt4_1106_preview.outputs.json.xz can replace the first
file.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import WinRates
from agent2rl.core.task import Example, JudgePreference, Splits, Task
from agent2rl.evaluators import task_data
from agent2rl.evaluators.pairwise import FILE, FOLDER, Pairwise
from agent2rl.evaluators.single_turn import QuestionPrompt
from agent2rl.evaluators.task_data import split_halves
from agent2rl.evaluators.win_rates import (
    InstructionDifficulties,
    compute_win_rates,
    load_json,
    read_annotations,
    require_sklearn,
)
from agent2rl.tasks.alpacaeval.paper import PAPER

# The official files: 805 instructions with reference outputs, and the difficulties for length control

HUB_DATASET = "tatsu-lab/alpaca_eval"
HUB_REVISION = "2edc6fad8be6b14ea7230aabfd08188da6b8b814"
TRAIN_DATASET = "tatsu-lab/alpaca"
TRAIN_REVISION = "dce01c9b08f87459cf36a430d809084718273017"
TRAIN_PARQUET = "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet"

REFERENCES = ("alpaca_eval_gpt4_baseline.json", "gpt4_1106_preview.outputs.json.xz")
DIFFICULTIES, OTHERS = "df_gamed.csv", "df_gamed.*.csv"
TRAIN = "alpaca_data.json"
ANNOTATIONS = "annotations"
TRAIN_ROWS = 2000
SPLIT_SEED = 0
FEWEST = 4


def load(data_dir: Path | None) -> Splits:
    difficulties = find_difficulties_file(data_dir)
    if difficulties:
        require_sklearn()
        InstructionDifficulties.from_csv(difficulties)
    feedback, heldout = split_halves(read_instructions(find_references_file(data_dir)), SPLIT_SEED)
    return Splits(
        load_training_examples(data_dir),
        feedback,
        heldout,
        evaluator_folders={FOLDER: lambda folder: _write_difficulties(difficulties, folder)},
    )


def get_reference(example: Example) -> str:
    return example.target


@dataclass(frozen=True)
class AlpacaAnnotations:
    """Published preferences in the official format; a directory has one file per model in `annotations/`."""

    def win_rates(self, file: Path, data_dir: Path | None) -> WinRates:
        rows = read_instructions(find_references_file(data_dir))
        path = find_difficulties_file(data_dir)
        texts = {row.prompt: row.target for row in rows}
        return compute_win_rates(file, texts, InstructionDifficulties.from_csv(path) if path else None)

    def preferences(self, data_dir: Path | None) -> Sequence[JudgePreference]:
        files = sorted((data_dir / ANNOTATIONS).glob("*.json*")) if data_dir else []
        if not files:
            raise UserError(
                f"There are no preferences in {ANNOTATIONS}/ of {data_dir}.",
                "--data-dir must have a file for each model there, in the official format.",
            )
        examples = {row.prompt: row for row in read_instructions(find_references_file(data_dir))}
        return [
            JudgePreference(examples[row.instruction], row.output_2, row.share)
            for file in files
            for row in read_annotations(file)
            if row.share is not None and row.instruction in examples
        ]


def find_references_file(data_dir: Path | None) -> Path:
    if data_dir is None:
        return task_data.download_file(HUB_DATASET, HUB_REVISION, REFERENCES[0])
    path = _find_first_file(data_dir, REFERENCES)
    if path is None:
        raise UserError(
            f"There is no {REFERENCES[0]} in {data_dir}.", "--data-dir must have the official file."
        )
    return path


def find_difficulties_file(data_dir: Path | None) -> Path | None:
    """Return the official file, checked, or another one that the user put into the directory, if any."""
    if data_dir is None:
        return _require_official(task_data.download_file(HUB_DATASET, HUB_REVISION, DIFFICULTIES))
    if (data_dir / DIFFICULTIES).is_file():
        return _require_official(data_dir / DIFFICULTIES)
    others = sorted(data_dir.glob(OTHERS))
    if len(others) > 1:
        raise UserError(
            f"{data_dir} has several difficulties: {', '.join(path.name for path in others)}.", "Keep one."
        )
    return others[0] if others else None


def _require_official(path: Path) -> Path:
    difficulties = InstructionDifficulties.from_csv(path)
    if not difficulties.official:
        raise UserError(
            f"{path} is not the official file: its sha256 is {difficulties.sha256}.",
            f"Download it again, or rename it to {OTHERS.replace('*', 'MINE')} to use other difficulties.",
        )
    return path


def read_instructions(path: Path) -> tuple[Example, ...]:
    examples = []
    for row, entry in enumerate(_read_entries(path, ("instruction", "output"))):
        meta: dict[str, JsonValue] = {"row": row, "dataset": str(entry.get("dataset", ""))}
        examples.append(Example(f"alpacaeval-{row:04d}", entry["instruction"], entry["output"], meta))
    if len(examples) < FEWEST:
        raise UserError(f"{path} has fewer than {FEWEST} instructions.")
    return tuple(examples)


def load_training_examples(data_dir: Path | None) -> tuple[Example, ...]:
    """Load instructions with answers. An input is appended to its instruction."""
    columns = ("instruction", "input", "output")
    if data_dir is None:
        rows = task_data.read_parquet_rows(TRAIN_DATASET, TRAIN_REVISION, TRAIN_PARQUET, columns)
        entries: Sequence[Any] = [row for _, row in rows]
    elif (data_dir / TRAIN).is_file():
        entries = _read_entries(data_dir / TRAIN, columns)
    else:
        raise UserError(
            f"There is no {TRAIN} in {data_dir}.",
            "It must be a JSON list of objects with instruction, input and output.",
        )
    return tuple(
        Example(f"alpaca-{row:04d}", f"{entry['instruction']}\n\n{entry['input']}".strip(), entry["output"])
        for row, entry in enumerate(entries[:TRAIN_ROWS])
    )


def _read_entries(path: Path, columns: Sequence[str]) -> list[Any]:
    hint = f"It must be a JSON list of objects with the texts {', '.join(columns)}."
    entries = load_json(path, hint)
    if not isinstance(entries, list):
        raise UserError(f"{path} is not a list.", hint)
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in columns):
            raise UserError(f"{path}, entry {index} does not have the texts {', '.join(columns)}.", hint)
    return entries


def _find_first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _write_difficulties(difficulties: Path | None, folder: Path) -> None:
    """Write the folder that gradings see besides the instructions."""
    if difficulties:
        shutil.copyfile(difficulties, folder / FILE)
    else:
        (folder / "none.txt").write_text("There are no instruction difficulties.\n", encoding="utf-8")


PLAIN = Path(__file__).with_name("shots.txt").read_text(encoding="utf-8")

EVALUATOR = Pairwise(
    rule="alpacaeval-1",
    reference=get_reference,
    prompt=QuestionPrompt(
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
    load=load,
    evaluator=EVALUATOR,
    proxy_services=frozenset({"judge"}),
    judged=True,
    published=AlpacaAnnotations(),
    paper=PAPER,
)
