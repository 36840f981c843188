"""The questions of a run as a world: `train.jsonl` asks them, and something is there to be searched.

data/train.jsonl                 {"id": …, "question": …, "answer": …, "answer_type": …, "steps": …} a line
data/corpus/documents.jsonl      {"id": …, "title": …, "text": …} a line; or else
data/desk                        the directory of a socket where the harness searches

An agent has the corpus or nothing: where the harness searches, it is played at `$ENVIRONMENT_URL`.
"""

from collections.abc import Mapping
from pathlib import Path

from agent2rl.core import desk as desks
from agent2rl.core.beside import beside
from agent2rl.core.desk import Desk, desk
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.task import Example
from agent2rl.environments.examples import training
from agent2rl.environments.search.backend import Backend, Elsewhere, Result
from agent2rl.environments.search.local import read_corpus
from agent2rl.environments.search.research import Find, Research
from agent2rl.environments.search.tools import TOOLS

FOLDER = "corpus"


def open_world(data: Path) -> World:
    games = training(data / "train.jsonl")
    find = _find(data)
    walks = {game.prompt: game.target for game in games if "corpus" in game.meta and game.target}
    return World(
        games,
        environment=lambda: Research(find),
        expert=(lambda: Reciter(walks)) if walks else None,
        tools=TOOLS,
        slow=not (data / FOLDER).is_dir(),
    )


def _find(data: Path) -> Find:
    backend: Backend
    if (data / FOLDER).is_dir():
        backend = read_corpus(data / FOLDER)
    elif (data / desks.PLACE).is_dir():
        backend = Elsewhere(Desk(data / desks.PLACE / desks.SOCKET))
    else:
        return _nothing
    return lambda _: backend


def _nothing(_: Example) -> Backend:
    raise UserError(
        "There is nothing to search here: the searches of this task are the harness's.",
        "Play it at $ENVIRONMENT_URL.",
    )


def graded() -> Research:
    """As it is graded: an example brings the name of its corpus, or is searched for by the harness."""
    return Research(_beside)


def _beside(example: Example) -> Backend:
    if named := example.meta.get("corpus"):
        return read_corpus(beside(str(named)))
    found = desk()
    return Elsewhere(found) if found else Nothing()


class Nothing:
    """What is searched where nobody has said what."""

    def search(self, query: str) -> tuple[Result, ...]:
        raise WorldError(f"There is nothing to search for {query[:100]!r}: --search names what.")

    def open(self, id: str) -> str:  # noqa: A002
        raise WorldError(f"There is no {id[:100]!r}: --search names what is searched.")


class Reciter:
    """Shows the actions that the training data tells, one after another."""

    def __init__(self, walks: Mapping[str, str]) -> None:
        self._walks = walks
        self._left: list[str] = []

    def act(self, observation: str) -> str:
        asked = observation.removeprefix("Question: ")
        if asked in self._walks:
            self._left = self._walks[asked].split("\n")
        return self._left.pop(0) if self._left else "answer[nothing]"
