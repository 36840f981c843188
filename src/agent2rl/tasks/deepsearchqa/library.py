"""The miniature of a split: its corpus, and questions that the corpus answers. The same each time.

    shelf = library("train", 300)
    shelf.documents, shelf.examples

No thing, no page and no way of links of one split is in another.
"""

from dataclasses import dataclass

from agent2rl.core.task import Example
from agent2rl.environments.search.backend import Document
from agent2rl.environments.search.local import Local
from agent2rl.environments.search.research import STEPS
from agent2rl.tasks.deepsearchqa.facts import facts
from agent2rl.tasks.deepsearchqa.names import Part
from agent2rl.tasks.deepsearchqa.pages import pages
from agent2rl.tasks.deepsearchqa.questions import Question, questions

SHOWN, SNIPPET_WORDS = 4, 16
"""A tiny model has a small context."""


@dataclass(frozen=True)
class Library:
    split: Part
    search: Local
    questions: tuple[Question, ...]

    @property
    def documents(self) -> tuple[Document, ...]:
        return self.search.documents

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(
            example(question, f"deepsearchqa-mini-{self.split}-{number:04d}", self.split)
            for number, question in enumerate(self.questions)
        )


def library(split: Part, count: int) -> Library:
    world = facts(split)
    written = pages(split, world)
    search = Local(written.documents, SHOWN, SNIPPET_WORDS)
    return Library(split, search, questions(split, world, written, search, count))


def example(question: Question, name: str, corpus: str, steps: int = STEPS) -> Example:
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
