"""DeepSearchQA in miniature: a generated library, and questions that take several searches in it."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import DataFolder, Splits, Task
from agent2rl.environments.search.local import write_corpus
from agent2rl.environments.search.world import CORPUS_FOLDER
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.tasks.deepsearchqa import EVALUATOR
from agent2rl.tasks.deepsearchqa import TASK as DEEPSEARCHQA
from agent2rl.tasks.deepsearchqa.library import MiniLibrary, build_library
from agent2rl.tasks.deepsearchqa.names import Part

COUNTS: dict[Part, int] = {"train": 300, "feedback": 100, "heldout": 100}
PROMPTS = read_prompts(Path(__file__).with_name("mini_prompts.toml"))


@cache
def load_library(part: Part) -> MiniLibrary:
    return build_library(part, COUNTS[part])


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("deepsearchqa-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=load_library("train").examples,
        feedback=load_library("feedback").examples,
        heldout=load_library("heldout").examples,
        folders={CORPUS_FOLDER: _make_corpus_writer("train")},
        beside={part: _make_corpus_writer(part) for part in COUNTS},
    )


def _make_corpus_writer(part: Part) -> DataFolder:
    return lambda place: write_corpus(place, load_library(part).search)


def withhold_walkthroughs(splits: Splits) -> Splits:
    """The training questions without the actions that lead to their answers."""
    return replace(splits, train=tuple(replace(one, target="") for one in splits.train))


TASK: Task = replace(
    DEEPSEARCHQA,
    id="deepsearchqa-mini",
    description=DEEPSEARCHQA.description
    + """
## The miniature

The pages are generated: `data/corpus/documents.jsonl` has those of the training questions, and a search finds
at most four of them. The questions that score you ask about other things, on other pages, and follow other
ways from page to page. In `train.jsonl`, `answer` has actions that lead to the answer, one a line (none in a
run without expert), `items` what is right, each item under all its names, `documents` the pages that tell it.
""",
    load=load,
    evaluator=replace(
        EVALUATOR.prompted(PROMPTS), group="kind", sampling=Sampling(max_tokens=96), slow=False
    ),
    desk=frozenset({"judge"}),
    withhold=withhold_walkthroughs,
)
