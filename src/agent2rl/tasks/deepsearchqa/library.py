"""The miniature of a split: its corpus, and questions that the corpus answers. The same each time.

    shelf = library("train", 300)
    shelf.documents, shelf.examples

No thing, no page and no way of links of one split is in another.
"""

from dataclasses import dataclass

from agent2rl.core.task import Example
from agent2rl.environments.search.backend import SearchDocument
from agent2rl.environments.search.environment import STEPS
from agent2rl.environments.search.local import LocalCorpus
from agent2rl.tasks.deepsearchqa.facts import generate_facts
from agent2rl.tasks.deepsearchqa.names import Part
from agent2rl.tasks.deepsearchqa.pages import write_pages
from agent2rl.tasks.deepsearchqa.questions import GeneratedQuestion, generate_questions

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
