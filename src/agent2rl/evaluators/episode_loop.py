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

from agent2rl.core.engine import Chat, Completion, Conversations, RecordedEngine, Sampling
from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import GradingError
from agent2rl.core.records import SampledAnswer, TrajectoryTurn
from agent2rl.core.task import Example
from agent2rl.evaluators.episode_prompts import EpisodePrompt, extract_action
from agent2rl.evaluators.progress import EvaluationProgress

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
