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
from statistics import fmean
from string import Template
from typing import Self, TypeVar

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
    success: float | None = None
    """The reward from which on an episode scores 1, and below it 0; the mean reward is reported beside the
    score. None: the reward is the score."""
    also: tuple[float, ...] = ()
    """Where else success could begin: the share of such episodes is reported beside the score."""
    live: int = LIVE
    slow: bool = False
    """Whether a step takes the world so long that others should not wait for it, as a search may."""

    @property
    def version(self) -> str:
        marks = () if self.success is None else (self.success, self.also)
        settings = repr((self.telling, self.group, self.sampling, self.temperature, *marks))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        played = [
            Episode(example, number, self.kind(example))
            for example in examples
            for number in range(settings.samples)
        ]
        table, how = self._table(engine, settings)
        play(played, self.world, table, self.live, self.slow)
        each = iter(played)
        results = [
            self._result(example, [next(each) for _ in range(settings.samples)]) for example in examples
        ]
        return EvalResult(results=tuple(results), how={**how, "samples": settings.samples})

    def prompted(self, prompts: Prompts) -> Self:
        return replace(self, telling=self.telling.prompted(prompts))

    def program(self) -> str:
        """This value as source code."""
        source = "".join(
            f"    {name}={written},\n"
            for name, written in (
                ("rule", repr(self.rule)),
                ("world", self.world.__qualname__),
                ("telling", repr(self.telling)),
                ("group", repr(self.group)),
                ("sampling", repr(self.sampling)),
                ("temperature", repr(self.temperature)),
                ("success", repr(self.success)),
                ("also", repr(self.also)),
            )
        )
        return Template(PROGRAM).substitute(
            version=self.version,
            module=self.world.__module__,
            world=self.world.__qualname__,
            evaluator=f"Episodes(\n{source})",
        )

    def kind(self, example: Example) -> str:
        return str(example.meta.get(self.group, "")) if self.group else ""

    def _table(self, engine: Engine, settings: EvalSettings) -> tuple["Table", dict[str, str | int | float]]:
        if isinstance(engine, Given):
            return Table(_Recited(engine), self.telling, True, self.sampling), {"prompting": "given"}
        as_chat = templated(engine)
        sampling = drawn(self.sampling, settings, self.temperature, stop=() if as_chat else self.telling.stop)
        return Table(conversations(engine), self.telling, as_chat, sampling), {
            "prompting": "chat" if as_chat else "plain",
            "prompts": self.telling.name,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }

    def _result(self, example: Example, episodes: Sequence["Episode"]) -> ExampleResult:
        found = result(example, [episode.attempt(self.success) for episode in episodes], passes)
        more = {
            "group": self.kind(example),
            "trajectory": tuple(episodes[0].turns),
            "metrics": {**found.metrics, **self._beside([episode.reward for episode in episodes])},
        }
        return found.model_copy(update=more)

    def _beside(self, rewards: Sequence[float]) -> dict[str, float]:
        """What is reported with the score of an example's episodes."""
        if self.success is None:
            return {}
        shares = {f"reward>={least:g}": fmean(reward >= least for reward in rewards) for least in self.also}
        return {"reward": fmean(rewards), **shares}


PROGRAM = '''"""The grader's evaluation as a program, for training games: its prompts, its loop, its world.

    python eval.py models/NAME --games 100

EVALUATOR is the value that grades, written down by the harness ($version).
"""

from agent2rl.core.engine import Sampling
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.telling import Telling
from agent2rl.evaluators.trial import main
from $module import $world

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
        self.note = ""
        self.over = False

    def saw(self, action: str, step: Step) -> None:
        self.turns.append(Turn(action=action, observation=step.observation))
        self.reward = max(self.reward, step.reward)
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
) -> None:
    """All episodes to their ends. Where the world is slow, others are asked while some wait for it."""
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
                    action = spoken(reply.text)
                    acting[hands.submit(seeing[episode].step, action)] = (episode, seeing[episode], action)
            over = [episode for episode in seeing if episode.over]
            free += [seeing[episode] for episode in over]
            table.talk.drop([episode.name for episode in over])
            tell(len(episodes) - len(waiting) - len(acting))
    for place in places:
        place.close()


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
