"""The questions of a run as a world: `train.jsonl` asks them, and something is there to be searched.

data/train.jsonl                 {"id": …, "question": …, "answer": …, "answer_type": …, "steps": …} a line
data/corpus/documents.jsonl      {"id": …, "title": …, "text": …} a line; or else
data/desk                        the directory of a socket where the harness searches

An agent has the corpus or nothing: where the harness searches, it is played at `$ENVIRONMENT_URL`.
"""

from collections.abc import Mapping
from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.evaluator_folders import require_evaluator_folder
from agent2rl.core.task import Example
from agent2rl.environments.examples import read_training_examples
from agent2rl.environments.search.backend import Backend, DeskBackend, SearchResult
from agent2rl.environments.search.environment import Find, SearchEnvironment
from agent2rl.environments.search.local import read_corpus
from agent2rl.environments.search.tools import TOOLS
from agent2rl.net import grading_proxy_client as desks
from agent2rl.net.grading_proxy_client import GradingProxyClient, find_grading_proxy

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
    elif (data / desks.MOUNT_NAME).is_dir():
        backend = DeskBackend(GradingProxyClient(data / desks.MOUNT_NAME / desks.SOCKET))
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
