"""Plays a world with a model: many episodes at once, one batch for each turn.

Every episode that is alive has its turn in every batch; one that ends makes room for the next that waits. A
conversation is kept by the engine where it can (`core.engine.conversations`), so that a turn reads only what
is new. An episode's answers depend on the model, the example and the seed, and not on its company.

An episode ends when the world says so, when its steps are used up, or when the conversation has outgrown the
model's context: then it is over with what it has.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from statistics import mean
from string import Template
from typing import Any, Self, TypeVar

from pydantic import JsonValue

from agent2rl.core.engine import (
    Chat,
    Completion,
    Conversations,
    Engine,
    Given,
    Sampling,
    conversations,
    templated,
)
from agent2rl.core.environment import Environment, Step
from agent2rl.core.errors import GradingError
from agent2rl.core.records import Attempt, EvalResult, EvalSettings, ExampleResult, Prompts, Turn
from agent2rl.core.task import Example
from agent2rl.evaluators.asking import drawn, passes, result
from agent2rl.evaluators.progress import Progress
from agent2rl.evaluators.telling import Telling, spoken

T = TypeVar("T")

LIVE = 256
"""Episodes that are played at once."""
THREADS = 32
"""Steps of a slow world that are taken at once."""
FULL = "the conversation outgrew the model's context"
SILENT = "there are no more actions"


@dataclass(frozen=True)
class Settled:
    """What became of episodes after they were played."""

    missing: Mapping[str, str] = field(default_factory=dict)
    """The ids of examples that nothing can be said of → why."""
    how: Mapping[str, JsonValue] = field(default_factory=dict)
    """For the record."""


def as_played(_: Sequence["Episode"], __: Sequence[Environment]) -> Settled:
    """The world's rewards stand."""
    return Settled()


Settle = Callable[[Sequence["Episode"], Sequence[Environment]], Settled]
"""Given the episodes, whose rewards and marks it may change, and the places where they were played."""


@dataclass(frozen=True)
class Episodes:
    rule: str
    """Names the world and its scoring, and changes whenever the same actions could score otherwise."""
    world: Callable[[], Environment]
    telling: Telling
    group: str = ""
    """The key of an example's meta that says its kind, for scores by kind."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=64))
    temperature: float = 1.0
    """For several episodes of one example."""
    live: int = LIVE
    slow: bool = False
    """Whether a step takes the world so long that others should not wait for it, as a search may."""
    action: Callable[[str], str] = spoken
    """How the action is found in a reply."""
    settle: Settle = as_played
    """Has the last word on episodes that are played, as a judge may have."""

    @property
    def version(self) -> str:
        calls = (f"{call.__module__}.{call.__qualname__}" for call in self._further.values())
        settings = repr((self.telling, self.group, self.sampling, self.temperature, *calls))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        played = [
            Episode(example, number, self.kind(example))
            for example in examples
            for number in range(settings.samples)
        ]
        table, how = self._table(engine, settings)
        places = play(played, self.world, table, self.live, self.slow)
        settled = self.settle(played, places)
        each = iter(played)
        results = [
            self._result(example, [next(each) for _ in range(settings.samples)]) for example in examples
        ]
        return EvalResult(
            results=tuple(result for result in results if result.id not in settled.missing),
            missing=dict(settled.missing),
            how={**how, "samples": settings.samples, **settled.how},
        )

    def prompted(self, prompts: Prompts) -> Self:
        return replace(self, telling=self.telling.prompted(prompts))

    def program(self) -> str:
        """This value as source code."""
        calls = {"world": self.world, **self._further}
        source = "".join(
            f"    {name}={written},\n"
            for name, written in (
                ("rule", repr(self.rule)),
                ("telling", repr(self.telling)),
                ("group", repr(self.group)),
                ("sampling", repr(self.sampling)),
                ("temperature", repr(self.temperature)),
                *((name, call.__qualname__) for name, call in calls.items()),
            )
        )
        return Template(PROGRAM).substitute(
            version=self.version,
            imports="\n".join(
                f"from {call.__module__} import {call.__qualname__}" for call in calls.values()
            ),
            evaluator=f"Episodes(\n{source})",
        )

    @property
    def _further(self) -> dict[str, Callable[..., Any]]:
        """The functions that are not the usual ones."""
        usual: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "action": (self.action, spoken),
            "settle": (self.settle, as_played),
        }
        return {name: own for name, (own, other) in usual.items() if own is not other}

    def kind(self, example: Example) -> str:
        return str(example.meta.get(self.group, "")) if self.group else ""

    def _table(self, engine: Engine, settings: EvalSettings) -> tuple["Table", dict[str, str | int | float]]:
        if isinstance(engine, Given):
            given = Table(_Recited(engine), self.telling, True, self.sampling, self.action)
            return given, {"prompting": "given"}
        as_chat = templated(engine)
        sampling = drawn(self.sampling, settings, self.temperature, stop=() if as_chat else self.telling.stop)
        return Table(conversations(engine), self.telling, as_chat, sampling, self.action), {
            "prompting": "chat" if as_chat else "plain",
            "prompts": self.telling.name,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }

    def _result(self, example: Example, episodes: Sequence["Episode"]) -> ExampleResult:
        found = result(example, [episode.attempt() for episode in episodes], passes)
        marks = {name: mean([episode.marks[name] for episode in episodes]) for name in episodes[0].marks}
        return found.model_copy(
            update={
                "group": self.kind(example),
                "trajectory": tuple(episodes[0].turns),
                "metrics": {**found.metrics, **marks},
            }
        )


PROGRAM = '''"""The grader's evaluation as a program, for training games: its prompts, its loop, its world.

    python eval.py models/NAME --games 100

EVALUATOR is the value that grades, written down by the harness ($version).
"""

from agent2rl.core.engine import Sampling
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.telling import Telling
from agent2rl.evaluators.trial import main
$imports

EVALUATOR = $evaluator

if __name__ == "__main__":
    main(EVALUATOR)
'''


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

    def attempt(self) -> Attempt:
        return Attempt(output=self.turns[-1].action, score=self.reward, note=self.note)


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


class _Recited:
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
