"""The official files: 805 instructions with the reference's outputs, and what length control knows.

From the hub at pinned revisions, or from a directory:

    alpaca_eval_gpt4_baseline.json   the instructions and GPT-4-turbo's outputs
    df_gamed.csv                     the instructions' difficulties, which must be the official ones
    df_gamed.NAME.csv                others in their place, if that is wanted: the result says that they are
    alpaca_data.json                 instructions with answers, of which the first 2,000 are for training

Without difficulties the raw win rate is the score. gpt4_1106_preview.outputs.json.xz does for the first file.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.records import WinRates
from agent2rl.core.task import Example, Preferred, Splits
from agent2rl.evaluators import hub
from agent2rl.evaluators.annotations import loaded, read, win_rates
from agent2rl.evaluators.examples import halves
from agent2rl.evaluators.length_control import Difficulties, require_library
from agent2rl.evaluators.pairwise import FILE, FOLDER

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
    difficulties = difficulties_file(data_dir)
    if difficulties:
        require_library()
        Difficulties.read(difficulties)
    feedback, heldout = halves(instructions(references_file(data_dir)), SPLIT_SEED)
    return Splits(
        train(data_dir), feedback, heldout, beside={FOLDER: lambda place: _put(difficulties, place)}
    )


def reference(example: Example) -> str:
    return example.target


@dataclass(frozen=True)
class Annotations:
    """Preferences in the official format; in a directory those of several models lie in `annotations/`."""

    def win_rates(self, file: Path, data_dir: Path | None) -> WinRates:
        rows = instructions(references_file(data_dir))
        known = difficulties_file(data_dir)
        texts = {row.prompt: row.target for row in rows}
        return win_rates(file, texts, Difficulties.read(known) if known else None)

    def preferences(self, data_dir: Path | None) -> Sequence[Preferred]:
        files = sorted((data_dir / ANNOTATIONS).glob("*.json*")) if data_dir else []
        if not files:
            raise UserError(
                f"There are no preferences in {ANNOTATIONS}/ of {data_dir}.",
                "--data-dir wants a directory that has a file for each model there, in the official format.",
            )
        known = {row.prompt: row for row in instructions(references_file(data_dir))}
        return [
            Preferred(known[row.instruction], row.output_2, row.share)
            for file in files
            for row in read(file)
            if row.share is not None and row.instruction in known
        ]


def references_file(data_dir: Path | None) -> Path:
    if data_dir is None:
        return hub.downloaded(HUB_DATASET, HUB_REVISION, REFERENCES[0])
    found = _one_of(data_dir, REFERENCES)
    if found is None:
        raise UserError(f"There is no {REFERENCES[0]} in {data_dir}.", "--data-dir wants the official file.")
    return found


def difficulties_file(data_dir: Path | None) -> Path | None:
    """The official file, and nothing else under its name; or, in a directory, one that the user named."""
    if data_dir is None:
        return _pinned(hub.downloaded(HUB_DATASET, HUB_REVISION, DIFFICULTIES))
    if (data_dir / DIFFICULTIES).is_file():
        return _pinned(data_dir / DIFFICULTIES)
    others = sorted(data_dir.glob(OTHERS))
    if len(others) > 1:
        raise UserError(f"{data_dir} has several difficulties: {', '.join(one.name for one in others)}.")
    return others[0] if others else None


def _pinned(path: Path) -> Path:
    found = Difficulties.read(path)
    if not found.official:
        raise UserError(
            f"{path} is not the official file: its sha256 is {found.sha256}.",
            f"Fetch it again; or name it {OTHERS.replace('*', 'MINE')} where other difficulties are meant.",
        )
    return path


def instructions(path: Path) -> tuple[Example, ...]:
    found = []
    for row, entry in enumerate(_entries(path, ("instruction", "output"))):
        meta: dict[str, JsonValue] = {"row": row, "dataset": str(entry.get("dataset", ""))}
        found.append(Example(f"alpacaeval-{row:04d}", entry["instruction"], entry["output"], meta))
    if len(found) < FEWEST:
        raise UserError(f"{path} has fewer than {FEWEST} instructions.")
    return tuple(found)


def train(data_dir: Path | None) -> tuple[Example, ...]:
    """Instructions with answers; an input belongs to its instruction."""
    columns = ("instruction", "input", "output")
    if data_dir is None:
        rows = hub.parquet_rows(TRAIN_DATASET, TRAIN_REVISION, TRAIN_PARQUET, columns)
        entries: Sequence[Any] = [row for _, row in rows]
    elif (data_dir / TRAIN).is_file():
        entries = _entries(data_dir / TRAIN, columns)
    else:
        raise UserError(
            f"There is no {TRAIN} in {data_dir}.",
            "It is a JSON list of objects with instruction, input and output.",
        )
    return tuple(
        Example(f"alpaca-{row:04d}", f"{entry['instruction']}\n\n{entry['input']}".strip(), entry["output"])
        for row, entry in enumerate(entries[:TRAIN_ROWS])
    )


def _entries(path: Path, columns: Sequence[str]) -> list[Any]:
    form = f"It is a JSON list of objects with the texts {', '.join(columns)}."
    found = loaded(path, form)
    if not isinstance(found, list):
        raise UserError(f"{path} is no list.", form)
    for place, entry in enumerate(found):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in columns):
            raise UserError(f"{path}, entry {place} has not the texts {', '.join(columns)}.", form)
    return found


def _one_of(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _put(difficulties: Path | None, place: Path) -> None:
    """What gradings see beside the instructions."""
    if difficulties:
        shutil.copyfile(difficulties, place / FILE)
    else:
        (place / "none.txt").write_text("There are no instruction difficulties.\n", encoding="utf-8")
