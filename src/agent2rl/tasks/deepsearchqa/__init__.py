"""DeepSearchQA: questions that take several searches, many of them with a set of items as answer.

The official questions, from the hub or a directory; `--search` chooses what is searched. The prompt of a
model with a chat template lists the actions; a model without one gets two example episodes of our own.

The CSV file has 900 rows. The split has the paper's sizes and is fixed by hashes: 100 questions for
training, 200 for scoring (half feedback, half held out), the rest unused.
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
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.search_grading import settle_searches
from agent2rl.evaluators.task_data import read_prompts, split_halves
from agent2rl.tasks.deepsearchqa.paper import build_profile

# Loading the official questions as examples, from the hub or a directory

HUB_DATASET = "google/deepsearchqa"
HUB_REVISION = "b2623f8653065c2672de6d941fc5434cd652376c"
FILE = "DSQA-full.csv"
COLUMNS = ("problem", "problem_category", "answer", "answer_type")
TYPES = (SET, "Single Answer")
TRAIN, SCORING = 100, 200
SEED = 0


def load(data_dir: Path | None) -> Splits:
    return split_questions(load_questions(data_dir))


def load_questions(data_dir: Path | None) -> tuple[Example, ...]:
    """Load all questions in the order of the file."""
    path = task_data.download_file(HUB_DATASET, HUB_REVISION, FILE) if data_dir is None else data_dir / FILE
    if not path.is_file():
        raise UserError(f"There is no {FILE} in {data_dir}.", "--data-dir must have the official file.")
    return read_examples(path)


def split_questions(questions: Sequence[Example]) -> Splits:
    """Split the questions by hash. Of a smaller file, a third is for training."""
    if len(questions) < 6:
        raise UserError("There are fewer than six questions.")
    shuffled = sorted(
        questions, key=lambda example: hashlib.sha256(f"{SEED}:{example.id}".encode()).hexdigest()
    )
    count = min(TRAIN, len(shuffled) // 3)
    train = sorted(shuffled[:count], key=lambda example: example.id)
    scoring = sorted(shuffled[count : count + SCORING], key=lambda example: example.id)
    return Splits(tuple(train), *split_halves(scoring, SEED))


def read_examples(path: Path) -> tuple[Example, ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            if not set(COLUMNS) <= set(table.fieldnames or ()):
                raise UserError(f"{path} does not have the columns {', '.join(COLUMNS)}.")
            return tuple(_parse_example(number, row, path) for number, row in enumerate(table))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error


def _parse_example(number: int, row: dict[str, str], path: Path) -> Example:
    source = f"{path}, row {number}"
    problem, category, answer, kind = (row.get(name) or "" for name in COLUMNS)
    if not problem.strip() or kind not in TYPES:
        raise UserError(f"{source} has no problem, or another type of answer than {' or '.join(TYPES)}.")
    try:
        right = parse_gold_answer(answer, kind)
    except ValueError as error:
        raise UserError(f"{source} has no answer: {error}.") from error
    return Example(
        f"deepsearchqa-{number:04d}",
        problem,
        write_answer_action(answer, right),
        {"problem_category": category, "answer_type": kind, "gold": answer, "steps": STEPS},
    )


def write_answer_action(answer: str, right: GoldAnswer) -> str:
    """Write the answer as a one-line action that is marked correct, with several items separated."""
    items = [" ".join(names[0].split()) for names in right.items]
    actions = [f"answer[{text}]" for text in ("; ".join(items), ", ".join(items), " ".join(answer.split()))]
    for action in actions:
        parsed = parse_action(action)
        if parsed and mark_answer(parsed.text, right).correct:
            return action
    return actions[0]


RULE = f"deepsearchqa-2-{MATCHER}"
"""Must change whenever the same actions could get another score."""

EVALUATOR = Episodes(
    rule=RULE,
    world=make_graded_environment,
    # A thought may be on its own line before its action, so a line break is no stop sequence.
    prompt=EpisodePrompt(chat="", stop=("\nQuestion:", "\n>")).with_prompts(
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
    proxy_services=frozenset({"search", "judge"}),
    paper=build_profile(load_questions),
)
