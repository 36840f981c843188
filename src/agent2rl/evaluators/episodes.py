"""Plays a world with a model: many episodes at once, one batch for each turn.

Every episode that is alive has its turn in every batch; one that ends makes room for the next that waits. A
conversation is kept by the engine where it can (`core.engine.conversations`), so that a turn reads only what
is new. An episode's answers depend on the model, the example and the seed, and not on its company.

An episode ends when the world says so, when its steps are used up, or when the conversation has outgrown the
model's context: then it is over with what it has.
"""

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent2rl.core.engine import (
    Chat,
    Completion,
    Conversations,
    Engine,
    Message,
    Sampling,
    conversations,
    templated,
)
from agent2rl.core.environment import Environment, Step
from agent2rl.core.errors import UserError
from agent2rl.core.records import Attempt, EvalResult, EvalSettings, ExampleResult, Turn
from agent2rl.core.task import Example
from agent2rl.evaluators.asking import passes, result

LIVE = 256
"""Episodes that are played at once."""
TELL_SECONDS = 10.0
FULL = "the conversation outgrew the model's context"


@dataclass(frozen=True)
class Telling:
    """How a world is put to a model."""

    chat: str
    """Stands before the first observation, for a model with a chat template."""
    plain: str = ""
    """The same for one without, which continues text: episodes in the form below."""
    prompt: str = "\n>"
    """Ends an observation in plain text; the action follows."""
    name: str = "own"
    """For the record."""

    def first(self, seen: str, as_chat: bool) -> Chat:
        before = self.chat if as_chat else self.plain
        return self.then(f"{before}\n\n{seen}" if before else seen, as_chat)

    def then(self, seen: str, as_chat: bool) -> Chat:
        return (Message("user", seen if as_chat else seen + self.prompt),)


@dataclass(frozen=True)
class Episodes:
    rule: str
    """Names the world and its scoring, and changes whenever the same actions could score otherwise."""
    world: Callable[[], Environment]
    telling: Telling
    group: Callable[[Example], str] = lambda _: ""
    """The kind of an example, for scores by kind."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=64, stop=("\n",)))
    temperature: float = 1.0
    """For several episodes of one example."""
    live: int = LIVE

    @property
    def version(self) -> str:
        settings = repr((self.telling, self.sampling, self.temperature))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        as_chat = templated(engine)
        sampling = self._sampling(settings)
        played = [_Episode(example, number) for example in examples for number in range(settings.samples)]
        talk = Table(conversations(engine), self.telling, as_chat, sampling)
        play(played, self.world, talk, self.live)
        each = iter(played)
        results = [
            self._result(example, [next(each) for _ in range(settings.samples)]) for example in examples
        ]
        return EvalResult(
            results=tuple(results),
            how={
                "prompting": "chat" if as_chat else "plain",
                "telling": self.telling.name,
                "samples": settings.samples,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
            },
        )

    def _sampling(self, settings: EvalSettings) -> Sampling:
        usual = self.sampling.temperature if settings.samples == 1 else self.temperature
        temperature = usual if settings.temperature is None else settings.temperature
        if settings.samples > 1 and temperature == 0:
            raise UserError("Several samples at temperature 0 are one sample several times.")
        return replace(self.sampling, seed=settings.seed, temperature=temperature)

    def _result(self, example: Example, episodes: Sequence["_Episode"]) -> ExampleResult:
        found = result(example, [episode.attempt() for episode in episodes], passes)
        return found.model_copy(update={"group": self.group(example), "trajectory": tuple(episodes[0].turns)})


class _Episode:
    """One example, being played in a world of its own."""

    def __init__(self, example: Example, number: int) -> None:
        self.example = example
        self.name = f"{example.id}#{number}"
        self.turns: list[Turn] = []
        self.reward = 0.0
        self.note = ""
        self.over = False

    def saw(self, action: str, step: Step) -> None:
        self.turns.append(Turn(action=action, observation=step.observation))
        self.reward = max(self.reward, step.reward)
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

    def turn(self, playing: Sequence[_Episode]) -> dict[str, Completion]:
        return self.talk.extend({episode.name: self._told(episode) for episode in playing}, self.sampling)

    def _told(self, episode: _Episode) -> Chat:
        tell = self.telling.first if len(episode.turns) == 1 else self.telling.then
        return tell(episode.turns[-1].observation, self.as_chat)


def play(episodes: Sequence[_Episode], world: Callable[[], Environment], table: Table, live: int) -> None:
    """All episodes to their ends."""
    waiting, places = deque(episodes), [world() for _ in range(min(live, len(episodes)))]
    playing: dict[_Episode, Environment] = {}
    tell = _Progress(len(episodes))
    while waiting or playing:
        while waiting and places:
            episode, place = waiting.popleft(), places.pop()
            episode.saw("", place.reset(episode.example))
            playing[episode] = place
        replies = table.turn(list(playing))
        for episode, place in list(playing.items()):
            _act(episode, place, replies[episode.name])
            if episode.over:
                places.append(playing.pop(episode))
                table.talk.drop([episode.name])
        tell(len(episodes) - len(waiting) - len(playing))
    for place in places:
        place.close()


def _act(episode: _Episode, place: Environment, reply: Completion) -> None:
    if reply.full:
        episode.note, episode.over = FULL, True
    else:
        action = spoken(reply.text)
        episode.saw(action, place.step(action))


def spoken(text: str) -> str:
    """The action in a reply: its first line that says something, without a sign or label before it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return LABEL.sub("", line, count=1).strip()


LABEL = re.compile(r"^(?:>\s*|action\s*:\s*)+", re.IGNORECASE)


class _Progress:
    """Says now and then in the log how many episodes have ended."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next = time.monotonic() + TELL_SECONDS

    def __call__(self, done: int) -> None:
        if time.monotonic() > self._next:
            print(f"{done} of {self._total} episodes played", flush=True)
            self._next = time.monotonic() + TELL_SECONDS
