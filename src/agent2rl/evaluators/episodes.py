"""Plays a world with a model, and says what the episodes are worth.

How they are played, many at once, is in `playing`; how the world is put to the model, in `telling`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from string import Template
from typing import Any, Self

from pydantic import JsonValue

from agent2rl.core.engine import Engine, Given, Sampling, conversations, templated
from agent2rl.core.environment import Environment
from agent2rl.core.records import EvalResult, EvalSettings, ExampleResult, Prompts
from agent2rl.core.task import Example
from agent2rl.evaluators.asking import drawn, passes, result
from agent2rl.evaluators.playing import Episode, Recited, Table, play
from agent2rl.evaluators.telling import Telling, spoken

LIVE = 256
"""Episodes that are played at once."""


@dataclass(frozen=True)
class Settled:
    """What became of episodes after they were played."""

    missing: Mapping[str, str] = field(default_factory=dict)
    """The ids of examples that nothing can be said of → why."""
    how: Mapping[str, JsonValue] = field(default_factory=dict)
    """For the record."""


def as_played(_: Sequence[Episode], __: Sequence[Environment]) -> Settled:
    """The world's rewards stand."""
    return Settled()


Settle = Callable[[Sequence[Episode], Sequence[Environment]], Settled]
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
    success: float | None = None
    """The reward from which on an episode scores 1, and below it 0; the mean reward is reported beside the
    score. None: the reward is the score."""
    also: tuple[float, ...] = ()
    """Where else success could begin: the share of such episodes is reported beside the score."""
    live: int = LIVE
    slow: bool = False
    """Whether a step takes the world so long that others should not wait for it, as a search may."""
    action: Callable[[str], str] = spoken
    """How the action is found in a reply."""
    settle: Settle = as_played
    """Has the last word on episodes that are played, as a judge may have."""

    @property
    def version(self) -> str:
        marks = () if self.success is None else (self.success, self.also)
        calls = (f"{call.__module__}.{call.__qualname__}" for call in self._further.values())
        settings = repr((self.telling, self.group, self.sampling, self.temperature, *marks, *calls))
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
                ("success", repr(self.success)),
                ("also", repr(self.also)),
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

    def _table(self, engine: Engine, settings: EvalSettings) -> tuple[Table, dict[str, str | int | float]]:
        if isinstance(engine, Given):
            given = Table(Recited(engine), self.telling, True, self.sampling, self.action)
            return given, {"prompting": "given"}
        as_chat = templated(engine)
        sampling = drawn(self.sampling, settings, self.temperature, stop=() if as_chat else self.telling.stop)
        return Table(conversations(engine), self.telling, as_chat, sampling, self.action), {
            "prompting": "chat" if as_chat else "plain",
            "prompts": self.telling.name,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }

    def _result(self, example: Example, episodes: Sequence[Episode]) -> ExampleResult:
        found = result(example, [episode.attempt(self.success) for episode in episodes], passes)
        more = {
            "group": self.kind(example),
            "trajectory": tuple(episodes[0].turns),
            "metrics": {**found.metrics, **self._beside(episodes)},
        }
        return found.model_copy(update=more)

    def _beside(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """What is reported with the score of an example's episodes."""
        rewards = [episode.reward for episode in episodes]
        found = {name: fmean(episode.marks[name] for episode in episodes) for name in episodes[0].marks}
        if self.success is None:
            return found
        shares = {f"reward>={least:g}": fmean(reward >= least for reward in rewards) for least in self.also}
        return {**found, "reward": fmean(rewards), **shares}


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
