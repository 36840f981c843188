"""Questions as an environment: search, open what was found, answer; at most so many steps.

    search[<query>]    a numbered list of documents, best first
    open[<number>]     one of those that were found, by its number in the last list, its id or its title
    answer[<answer>]   ends the episode, and is rewarded

A step's action may be a whole reply, thoughts and all: `actions` finds it. A search that fails is seen as
such, costs its step and is counted. Only what a search has found can be opened, and what names the benchmark
itself is as if it were not found.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.task import Example
from agent2rl.environments.examples import read_step_limit
from agent2rl.environments.search.actions import SearchAction, parse_action
from agent2rl.environments.search.answer_matching import (
    NOTHING,
    SET,
    AnswerMarks,
    GoldAnswer,
    mark_answer,
    parse_gold_answer,
)
from agent2rl.environments.search.backend import Backend, NotRecorded, QueryRefused, SearchResult
from agent2rl.environments.search.benchmark_filter import is_withheld

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
