"""The search environment, and a run's training questions as a world with tools.

    search[<query>]    a numbered list of documents, best first
    open[<number>]     opens a found document, by its number in the last list, its id or its title
    answer[<answer>]   ends the episode, and is rewarded

    data/train.jsonl              {"id": …, "question": …, "answer": …, "answer_type": …, "steps": …} per line
    data/corpus/documents.jsonl   {"id": …, "title": …, "text": …} per line; or else
    data/grading-proxy            the directory of the socket through which the harness searches

An action may be a whole reply: `actions` parses it. A failed search costs its step and is counted. Only
documents that a search has found can be opened. An agent has the corpus or nothing: if the harness does the
searching, the agent plays the world at `$ENVIRONMENT_URL`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.core.task import Example, require_evaluator_folder
from agent2rl.environments.examples import (
    is_small_enough_to_replay,
    read_step_limit,
    read_training_examples,
)
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
    NotRecorded,
    ProxyBackend,
    QueryRefused,
    SearchResult,
    is_withheld,
    read_corpus,
)
from agent2rl.net import grading_proxy_client
from agent2rl.net.grading_proxy_client import GradingProxyClient, find_grading_proxy
from agent2rl.net.socket_keys import SOCKET_NAME

STEPS = 6
"""Default step limit of an episode; invalid actions count. An example's `steps` overrides it."""
PAGE_CHARACTERS = 3000
SNIPPET_CHARACTERS = 300
SNIPPETS, SNIPPETS_SHOWN = "snippets", 3
"""The value of an example's `results` under the paper's protocol, and how many snippets a search shows."""
ANSWER_TYPE = "\nAnswer type: "
OVER = "The question is answered."
NO_ACTION = (
    "There is no action in this. Say search[a query], open[a number of the list] or answer[the answer]."
)
NOT_FOUND = "No search has found that. Say open[…] with a number of the last list."

Find = Callable[[Example], Backend]
"""Returns the backend that an example is answered with."""


@dataclass
class SearchEnvironment:
    """Answer questions by searching.

    An episode is won if the answer is fully correct. The reward is 1 for that; with `partial` it is the F1.
    If an example names the documents that contain its answer, each step reports the share of them found.
    """

    find: Find
    partial: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Totals over all episodes: `searches`, of these `failed` and `refused`; pages `opened`, of these
    `unopened` (failed); and answers that were `not_recorded`, and results that were `withheld`."""
    backend: Backend | None = field(default=None, init=False)
    right: GoldAnswer | None = field(default=None, init=False)
    listed: tuple[SearchResult, ...] = field(default=(), init=False)
    """Results of the last search that found something."""
    seen: dict[str, SearchResult] = field(default_factory=dict, init=False)
    """All results so far, by id and by title."""
    answer_documents: frozenset[str] = field(default=frozenset(), init=False)
    """Ids of the documents that contain the answer, if known."""
    marks: AnswerMarks = field(default=NOTHING, init=False)
    steps_taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)
    over: bool = field(default=False, init=False)
    snippets: bool = field(default=False, init=False)
    """Whether a search shows the first snippets alone, as the paper's protocol does."""

    def reset(self, example: Example) -> EnvironmentStep:
        self.snippets = example.meta.get("results") == SNIPPETS
        self.right, self.limit = read_gold_answer(example), read_step_limit(example, STEPS)
        self.backend, self.answer_documents = self.find(example), _read_document_ids(example)
        self.listed, self.seen, self.marks, self.steps_taken, self.over = (), {}, NOTHING, 0, False
        answer_type = f"{ANSWER_TYPE}{example.meta.get('answer_type', SET)}" if self.snippets else ""
        return self._make_step(f"Question: {example.prompt}{answer_type}")

    def step(self, action: str) -> EnvironmentStep:
        if self.backend is None or self.right is None:
            raise RuntimeError("Call reset() before step().")
        if self.over or self.steps_taken >= self.limit:
            return self._make_step(OVER, done=True, cut=not self.over)
        self.steps_taken += 1
        parsed = parse_action(action)
        if parsed and parsed.verb == "answer":
            self.over, self.marks = True, mark_answer(parsed.text, self.right)
            reward = self.marks.f1 if self.partial else float(self.marks.correct)
            return self._make_step(OVER, reward, done=True, invalid=False)
        cut, observation = self.steps_taken >= self.limit, self._run_action(parsed, self.backend)
        return self._make_step(observation, done=cut, cut=cut, invalid=observation in (NO_ACTION, NOT_FOUND))

    def commands(self) -> tuple[str, ...]:
        """Return the open commands for the last list."""
        return tuple(f"open[{number}]" for number, _ in enumerate(self.listed, 1))

    def close(self) -> None:
        self.backend = None

    def _make_step(
        self,
        observation: str,
        reward: float = 0.0,
        done: bool = False,
        cut: bool = False,
        invalid: bool | None = None,
    ) -> EnvironmentStep:
        marks = {"precision": self.marks.precision, "recall": self.marks.recall, "f1": self.marks.f1}
        if self.answer_documents:
            marks["search_recall"] = len(self.answer_documents & self.seen.keys()) / len(
                self.answer_documents
            )
        return EnvironmentStep(
            observation,
            reward,
            done,
            won=bool(reward) and self.marks.correct,
            cut=cut,
            marks=marks,
            invalid=invalid,
        )

    def _run_action(self, action: SearchAction | None, backend: Backend) -> str:
        if action is None or not action.text:
            return NO_ACTION
        if action.verb == "open":
            return self._open_result(action.text, backend)
        return self._run_search(action.text, backend)

    def _run_search(self, query: str, backend: Backend) -> str:
        self.counts["searches"] += 1
        try:
            results = backend.search(query)
        except ExternalServiceError as error:
            return self._record_failure(
                "search", "refused" if isinstance(error, QueryRefused) else "failed", error
            )
        shown = tuple(result for result in results if not is_withheld(result))
        self.counts["withheld"] += len(results) - len(shown)
        if not shown:
            return "No results found." if self.snippets else "Nothing was found."
        self.listed = shown
        # Backwards: if several results have one title, it opens the best of them.
        for result in reversed(shown):
            self.seen |= {result.title.casefold(): result, result.id: result}
        if self.snippets:
            return " | ".join(_format_snippet(result) for result in shown[:SNIPPETS_SHOWN])
        return "\n".join(_format_row(number, result) for number, result in enumerate(shown, 1))

    def _open_result(self, which: str, backend: Backend) -> str:
        result = _pick_result(which, self.listed) or self.seen.get(which) or self.seen.get(which.casefold())
        if result is None:
            return NOT_FOUND
        self.counts["opened"] += 1
        try:
            text = backend.open(result.id)
        except ExternalServiceError as error:
            return self._record_failure("open", "unopened", error)
        return f"{result.title}\n{text[:PAGE_CHARACTERS]}"

    def _record_failure(self, verb: str, count: str, error: ExternalServiceError) -> str:
        self.counts[count] += 1
        self.counts["not_recorded"] += isinstance(error, NotRecorded)
        return f"The {verb} failed: {error.message[:SNIPPET_CHARACTERS]}"


def _pick_result(which: str, listed: Sequence[SearchResult]) -> SearchResult | None:
    number = which.strip("#[]. ")
    if not (number.isascii() and number.isdigit()) or len(number) > 3:
        return None
    return listed[int(number) - 1] if 1 <= int(number) <= len(listed) else None


def _format_row(number: int, result: SearchResult) -> str:
    return f"{number}. {_collapse_whitespace(result.title)}: {_format_snippet(result)}"


def _format_snippet(result: SearchResult) -> str:
    return _collapse_whitespace(result.snippet)[:SNIPPET_CHARACTERS]


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def read_gold_answer(example: Example) -> GoldAnswer:
    """Read the gold answer from `items`, each a list of names, or else from the official answer and type."""
    items = example.meta.get("items")
    try:
        if isinstance(items, list):
            return GoldAnswer(tuple(_require_names(names) for names in items))
        text = str(example.meta.get("gold", example.target))
        return parse_gold_answer(text, str(example.meta.get("answer_type", SET)))
    except ValueError as error:
        raise UserError(f"Example {example.id!r} has no answer: {error}.") from error


def _require_names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"an item must be a list of its names, not {names!r}")
    return tuple(names)


def _read_document_ids(example: Example) -> frozenset[str]:
    ids = example.meta.get("documents", [])
    return frozenset(map(str, ids)) if isinstance(ids, list) else frozenset()


# The actions as functions, for models that call tools. The model reads these docstrings.


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


# A run's training questions as a world: `train.jsonl`, and something to search

CORPUS_FOLDER = "corpus"


def open_world(data: Path) -> World:
    games = read_training_examples(data / "train.jsonl")
    find = _make_backend_finder(data)
    walkthroughs = {game.prompt: game.target for game in games if "corpus" in game.meta and game.target}
    return World(
        games,
        environment=lambda: SearchEnvironment(find),
        expert=(lambda: AnswerKeyExpert(walkthroughs)) if walkthroughs else None,
        tools=TOOLS,
        slow=not (data / CORPUS_FOLDER).is_dir(),
        replayable=is_small_enough_to_replay(data / CORPUS_FOLDER),
    )


def _make_backend_finder(data: Path) -> Find:
    backend: Backend
    if (data / CORPUS_FOLDER).is_dir():
        backend = read_corpus(data / CORPUS_FOLDER)
    elif (data / grading_proxy_client.MOUNT_NAME).is_dir():
        backend = ProxyBackend(GradingProxyClient(data / grading_proxy_client.MOUNT_NAME / SOCKET_NAME))
    else:
        return _refuse_search
    return lambda _: backend


def _refuse_search(_: Example) -> Backend:
    raise UserError(
        "This task has no local corpus. The harness runs its searches.",
        "Play the world at $ENVIRONMENT_URL.",
    )


def make_graded_environment() -> SearchEnvironment:
    """Build the environment for grading: an example names its corpus, or the harness does the searching."""
    return SearchEnvironment(_find_graded_backend)


def _find_graded_backend(example: Example) -> Backend:
    if corpus_name := example.meta.get("corpus"):
        return read_corpus(require_evaluator_folder(str(corpus_name)))
    proxy = find_grading_proxy()
    return ProxyBackend(proxy) if proxy else MissingBackend()


class MissingBackend:
    """Fail every search: `--search` was not given."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        raise ExternalServiceError(f"There is nothing to search for {query[:100]!r}: --search names what.")

    def open(self, id: str) -> str:  # noqa: A002
        raise ExternalServiceError(f"There is no {id[:100]!r}: --search names what is searched.")


class AnswerKeyExpert:
    """Replay the walkthrough of the training data, action by action."""

    def __init__(self, walkthroughs: Mapping[str, str]) -> None:
        self._walkthroughs = walkthroughs
        self._left: list[str] = []

    def act(self, observation: str) -> str:
        question = observation.removeprefix("Question: ").partition(ANSWER_TYPE)[0]
        if question in self._walkthroughs:
            self._left = self._walkthroughs[question].split("\n")
        return self._left.pop(0) if self._left else "answer[nothing]"
