"""DeepSearchQA in miniature: a generated library, and questions that take several searches in it.

The splits share no entities, pages or paths of links.
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
from agent2rl.tasks.deepsearchqa.paper import build_profile
from agent2rl.tasks.deepsearchqa.questions import GeneratedQuestion, generate_questions

# The corpus of a split, and questions that it answers; deterministic

SHOWN, SNIPPET_WORDS = 4, 16
"""Small, because a tiny model has a small context."""


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
    pages = write_pages(split, world)
    search = LocalCorpus(pages.documents, SHOWN, SNIPPET_WORDS)
    return MiniLibrary(split, search, generate_questions(split, world, pages, search, count))


def build_example(question: GeneratedQuestion, name: str, corpus: str, steps: int = STEPS) -> Example:
    """Turn a question into an example; actions that find the answer are its target."""
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


COUNTS: dict[Part, int] = {"train": 300, "feedback": 400, "heldout": 400}
DEMONSTRATIONS = 96
"""The expert help of a run unless the user chooses another level."""
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
        evaluator_folders={part: _make_corpus_writer(part) for part in COUNTS},
    )


def _make_corpus_writer(part: Part) -> DataFolder:
    return lambda folder: write_corpus(folder, load_library(part).search)


def withhold_walkthroughs(splits: Splits) -> Splits:
    """Remove the actions that find the answers from the training questions."""
    return replace(splits, train=tuple(replace(example, target="") for example in splits.train))


TASK: Task = replace(
    DEEPSEARCHQA,
    id="deepsearchqa-mini",
    description=DEEPSEARCHQA.description
    + """
## The miniature

The pages are generated. `data/corpus/documents.jsonl` has the pages of the training questions. A search
finds at most four pages. The questions that are used for scoring ask about other things, on other pages, with
other links between the pages.

In `train.jsonl`, `answer` has actions that find the answer, one per line. It is empty unless the run has the
full expert. `items` has the correct items, each with all its names, in place of `gold`. `documents` names the
pages that contain the answer.
""",
    load=load,
    evaluator=replace(
        EVALUATOR.prompted(PROMPTS), group="kind", sampling=Sampling(max_tokens=96), slow=False
    ),
    proxy_services=frozenset({"judge"}),
    withhold=withhold_walkthroughs,
    default_expert=DEMONSTRATIONS,
    paper=build_profile(None),
)
