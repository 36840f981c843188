"""DeepSearchQA: questions that take several searches, many of them answered by a set of things.

The official questions, from the hub or a directory; what is searched is for the run to say (`--search`). A
model with a chat template is told the actions; one without goes on after two episodes of our own.

The CSV file has 900 rows. The split has the paper's sizes and is fixed by hashes: 100 questions for
training, 200 that score (half feedback, half held out), the rest unused.
"""

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.search.actions import normalize_action, parse_action
from agent2rl.environments.search.answer_matching import (
    MATCHER,
    SET,
    GoldAnswer,
    mark_answer,
    parse_gold_answer,
)
from agent2rl.environments.search.environment import STEPS, make_graded_environment
from agent2rl.evaluators import task_data
from agent2rl.evaluators.episodes import EpisodePrompt, Episodes
from agent2rl.evaluators.search_grading import settle_searches
from agent2rl.evaluators.task_data import read_prompts, split_halves

# The official questions as examples: a CSV file of 900 rows, from the hub or a directory.

HUB_DATASET = "google/deepsearchqa"
HUB_REVISION = "b2623f8653065c2672de6d941fc5434cd652376c"
FILE = "DSQA-full.csv"
COLUMNS = ("problem", "problem_category", "answer", "answer_type")
TYPES = (SET, "Single Answer")
TRAIN, SCORING = 100, 200
SEED = 0


def load(data_dir: Path | None) -> Splits:
    path = task_data.download_file(HUB_DATASET, HUB_REVISION, FILE) if data_dir is None else data_dir / FILE
    if not path.is_file():
        raise UserError(f"There is no {FILE} in {data_dir}.", "--data-dir wants the official file.")
    return split_questions(read_examples(path))


def split_questions(questions: Sequence[Example]) -> Splits:
    """Of a smaller file a third is for training."""
    if len(questions) < 6:
        raise UserError("There are fewer than six questions.")
    dealt = sorted(questions, key=lambda one: hashlib.sha256(f"{SEED}:{one.id}".encode()).hexdigest())
    train = min(TRAIN, len(dealt) // 3)
    scoring = sorted(dealt[train : train + SCORING], key=lambda one: one.id)
    return Splits(tuple(sorted(dealt[:train], key=lambda one: one.id)), *split_halves(scoring, SEED))


def read_examples(path: Path) -> tuple[Example, ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            if not set(COLUMNS) <= set(table.fieldnames or ()):
                raise UserError(f"{path} has not the columns {', '.join(COLUMNS)}.")
            return tuple(_parse_example(number, row, path) for number, row in enumerate(table))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error


def _parse_example(number: int, row: dict[str, str], path: Path) -> Example:
    place = f"{path}, row {number}"
    problem, category, answer, kind = (row.get(name) or "" for name in COLUMNS)
    if not problem.strip() or kind not in TYPES:
        raise UserError(f"{place} has no problem, or another type of answer than {' or '.join(TYPES)}.")
    try:
        right = parse_gold_answer(answer, kind)
    except ValueError as error:
        raise UserError(f"{place} has no answer: {error}.") from error
    return Example(
        f"deepsearchqa-{number:04d}",
        problem,
        write_answer_action(answer, right),
        {"problem_category": category, "answer_type": kind, "gold": answer, "steps": STEPS},
    )


def write_answer_action(answer: str, right: GoldAnswer) -> str:
    """The answer as an action in one line that is marked as right, its items apart where it has several."""
    named = [" ".join(names[0].split()) for names in right.items]
    written = [f"answer[{text}]" for text in ("; ".join(named), ", ".join(named), " ".join(answer.split()))]
    for said in written:
        found = parse_action(said)
        if found and mark_answer(found.text, right).correct:
            return said
    return written[0]


RULE = f"deepsearchqa-2-{MATCHER}"
"""Changes whenever the same actions could score otherwise."""

EVALUATOR = Episodes(
    rule=RULE,
    world=make_graded_environment,
    # A thought may stand on a line of its own before its action, so the end of a line ends nothing.
    telling=EpisodePrompt(chat="", stop=("\nQuestion:", "\n>")).prompted(
        read_prompts(Path(__file__).with_name("prompts.toml"))
    ),
    group="problem_category",
    sampling=Sampling(max_tokens=512),
    slow=True,
    action=normalize_action,
    settle=settle_searches,
)

TASK: Task = Task(
    id="deepsearchqa",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=EVALUATOR,
    world="search",
    desk=frozenset({"search", "judge"}),
)
