"""Evaluates a model by playing episodes of a world: prompts, the batched loop, and the score.

A model with a chat template is told once what to do; then observations are user messages and replies the
assistant's. One without continues a text of earlier episodes (`plain`). Many episodes are played at once,
one batch for each turn. An episode ends when the world says so, when its steps are used up, or when the
conversation outgrows the model's context. Its answers depend on the model, the example and the seed, not on
the other episodes.
"""

import hashlib
import re
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
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import (
    EvalResult,
    EvalSettings,
    ExampleResult,
    SampledAnswer,
    TrajectoryTurn,
)
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example
from agent2rl.evaluators.single_turn import (
    EvaluationProgress,
    build_example_result,
    compute_pass_metrics,
    resolve_sampling,
)

# How a world is put to a model, and how its reply is read.

ANY = ""
"""The key of the text for every kind of example that has none of its own."""
LABEL = re.compile(r"^[\W_]*+action\s*+\d*+[^\w:]*+:[\s*_]*+", re.IGNORECASE)
"""Nothing is tried twice: a line of many colons would take as long as their square."""
SIGN = re.compile(r"^(?:>\s*)+")
QUOTES = "\"'`"
MOST_CHARACTERS = 1000
"""Of an action: no world has a longer one, and a model may talk without end."""


@dataclass(frozen=True)
class EpisodePrompt:
    chat: str
    """Stands before the first observation, for a model with a chat template."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """The same for one without, by kind of example."""
    prompt: str = "\n>"
    """Ends an observation in plain text; the action follows."""
    stop: tuple[str, ...] = ("\n",)
    """Ends an action in plain text."""
    name: str = "own"
    """For the record."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = ANY) -> Chat:
        """What a model reads before its first action."""
        before = self.chat if as_chat else self._get_plain_text(kind)
        told = f"{before.strip()}\n\n{seen}" if before else seen
        return (ChatMessage("user", told if as_chat else told + self.prompt),)

    def build_next_message(self, seen: str, as_chat: bool) -> Chat:
        """What it reads after an action."""
        return (ChatMessage("user", seen if as_chat else f"\n{seen}{self.prompt}"),)

    def _get_plain_text(self, kind: str) -> str:
        found = self.plain.get(kind, self.plain.get(ANY))
        if found is None and self.plain:
            raise UserError(
                f"The prompts {self.name!r} have no plain text for {kind!r}.",
                f'Name it, or `""` for all others; there are {", ".join(self.plain)}.',
            )
        return found or ""

    def prompted(self, prompts: PromptTemplates) -> Self:
        """The same, in other words."""
        plain = self.plain if prompts.plain is None else prompts.plain
        return replace(
            self,
            name=prompts.name,
            chat=self.chat if prompts.chat is None else prompts.chat,
            plain={ANY: plain} if isinstance(plain, str) else plain,
        )


def extract_action(reply: str) -> str:
    """The action in a reply: what it calls its action, or else its first line that says something."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        if label := LABEL.match(line):
            return _strip_quotes(line[label.end() :] or below)
    return _strip_quotes(SIGN.sub("", lines[0])) if lines else ""


def _strip_quotes(action: str) -> str:
    """Without emphasis or quotes around it."""
    action = action.strip("* ")
    while len(action) > 1 and action[0] == action[-1] and action[0] in QUOTES:
        action = action[1:-1].strip()
    return action[:MOST_CHARACTERS]


# Episodes being played: many at once, one batch for each turn.

T = TypeVar("T")

THREADS = 32
"""Steps of a slow world that are taken at once."""
REPLY_CHARACTERS = 4000
"""Of what a model wrote that are recorded."""
FULL = "the conversation outgrew the model's context"
SILENT = "there are no more actions"


class LiveEpisode:
    """One example, being played in a world of its own."""

    def __init__(self, example: Example, number: int = 0, kind: str = "") -> None:
        self.example, self.number, self.kind = example, number, kind
        self.name = f"{example.id}#{number}"
        self.turns: list[TrajectoryTurn] = []
        self.reward = 0.0
        self.marks: Mapping[str, float] = {}
        self.note = ""
        self.over = False

    def record_step(self, action: str, step: EnvironmentStep, reply: str = "") -> None:
        wrote = "" if reply == action else reply[:REPLY_CHARACTERS]
        self.turns.append(TrajectoryTurn(action=action, observation=step.observation, reply=wrote))
        self.reward = max(self.reward, step.reward)
        self.marks = step.marks
        self.over = step.done

    def to_attempt(self, success: float | None = None) -> SampledAnswer:
        score = self.reward if success is None else float(self.reward >= success)
        return SampledAnswer(output=self.turns[-1].action, score=score, note=self.note)


@dataclass
class ModelPlayer:
    """Where the model sits: it is told what each episode sees, and says what it does."""

    talk: Conversations
    telling: EpisodePrompt
    as_chat: bool
    sampling: Sampling
    action: Callable[[str], str] = extract_action

    def generate_replies(self, playing: Sequence[LiveEpisode]) -> dict[LiveEpisode, Completion]:
        told = {episode.name: self._build_message(episode) for episode in playing}
        replies = self.talk.extend(told, self.sampling)
        return {episode: replies[episode.name] for episode in playing}

    def _build_message(self, episode: LiveEpisode) -> Chat:
        seen = episode.turns[-1].observation
        if len(episode.turns) == 1:
            return self.telling.build_first_message(seen, self.as_chat, episode.kind)
        return self.telling.build_next_message(seen, self.as_chat)


def play_episodes(
    episodes: Sequence[LiveEpisode],
    world: Callable[[], Environment],
    table: ModelPlayer,
    live: int,
    slow: bool = False,
) -> tuple[Environment, ...]:
    """All episodes to their ends, and where they were played.

    Where the world is slow, others are asked while some wait for it.
    """
    waiting, free = deque(episodes), [world() for _ in range(min(live, len(episodes)))]
    places = tuple(free)
    tell = EvaluationProgress(len(episodes), "episodes played")
    acting: dict[Future[EnvironmentStep], tuple[LiveEpisode, Environment, str, str]] = {}
    with ThreadPoolExecutor(THREADS) if slow else _InlineExecutor() as hands:
        while waiting or acting:
            while waiting and free:
                episode, place = waiting.popleft(), free.pop()
                acting[hands.submit(place.reset, episode.example)] = (episode, place, "", "")
            seeing: dict[LiveEpisode, Environment] = {}
            for ended in sorted(wait(acting, return_when=FIRST_COMPLETED).done, key=list(acting).index):
                episode, place, action, wrote = acting.pop(ended)
                episode.record_step(action, ended.result(), wrote)
                seeing[episode] = place
            going = [episode for episode in seeing if not episode.over]
            for episode, reply in table.generate_replies(going).items() if going else ():
                if reply.full:
                    episode.note, episode.over = reply.text or FULL, True
                else:
                    place, action = seeing[episode], table.action(reply.text)
                    acting[hands.submit(place.step, action)] = (episode, place, action, reply.text)
            over = [episode for episode in seeing if episode.over]
            free += [seeing[episode] for episode in over]
            table.talk.drop([episode.name for episode in over])
            tell(len(episodes) - len(waiting) - len(acting))
    for place in places:
        place.close()
    return places


class _InlineExecutor(Executor):
    """Does what it is given at once, in this thread."""

    def submit(self, call: Callable[..., T], /, *given: object, **named: object) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(call(*given, **named))
        return done


class RecitedConversations:
    """Given outputs as conversations: an episode's is its actions, one a line."""

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
            given = self._engine.given(example)
            if int(number) >= len(given):
                raise GradingError(f"There is no given output {number} for {example!r}.")
            self._left[name] = deque(given[int(number)].splitlines())
        left = self._left[name]
        return Completion(left.popleft(), tokens=0) if left else Completion(SILENT, tokens=0, full=True)


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
from agent2rl.evaluators.episodes import EpisodePrompt
from agent2rl.evaluators.eval_cli import main
from agent2rl.registry import find_engine
$imports

EVALUATOR = $evaluator

if __name__ == "__main__":
    main(EVALUATOR, find_engine)
'''
