"""Online rollouts: a model plays games again and again, and GRPO learns from whole episodes.

All episodes of a step are played at once, a batch for each turn, by the engine's own conversations: what the
model reads and says is, token for token, what it would in grading with the same seed. An episode is worth the
largest reward of its steps, as in grading. It ends when the world says so, or when the conversation has
outgrown the model's context.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, Completion, Sampling
from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.task import Example
from agent2rl.training.arena import Arena
from agent2rl.training.grpo import GrpoResult, GrpoRollout, GrpoSettings, RolloutJob, improve
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sampling import PolicySampler, SampledConversations
from agent2rl.training.sequences import build_sequences


@dataclass
class RolloutEpisode:
    """One game, being played."""

    name: str
    """As the grader names it, which makes its random numbers the grader's."""
    place: Environment
    seen: Chat
    """What the model has not been told yet."""
    reward: float = 0.0
    over: bool = False


class EpisodeRollouts:
    """Games of an arena as GRPO's practice."""

    def __init__(
        self,
        sampler: PolicySampler,
        arena: Arena,
        games: Sequence[Example],
        group: int,
        temperature: float = 1.0,
    ) -> None:
        self._sampler, self._arena, self._games = sampler, arena, games
        self._group, self._temperature = group, temperature
        self._places: list[Environment] = []
        """Not in use."""

    def __len__(self) -> int:
        return len(self._games)

    def attempt(self, trial: RolloutJob) -> list[list[GrpoRollout]]:
        return self.play_games([self._games[i] for i in trial.asked], trial.seed)

    def reward(self, index: int, attempt: GrpoRollout) -> float:  # noqa: ARG002
        return attempt.reward

    def play_games(self, games: Sequence[Example], seed: int) -> list[list[GrpoRollout]]:
        """A group of episodes of each game."""
        talk = self._sampler.start_conversations()
        numbers: Counter[str] = Counter()  # a game may be asked twice
        groups = [[self._start_episode(game, numbers) for _ in range(self._group)] for game in games]
        episodes = [episode for group in groups for episode in group]
        sampling = replace(self._arena.sampling, temperature=self._temperature, seed=seed)
        while playing := [episode for episode in episodes if not episode.over]:
            self._play_turn(playing, talk, sampling)
        self._sampler.release_gpu_memory()
        self._places += [episode.place for episode in episodes]
        return [
            [GrpoRollout(build_sequences(talk.turns.get(one.name, [])), reward=one.reward) for one in group]
            for group in groups
        ]

    def close(self) -> None:
        for place in self._places:
            place.close()
        self._places = []

    def _start_episode(self, game: Example, numbers: Counter[str]) -> RolloutEpisode:
        place = self._places.pop() if self._places else self._arena.world()
        step = place.reset(game)
        kind = self._arena.kind(game)
        seen = self._arena.telling.build_first_message(step.observation, self._sampler.templated, kind)
        name = f"{game.id}#{numbers[game.id]}"
        numbers[game.id] += 1
        return RolloutEpisode(name, place, seen, step.reward, step.done)

    def _play_turn(
        self, playing: Sequence[RolloutEpisode], talk: SampledConversations, sampling: Sampling
    ) -> None:
        replies = talk.extend({episode.name: episode.seen for episode in playing}, sampling)
        for episode in playing:
            self._apply_action(episode, replies[episode.name])
        talk.drop([episode.name for episode in playing if episode.over])

    def _apply_action(self, episode: RolloutEpisode, reply: Completion) -> None:
        if reply.full:
            episode.over = True
            return
        step: EnvironmentStep = episode.place.step(self._arena.action(reply.text))
        episode.reward = max(episode.reward, step.reward)
        episode.over = step.done
        episode.seen = self._arena.telling.build_next_message(step.observation, self._sampler.templated)


def grpo_in_world(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    arena: Arena,
    games: Sequence[Example],
    settings: GrpoSettings,
    progress: TrainingProgress,
    look: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place on episodes that it plays: `settings.prompts` games a step."""
    sampler = PolicySampler(model, tokenizer)
    practice = EpisodeRollouts(sampler, arena, games, settings.group, settings.temperature)
    try:
        return improve(model, practice, settings, progress, look)
    finally:
        practice.close()
        sampler.close()
