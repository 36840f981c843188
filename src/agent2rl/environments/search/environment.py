"""Search questions as an environment, and a run's training questions as a world with tools.

    search[<query>]    a numbered list of documents, best first
    open[<number>]     one of those that were found, by its number in the last list, its id or its title
    answer[<answer>]   ends the episode, and is rewarded

    data/train.jsonl              {"id": …, "question": …, "answer": …, "answer_type": …, "steps": …} a line
    data/corpus/documents.jsonl   {"id": …, "title": …, "text": …} a line; or else
    data/desk                     the directory of a socket where the harness searches

An action may be a whole reply: `actions` finds it. A failed search costs its step and is counted. Only what
a search has found can be opened. An agent has the corpus or nothing: where the harness searches, the world
is played at `$ENVIRONMENT_URL`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.task import Example, require_evaluator_folder
from agent2rl.environments.examples import read_step_limit, read_training_examples
from agent2rl.environments.search.actions import SearchAction, parse_action
from agent2rl.environments.search.answer_matching import (
    NOTHING,
    SET,
    AnswerMarks,
    GoldAnswer,
    mark_answer,
    parse_gold_answer,
)
from agent2rl.environments.search.backends import (
    Backend,
    DeskBackend,
    NotRecorded,
    QueryRefused,
    SearchResult,
    is_withheld,
    read_corpus,
)
from agent2rl.net import grading_proxy_client
from agent2rl.net.grading_proxy_client import GradingProxyClient, find_grading_proxy

STEPS = 6
"""In an episode, nonsense included, unless an example's `read_step_limit` says otherwise."""
PAGE_CHARACTERS = 3000
SNIPPET_CHARACTERS = 300
OVER = "The question is answered."
NO_ACTION = (
    "There is no action in this. Say search[a query], open[a number of the list] or answer[the answer]."
)
NOT_FOUND = "No search has found that. Say open[…] with a number of the last list."

Find = Callable[[Example], Backend]
"""What is searched to answer an example."""


@dataclass
class SearchEnvironment:
    """Won where the answer is fully correct. The reward is 1 for that; F1 where a part is worth something.

    Where an example names the documents that tell its answer, each step says how many of them were found.
    """

    find: Find
    partial: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Over all episodes: `searches`, `failed` and `refused` ones, pages `opened`, `unopened` ones, and what
    was `not_recorded` or `is_withheld`."""
    backend: Backend | None = field(default=None, init=False)
    right: GoldAnswer | None = field(default=None, init=False)
    listed: tuple[SearchResult, ...] = field(default=(), init=False)
    """By the last search that found something."""
    seen: dict[str, SearchResult] = field(default_factory=dict, init=False)
    """All that searches have found, by id and by title."""
    wanted: frozenset[str] = field(default=frozenset(), init=False)
    """The ids of the documents that tell the answer, where they are known."""
    marks: AnswerMarks = field(default=NOTHING, init=False)
    taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)
    over: bool = field(default=False, init=False)

    def reset(self, example: Example) -> EnvironmentStep:
        self.right, self.limit = read_gold_answer(example), read_step_limit(example, STEPS)
        self.backend, self.wanted = self.find(example), _read_document_ids(example)
        self.listed, self.seen, self.marks, self.taken, self.over = (), {}, NOTHING, 0, False
        return self._make_step(f"Question: {example.prompt}")

    def step(self, action: str) -> EnvironmentStep:
        if self.backend is None or self.right is None:
            raise RuntimeError("An episode is begun with reset() before it can go on.")
        if self.over or self.taken >= self.limit:
            return self._make_step(OVER, done=True, cut=not self.over)
        self.taken += 1
        said = parse_action(action)
        if said and said.verb == "answer":
            self.over, self.marks = True, mark_answer(said.text, self.right)
            reward = self.marks.f1 if self.partial else float(self.marks.correct)
            return self._make_step(OVER, reward, done=True)
        out = self.taken >= self.limit
        return self._make_step(self._run_action(said, self.backend), done=out, cut=out)

    def commands(self) -> tuple[str, ...]:
        """What can be opened, by the numbers of the last list."""
        return tuple(f"open[{number}]" for number, _ in enumerate(self.listed, 1))

    def close(self) -> None:
        self.backend = None

    def _make_step(
        self, told: str, reward: float = 0.0, done: bool = False, cut: bool = False
    ) -> EnvironmentStep:
        marks = {"precision": self.marks.precision, "recall": self.marks.recall, "f1": self.marks.f1}
        if self.wanted:
            marks["search_recall"] = len(self.wanted & self.seen.keys()) / len(self.wanted)
        return EnvironmentStep(
            told, reward, done, won=bool(reward) and self.marks.correct, cut=cut, marks=marks
        )

    def _run_action(self, said: SearchAction | None, backend: Backend) -> str:
        if said is None or not said.text:
            return NO_ACTION
        if said.verb == "open":
            return self._open_result(said.text, backend)
        return self._run_search(said.text, backend)

    def _run_search(self, query: str, backend: Backend) -> str:
        self.counts["searches"] += 1
        try:
            every = backend.search(query)
        except WorldError as error:
            return self._record_failure(
                "search", "refused" if isinstance(error, QueryRefused) else "failed", error
            )
        found = tuple(result for result in every if not is_withheld(result))
        self.counts["withheld"] += len(every) - len(found)
        if not found:
            return "Nothing was found."
        self.listed = found
        for result in reversed(found):
            self.seen |= {result.title.casefold(): result, result.id: result}
        return "\n".join(_format_row(number, result) for number, result in enumerate(found, 1))

    def _open_result(self, which: str, backend: Backend) -> str:
        result = _pick_result(which, self.listed) or self.seen.get(which) or self.seen.get(which.casefold())
        if result is None:
            return NOT_FOUND
        self.counts["opened"] += 1
        try:
            text = backend.open(result.id)
        except WorldError as error:
            return self._record_failure("open", "unopened", error)
        return f"{result.title}\n{text[:PAGE_CHARACTERS]}"

    def _record_failure(self, verb: str, counted: str, error: WorldError) -> str:
        self.counts[counted] += 1
        self.counts["not_recorded"] += isinstance(error, NotRecorded)
        return f"The {verb} failed: {error.message[:SNIPPET_CHARACTERS]}"


def _pick_result(which: str, listed: Sequence[SearchResult]) -> SearchResult | None:
    number = which.strip("#[]. ")
    if not (number.isascii() and number.isdigit()) or len(number) > 3:
        return None
    return listed[int(number) - 1] if 1 <= int(number) <= len(listed) else None


def _format_row(number: int, result: SearchResult) -> str:
    title, snippet = _collapse_whitespace(result.title), _collapse_whitespace(result.snippet)
    return f"{number}. {title}: {snippet[:SNIPPET_CHARACTERS]}"


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def read_gold_answer(example: Example) -> GoldAnswer:
    """From its `items`, each a list of names, or else from the official record's answer and type."""
    items = example.meta.get("items")
    try:
        if isinstance(items, list):
            return GoldAnswer(tuple(_require_names(names) for names in items))
        told = str(example.meta.get("gold", example.target))
        return parse_gold_answer(told, str(example.meta.get("answer_type", SET)))
    except ValueError as error:
        raise UserError(f"The example {example.id!r} has no answer: {error}.") from error


def _require_names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"an item is a list of its names, not {names!r}")
    return tuple(names)


def _read_document_ids(example: Example) -> frozenset[str]:
    named = example.meta.get("documents", [])
    return frozenset(map(str, named)) if isinstance(named, list) else frozenset()


# The actions of a search as functions, for models that call tools. A model reads their docstrings.


def search(query: str) -> str:
    """Search for documents. Gives a numbered list of titles, each with the beginning of its text.

    Args:
        query: What to search for, in a few words.
    """
    return f"search[{query}]"


def open_document(which: str) -> str:
    """Read a document that a search has found.

    Args:
        which: Its number in the last list, or its title.
    """
    return f"open[{which}]"


def answer(text: str) -> str:
    """Answer the question. This ends it.

    Args:
        text: The answer alone; several items with semicolons between them.
    """
    return f"answer[{text}]"


TOOLS = (search, open_document, answer)


# The questions of a run as a world: `train.jsonl` asks them, and something is there to be searched.

CORPUS_FOLDER = "corpus"


def open_world(data: Path) -> World:
    games = read_training_examples(data / "train.jsonl")
    find = _make_backend_finder(data)
    walks = {game.prompt: game.target for game in games if "corpus" in game.meta and game.target}
    return World(
        games,
        environment=lambda: SearchEnvironment(find),
        expert=(lambda: RecitingExpert(walks)) if walks else None,
        tools=TOOLS,
        slow=not (data / CORPUS_FOLDER).is_dir(),
    )


def _make_backend_finder(data: Path) -> Find:
    backend: Backend
    if (data / CORPUS_FOLDER).is_dir():
        backend = read_corpus(data / CORPUS_FOLDER)
    elif (data / grading_proxy_client.MOUNT_NAME).is_dir():
        backend = DeskBackend(
            GradingProxyClient(data / grading_proxy_client.MOUNT_NAME / grading_proxy_client.SOCKET)
        )
    else:
        return _refuse_search
    return lambda _: backend


def _refuse_search(_: Example) -> Backend:
    raise UserError(
        "There is nothing to search here: the searches of this task are the harness's.",
        "Play it at $ENVIRONMENT_URL.",
    )


def make_graded_environment() -> SearchEnvironment:
    """As it is graded: an example brings the name of its corpus, or is searched for by the harness."""
    return SearchEnvironment(_find_graded_backend)


def _find_graded_backend(example: Example) -> Backend:
    if named := example.meta.get("corpus"):
        return read_corpus(require_evaluator_folder(str(named)))
    found = find_grading_proxy()
    return DeskBackend(found) if found else MissingBackend()


class MissingBackend:
    """What is searched where nobody has said what."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        raise WorldError(f"There is nothing to search for {query[:100]!r}: --search names what.")

    def open(self, id: str) -> str:  # noqa: A002
        raise WorldError(f"There is no {id[:100]!r}: --search names what is searched.")


class RecitingExpert:
    """Shows the actions that the training data tells, one after another."""

    def __init__(self, walks: Mapping[str, str]) -> None:
        self._walks = walks
        self._left: list[str] = []

    def act(self, observation: str) -> str:
        asked = observation.removeprefix("Question: ")
        if asked in self._walks:
            self._left = self._walks[asked].split("\n")
        return self._left.pop(0) if self._left else "answer[nothing]"
