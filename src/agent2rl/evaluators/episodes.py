"""Plays a world with a model, and says what the episodes are worth.

How they are played, many at once, is in `episode_loop`; how the world is put to the model, in
`episode_prompts`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from string import Template
from typing import Any, Self

from pydantic import JsonValue

from agent2rl.core.engine import Engine, RecordedEngine, Sampling, has_chat_template, open_conversations
from agent2rl.core.environment import Environment
from agent2rl.core.records import EvalResult, EvalSettings, ExampleResult, PromptTemplates
from agent2rl.core.task import Example
from agent2rl.evaluators.answer_sampling import build_example_result, compute_pass_metrics, resolve_sampling
from agent2rl.evaluators.episode_loop import LiveEpisode, ModelPlayer, RecitedConversations, play_episodes
from agent2rl.evaluators.episode_prompts import EpisodePrompt, extract_action

MAX_LIVE_EPISODES = 256
"""Episodes that are played at once."""


@dataclass(frozen=True)
class SettledEpisodes:
    """What became of episodes after they were played."""

    missing: Mapping[str, str] = field(default_factory=dict)
    """The ids of examples that nothing can be said of → why."""
    how: Mapping[str, JsonValue] = field(default_factory=dict)
    """For the record."""


def keep_rewards(_: Sequence[LiveEpisode], __: Sequence[Environment]) -> SettledEpisodes:
    """The world's rewards stand."""
    return SettledEpisodes()


Settle = Callable[[Sequence[LiveEpisode], Sequence[Environment]], SettledEpisodes]
"""Given the episodes, whose rewards and marks it may change, and the places where they were played."""


@dataclass(frozen=True)
class Episodes:
    rule: str
    """Names the world and its scoring, and changes whenever the same actions could score otherwise."""
    world: Callable[[], Environment]
    telling: EpisodePrompt
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
    live: int = MAX_LIVE_EPISODES
    slow: bool = False
    """Whether a step takes the world so long that others should not wait for it, as a search may."""
    action: Callable[[str], str] = extract_action
    """How the action is found in a reply."""
    settle: Settle = keep_rewards
    """Has the last word on episodes that are played, as a judge may have."""

    @property
    def version(self) -> str:
        marks = () if self.success is None else (self.success, self.also)
        calls = (f"{call.__module__}.{call.__qualname__}" for call in self._further.values())
        settings = repr((self.telling, self.group, self.sampling, self.temperature, *marks, *calls))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        played = [
            LiveEpisode(example, number, self.get_kind(example))
            for example in examples
            for number in range(settings.samples)
        ]
        table, how = self._make_player(engine, settings)
        places = play_episodes(played, self.world, table, self.live, self.slow)
        settled = self.settle(played, places)
        each = iter(played)
        results = [
            self._build_result(example, [next(each) for _ in range(settings.samples)]) for example in examples
        ]
        return EvalResult(
            results=tuple(result for result in results if result.id not in settled.missing),
            missing=dict(settled.missing),
            how={**how, "samples": settings.samples, **settled.how},
        )

    def prompted(self, prompts: PromptTemplates) -> Self:
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
            "action": (self.action, extract_action),
            "settle": (self.settle, keep_rewards),
        }
        return {name: own for name, (own, other) in usual.items() if own is not other}

    def get_kind(self, example: Example) -> str:
        return str(example.meta.get(self.group, "")) if self.group else ""

    def _make_player(
        self, engine: Engine, settings: EvalSettings
    ) -> tuple[ModelPlayer, dict[str, str | int | float]]:
        if isinstance(engine, RecordedEngine):
            given = ModelPlayer(RecitedConversations(engine), self.telling, True, self.sampling, self.action)
            return given, {"prompting": "given"}
        as_chat = has_chat_template(engine)
        sampling = resolve_sampling(
            self.sampling, settings, self.temperature, stop=() if as_chat else self.telling.stop
        )
        return ModelPlayer(open_conversations(engine), self.telling, as_chat, sampling, self.action), {
            "prompting": "chat" if as_chat else "plain",
            "prompts": self.telling.name,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }

    def _build_result(self, example: Example, episodes: Sequence[LiveEpisode]) -> ExampleResult:
        found = build_example_result(
            example, [episode.to_attempt(self.success) for episode in episodes], compute_pass_metrics
        )
        more = {
            "group": self.get_kind(example),
            "trajectory": tuple(episodes[0].turns),
            "metrics": {**found.metrics, **self._compute_metrics(episodes)},
        }
        return found.model_copy(update=more)

    def _compute_metrics(self, episodes: Sequence[LiveEpisode]) -> dict[str, float]:
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
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.eval_cli import main
from agent2rl.registry import find_engine
$imports

EVALUATOR = $evaluator

if __name__ == "__main__":
    main(EVALUATOR, find_engine)
'''
