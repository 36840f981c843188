"""DeepSearchQA in miniature: a generated library, and questions that take several searches in it.

No entity, page or path of links of one split is in another.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.environments.search.backends import LocalCorpus, SearchDocument, write_corpus
from agent2rl.environments.search.environment import CORPUS_FOLDER, STEPS
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.tasks.deepsearchqa import EVALUATOR
from agent2rl.tasks.deepsearchqa import TASK as DEEPSEARCHQA
from agent2rl.tasks.deepsearchqa.facts import Part, generate_facts
from agent2rl.tasks.deepsearchqa.pages import write_pages
from agent2rl.tasks.deepsearchqa.questions import GeneratedQuestion, generate_questions

# The miniature of a split: its corpus, and questions that the corpus answers. The same each time.

SHOWN, SNIPPET_WORDS = 4, 16
"""A tiny model has a small context."""


@dataclass(frozen=True)
class MiniLibrary:
    split: Part
    search: LocalCorpus
    questions: tuple[GeneratedQuestion, ...]

    @property
    def documents(self) -> tuple[SearchDocument, ...]:
        return self.search.documents

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(
            build_example(question, f"deepsearchqa-mini-{self.split}-{number:04d}", self.split)
            for number, question in enumerate(self.questions)
        )


def build_library(split: Part, count: int) -> MiniLibrary:
    world = generate_facts(split)
    written = write_pages(split, world)
    search = LocalCorpus(written.documents, SHOWN, SNIPPET_WORDS)
    return MiniLibrary(split, search, generate_questions(split, world, written, search, count))


def build_example(question: GeneratedQuestion, name: str, corpus: str, steps: int = STEPS) -> Example:
    """As the world plays it: actions that show the answer are its target."""
    return Example(
        name,
        question.problem,
        "\n".join(question.walkthrough),
        {
            "problem_category": question.category,
            "answer_type": question.answer_type,
            "kind": question.kind,
            "items": [list(names) for names in question.items],
            "documents": list(question.documents),
            "corpus": corpus,
            "steps": steps,
        },
    )


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
