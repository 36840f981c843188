"""Evaluate a model by playing episodes in an environment: the batched loop, and the score.

A model with a chat template gets the instructions once; then observations are user messages and its replies
are assistant messages. A model without one continues a text of example episodes (`plain`). Many episodes are
played at the same time, with one batch per turn. An episode ends when the environment ends it, when its steps
are used up, or when the conversation outgrows the model's context. The replies depend on the model, the
example and the seed, and not on the other episodes.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from statistics import fmean
from string import Template
from typing import Any, Self, TypeVar

from pydantic import JsonValue

from agent2rl.core.engine import (
    Chat,
    ChatMessage,
    Completion,
    Conversations,
    Engine,
    RecordedEngine,
    Sampling,
    has_chat_template,
    open_conversations,
)
from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import (
    EvalResult,
    EvalSettings,
    ExampleResult,
    SampledAnswer,
    TrajectoryTurn,
)
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example
from agent2rl.environments.adapters import open_training_environment
from agent2rl.evaluators.episode_prompts import (
    EpisodePrompt,
    ForcedAction,
    WindowedPrompt,
    extract_action,
)
from agent2rl.evaluators.single_turn import (
    EvaluationProgress,
    build_example_result,
    compute_pass_metrics,
    resolve_sampling,
)

# Tasks and agents outside this package import all of these from here.
__all__ = [
    "FULL",
    "MAX_LIVE_EPISODES",
    "EpisodePrompt",
    "Episodes",
    "ForcedAction",
    "LiveEpisode",
    "ModelPlayer",
    "ReplayedConversations",
    "SettledEpisodes",
    "WindowedPrompt",
    "extract_action",
    "keep_rewards",
    "play_episodes",
]

# Playing many episodes at the same time, with one batch per turn

T = TypeVar("T")

THREADS = 32
"""Parallel steps in slow environments."""
REPLY_CHARACTERS = 4000
"""Limit for the recorded text of a reply."""
FULL = "the conversation outgrew the model's context"
SILENT = "there are no more actions"


class LiveEpisode:
    """One example that is being played in its own environment."""

    def __init__(self, example: Example, number: int = 0, kind: str = "") -> None:
        self.example, self.number, self.kind = example, number, kind
        self.name = f"{example.id}#{number}"
        self.turns: list[TrajectoryTurn] = []
        self.reward = 0.0
        self.marks: Mapping[str, float] = {}
        self.note = ""
        self.over = False

    def record_step(self, action: str, step: EnvironmentStep, reply: str = "") -> None:
        recorded_reply = "" if reply == action else reply[:REPLY_CHARACTERS]
        self.turns.append(
            TrajectoryTurn(
                action=action, observation=step.observation, reply=recorded_reply, invalid=step.invalid
            )
        )
        self.reward = max(self.reward, step.reward)
        self.marks = step.marks
        self.over = step.done

    def to_attempt(self, success: float | None = None) -> SampledAnswer:
        score = self.reward if success is None else float(self.reward >= success)
        return SampledAnswer(output=self.turns[-1].action, score=score, note=self.note)


@dataclass
class ModelPlayer:
    """Sends the observations of episodes to the model and returns its replies."""

    talk: Conversations
    prompt: EpisodePrompt
    as_chat: bool
    sampling: Sampling
    action: Callable[[str], str] = extract_action
    forced: ForcedAction | None = None

    def generate_replies(self, playing: Sequence[LiveEpisode]) -> dict[LiveEpisode, Completion]:
        messages = {episode.name: self._build_message(episode) for episode in playing}
        if isinstance(self.prompt, WindowedPrompt):
            self.talk.drop(messages)
        replies = self.talk.extend(messages, self.sampling)
        if self.forced:
            replies = self._complete_actions(replies, self.forced)
        return {episode: replies[episode.name] for episode in playing}

    def _complete_actions(
        self, replies: Mapping[str, Completion], forced: ForcedAction
    ) -> dict[str, Completion]:
        """Continue the replies that have no action."""
        without = [name for name, reply in replies.items() if not (reply.full or self.action(reply.text))]
        if not without or isinstance(self.talk, ReplayedConversations):
            return dict(replies)
        sampling = replace(self.sampling, max_tokens=forced.max_tokens, stop=(forced.end,))
        begun = self.talk.extend({name: (ChatMessage("user", forced.begin),) for name in without}, sampling)
        return {**replies, **{name: _join_forced(replies[name], begun[name], forced) for name in without}}

    def _build_message(self, episode: LiveEpisode) -> Chat:
        if isinstance(self.prompt, WindowedPrompt):
            return self.prompt.build_chat(episode.turns)
        seen = episode.turns[-1].observation
        if len(episode.turns) == 1:
            return self.prompt.build_first_message(seen, self.as_chat, episode.kind)
        return self.prompt.build_next_message(seen, self.as_chat)


def _join_forced(reply: Completion, action: Completion, forced: ForcedAction) -> Completion:
    if action.full:
        return action
    text = f"{reply.text}{forced.begin}{action.text}{forced.end}"
    return Completion(text, reply.tokens + action.tokens)


def play_episodes(
    episodes: Sequence[LiveEpisode],
    world: Callable[[], Environment],
    player: ModelPlayer,
    live: int,
    slow: bool = False,
) -> tuple[Environment, ...]:
    """Play all episodes to their ends and return the environments.

    In slow environments, the model continues with other episodes while some wait for a step.
    """
    waiting, free = deque(episodes), [world() for _ in range(min(live, len(episodes)))]
    environments = tuple(free)
    progress = EvaluationProgress(len(episodes), "episodes played")
    acting: dict[Future[EnvironmentStep], tuple[LiveEpisode, Environment, str, str]] = {}
    with ThreadPoolExecutor(THREADS) if slow else _InlineExecutor() as executor:
        while waiting or acting:
            while waiting and free:
                episode, environment = waiting.popleft(), free.pop()
                acting[executor.submit(environment.reset, episode.example)] = (episode, environment, "", "")
            observed: dict[LiveEpisode, Environment] = {}
            # In the order in which steps were begun, so that no result depends on how fast they
            # were.
            for ended in sorted(wait(acting, return_when=FIRST_COMPLETED).done, key=list(acting).index):
                episode, environment, action, reply_text = acting.pop(ended)
                episode.record_step(action, ended.result(), reply_text)
                observed[episode] = environment
            unfinished = [episode for episode in observed if not episode.over]
            for episode, reply in player.generate_replies(unfinished).items() if unfinished else ():
                if reply.full:
                    episode.note, episode.over = reply.text or FULL, True
                else:
                    environment, action = observed[episode], player.action(reply.text)
                    acting[executor.submit(environment.step, action)] = (
                        episode,
                        environment,
                        action,
                        reply.text,
                    )
            finished = [episode for episode in observed if episode.over]
            free += [observed[episode] for episode in finished]
            player.talk.drop([episode.name for episode in finished])
            progress(len(episodes) - len(waiting) - len(acting))
    for environment in environments:
        environment.close()
    return environments


class _InlineExecutor(Executor):
    """Runs each call immediately in this thread."""

    def submit(self, call: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class ReplayedConversations:
    """Replays recorded outputs as conversations. The output of an episode has one action per line."""

    def __init__(self, engine: RecordedEngine) -> None:
        self._engine = engine
        self._left: dict[str, deque[str]] = {}

    def extend(self, turns: Mapping[str, Chat], _: Sampling) -> dict[str, Completion]:
        return {name: self._get_next_reply(name) for name in turns}

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._left.pop(name, None)

    def _get_next_reply(self, name: str) -> Completion:
        if name not in self._left:
            example, _, number = name.rpartition("#")
            outputs = self._engine.get_outputs(example)
            if int(number) >= len(outputs):
                raise GradingError(f"There is no output {number} for {example!r}.")
            self._left[name] = deque(outputs[int(number)].splitlines())
        left = self._left[name]
        return Completion(left.popleft(), tokens=0) if left else Completion(SILENT, tokens=0, full=True)


MAX_LIVE_EPISODES = 256
"""Episodes that are played at the same time."""


@dataclass(frozen=True)
class SettledEpisodes:
    """Result of the `settle` step after all episodes have been played."""

    missing: Mapping[str, str] = field(default_factory=dict)
    """Ids of examples without a score, with the reason."""
    how: Mapping[str, JsonValue] = field(default_factory=dict)
    """Recorded with the result."""


def keep_rewards(_: Sequence[LiveEpisode], __: Sequence[Environment]) -> SettledEpisodes:
    """Keep the rewards of the environment."""
    return SettledEpisodes()


Settle = Callable[[Sequence[LiveEpisode], Sequence[Environment]], SettledEpisodes]
"""Gets the episodes, whose rewards and marks it may change, and the environments they were played in."""


@dataclass(frozen=True)
class Episodes:
    rule: str
    """Names the environment and its scoring. Must change if the same actions could score differently."""
    world: Callable[[], Environment]
    prompt: EpisodePrompt
    group: str = ""
    """The key of an example's meta with its kind, for scores by kind."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=64))
    temperature: float = 1.0
    """Used if there are several episodes per example."""
    success: float | None = None
    """Threshold: an episode scores 1 from this reward on, and 0 below it. The mean reward is reported too.
    None: the reward is the score."""
    also: tuple[float, ...] = ()
    """Other thresholds: the share of episodes that reach them is reported too."""
    live: int = MAX_LIVE_EPISODES
    slow: bool = False
    """Whether a step takes so long that other episodes should not wait for it, e.g. a web search."""
    action: Callable[[str], str] = extract_action
    """Extracts the action from a reply."""
    settle: Settle = keep_rewards
    """Decides the final rewards after all episodes have been played, e.g. by a judge."""
    forced: ForcedAction | None = None
    """Used if a reply has no action: if `action` returns an empty text. None: that is the action."""

    @property
    def version(self) -> str:
        marks = () if self.success is None else (self.success, self.also)
        calls = (f"{call.__module__}.{call.__qualname__}" for call in self._further.values())
        forced = () if self.forced is None else (self.forced,)
        settings = repr((self.prompt, self.group, self.sampling, self.temperature, *marks, *calls, *forced))
        return f"{self.rule}+{hashlib.sha256(settings.encode()).hexdigest()[:12]}"

    def evaluate(self, engine: Engine, examples: Sequence[Example], settings: EvalSettings) -> EvalResult:
        played = [
            LiveEpisode(example, number, self.get_kind(example))
            for example in examples
            for number in range(settings.samples)
        ]
        player, how = self._make_player(engine, settings)
        environments = play_episodes(played, self.world, player, self.live, self.slow)
        settled = self.settle(played, environments)
        episodes = iter(played)
        results = [
            self._build_result(example, [next(episodes) for _ in range(settings.samples)])
            for example in examples
        ]
        return EvalResult(
            results=tuple(result for result in results if result.id not in settled.missing),
            missing=dict(settled.missing),
            how={**how, "samples": settings.samples, **settled.how},
        )

    def with_prompts(self, prompts: PromptTemplates) -> Self:
        return replace(self, prompt=self.prompt.with_prompts(prompts))

    def export_program(self) -> str:
        """Return this evaluator as the source code of `eval.py`."""
        # The graded games are not in the workspace, so the program plays the training games.
        calls = {"world": open_training_environment, **self._further}
        source = "".join(
            f"    {name}={written},\n"
            for name, written in (
                ("rule", repr(self.rule)),
                ("prompt", repr(self.prompt)),
                ("group", repr(self.group)),
                ("sampling", repr(self.sampling)),
                ("temperature", repr(self.temperature)),
                ("success", repr(self.success)),
                ("also", repr(self.also)),
                ("forced", repr(self.forced)),
                *((name, call.__qualname__) for name, call in calls.items()),
            )
        )
        parts: list[Callable[..., Any]] = [type(self.prompt), *calls.values()]
        return Template(PROGRAM).substitute(
            version=self.version,
            imports="\n".join(_write_import(part) for part in parts),
            evaluator=f"Episodes(\n{source})",
        )

    @property
    def _further(self) -> dict[str, Callable[..., Any]]:
        """The functions that differ from the defaults."""
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
            player = ModelPlayer(ReplayedConversations(engine), self.prompt, True, self.sampling, self.action)
            return player, {"prompting": "given"}
        as_chat = has_chat_template(engine) and not self.sampling.plain
        sampling = resolve_sampling(
            self.sampling, settings, self.temperature, stop=() if as_chat else self.prompt.stop
        )
        talk = open_conversations(engine)
        return ModelPlayer(talk, self.prompt, as_chat, sampling, self.action, self.forced), {
            "prompting": "chat" if as_chat else "plain",
            "prompts": self.prompt.name,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }

    def _build_result(self, example: Example, episodes: Sequence[LiveEpisode]) -> ExampleResult:
        result = build_example_result(
            example, [episode.to_attempt(self.success) for episode in episodes], compute_pass_metrics
        )
        update = {
            "group": self.get_kind(example),
            "trajectory": tuple(episodes[0].turns),
            "metrics": {**result.metrics, **self._compute_metrics(episodes)},
        }
        return result.model_copy(update=update)

    def _compute_metrics(self, episodes: Sequence[LiveEpisode]) -> dict[str, float]:
        """Return the metrics to report with the score of an example."""
        rewards = [episode.reward for episode in episodes]
        marks = {name: fmean(episode.marks[name] for episode in episodes) for name in episodes[0].marks}
        if self.success is None:
            return marks
        shares = {f"reward>={least:g}": fmean(reward >= least for reward in rewards) for least in self.also}
        return {**marks, "reward": fmean(rewards), **shares}


def _write_import(part: Callable[..., Any]) -> str:
    return f"from {part.__module__} import {part.__qualname__}"


PROGRAM = '''"""The grader's evaluation as a program, for training games: its prompts, its loop, its world.

    python eval.py models/NAME --games 100

It needs agent2rl. If your `python` does not have it, start it with `$$AGENT2RL_PYTHON` instead.

EVALUATOR is the value that grades, written down by the harness ($version). Only its `world` differs: it
plays the training games, the same as `open_world().environment`, and counts the steps.
"""

from agent2rl.core.engine import Sampling
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.episodes import ForcedAction
from agent2rl.evaluators.eval_cli import main
from agent2rl.registry import find_engine
$imports

EVALUATOR = $evaluator

if __name__ == "__main__":
    main(EVALUATOR, find_engine)
'''
