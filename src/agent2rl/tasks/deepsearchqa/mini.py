"""DeepSearchQA in miniature: questions that take several searches in a generated library."""

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
from agent2rl.tasks.deepsearchqa.library import (
    GeneratedQuestion,
    Part,
    generate_facts,
    generate_questions,
)
from agent2rl.tasks.deepsearchqa.paper import build_profile


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
    facts = generate_facts(split)
    return MiniLibrary(split, facts.search, generate_questions(split, facts, count))


def build_example(question: GeneratedQuestion, name: str, corpus: str, steps: int = STEPS) -> Example:
    """Turn a question into an example; actions that find the answer are its target."""
    return Example(
        name,
        question.problem,
        "\n".join(question.walkthrough),
        {
            "problem_category": question.path[-1],
            "answer_type": question.answer_type,
            "kind": question.kind,
            "items": [[name] for name in question.items],
            "documents": list(question.documents),
            "corpus": corpus,
            "steps": steps,
        },
    )


COUNTS: dict[Part, int] = {"train": 600, "feedback": 400, "heldout": 400}
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

The library is generated: places, with links to other places, and cats. `data/corpus/documents.jsonl` has
the pages of the training questions. Each page tells one link of one place. A search shows at most three
pages, and of each one name; `open[…]` shows all cats of a place. The questions that are used for scoring ask
about other places, on other pages, along other paths of links.

In `train.jsonl`, `answer` has actions that find the answer, one per line. It is empty unless the run has the
full expert. `items` has the correct items in place of `gold`. `documents` names the pages that lead to the
answer. `kind` is `two` or `three`, for the links to a place, or `set`, for the cats of a place.
""",
    load=load,
    evaluator=replace(
        EVALUATOR.with_prompts(PROMPTS), group="kind", sampling=Sampling(max_tokens=96), slow=False
    ),
    proxy_services=frozenset({"judge"}),
    withhold=withhold_walkthroughs,
    default_expert=DEMONSTRATIONS,
    paper=build_profile(None),
)
