"""Episodes being played: many at once, one batch for each turn.

Every episode that is alive has its turn in every batch; one that ends makes room for the next that waits. A
conversation is kept by the engine where it can (`core.engine.conversations`), so that a turn reads only what
is new. An episode's answers depend on the model, the example and the seed, and not on its company.

An episode ends when the world says so, when its steps are used up, or when the conversation has outgrown the
model's context: then it is over with what it has.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from agent2rl.core.engine import Chat, Completion, Conversations, Given, Sampling
from agent2rl.core.environment import Environment, Step
from agent2rl.core.errors import GradingError
from agent2rl.core.records import Attempt, Turn
from agent2rl.core.task import Example
from agent2rl.evaluators.progress import Progress
from agent2rl.evaluators.telling import Telling, spoken

T = TypeVar("T")

THREADS = 32
"""Steps of a slow world that are taken at once."""
FULL = "the conversation outgrew the model's context"
SILENT = "there are no more actions"


class Episode:
    """One example, being played in a world of its own."""

    def __init__(self, example: Example, number: int = 0, kind: str = "") -> None:
        self.example, self.number, self.kind = example, number, kind
        self.name = f"{example.id}#{number}"
        self.turns: list[Turn] = []
        self.reward = 0.0
        self.marks: Mapping[str, float] = {}
        self.note = ""
        self.over = False

    def saw(self, action: str, step: Step) -> None:
        self.turns.append(Turn(action=action, observation=step.observation))
        self.reward = max(self.reward, step.reward)
        self.marks = step.marks
        self.over = step.done

    def attempt(self, success: float | None = None) -> Attempt:
        score = self.reward if success is None else float(self.reward >= success)
        return Attempt(output=self.turns[-1].action, score=score, note=self.note)


@dataclass
class Table:
    """Where the model sits: it is told what each episode sees, and says what it does."""

    talk: Conversations
    telling: Telling
    as_chat: bool
    sampling: Sampling
    action: Callable[[str], str] = spoken

    def turn(self, playing: Sequence[Episode]) -> dict[Episode, Completion]:
        told = {episode.name: self._told(episode) for episode in playing}
        replies = self.talk.extend(told, self.sampling)
        return {episode: replies[episode.name] for episode in playing}

    def _told(self, episode: Episode) -> Chat:
        seen = episode.turns[-1].observation
        if len(episode.turns) == 1:
            return self.telling.first(seen, self.as_chat, episode.kind)
        return self.telling.then(seen, self.as_chat)


def play(
    episodes: Sequence[Episode],
    world: Callable[[], Environment],
    table: Table,
    live: int,
    slow: bool = False,
) -> tuple[Environment, ...]:
    """All episodes to their ends, and where they were played.

    Where the world is slow, others are asked while some wait for it.
    """
    waiting, free = deque(episodes), [world() for _ in range(min(live, len(episodes)))]
    places = tuple(free)
    tell = Progress(len(episodes), "episodes played")
    acting: dict[Future[Step], tuple[Episode, Environment, str]] = {}
    with ThreadPoolExecutor(THREADS) if slow else _Here() as hands:
        while waiting or acting:
            while waiting and free:
                episode, place = waiting.popleft(), free.pop()
                acting[hands.submit(place.reset, episode.example)] = (episode, place, "")
            seeing: dict[Episode, Environment] = {}
            for ended in sorted(wait(acting, return_when=FIRST_COMPLETED).done, key=list(acting).index):
                episode, place, action = acting.pop(ended)
                episode.saw(action, ended.result())
                seeing[episode] = place
            going = [episode for episode in seeing if not episode.over]
            for episode, reply in table.turn(going).items() if going else ():
                if reply.full:
                    episode.note, episode.over = reply.text or FULL, True
                else:
                    action = table.action(reply.text)
                    acting[hands.submit(seeing[episode].step, action)] = (episode, seeing[episode], action)
            over = [episode for episode in seeing if episode.over]
            free += [seeing[episode] for episode in over]
            table.talk.drop([episode.name for episode in over])
            tell(len(episodes) - len(waiting) - len(acting))
    for place in places:
        place.close()
    return places


class _Here(Executor):
    """Does what it is given at once, in this thread."""

    def submit(self, call: Callable[..., T], /, *given: object, **named: object) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(call(*given, **named))
        return done


class Recited:
    """Given outputs as conversations: an episode's is its actions, one a line."""

    def __init__(self, engine: Given) -> None:
        self._engine = engine
        self._left: dict[str, deque[str]] = {}

    def extend(self, turns: Mapping[str, Chat], _: Sampling) -> dict[str, Completion]:
        return {name: self._next(name) for name in turns}

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._left.pop(name, None)

    def _next(self, name: str) -> Completion:
        if name not in self._left:
            example, _, number = name.rpartition("#")
            given = self._engine.given(example)
            if int(number) >= len(given):
                raise GradingError(f"There is no given output {number} for {example!r}.")
            self._left[name] = deque(given[int(number)].splitlines())
        left = self._left[name]
        return Completion(left.popleft(), tokens=0) if left else Completion(SILENT, tokens=0, full=True)
