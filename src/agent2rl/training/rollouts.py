"""Train in an environment: prompts, expert demonstrations to imitate, and GRPO on the model's episodes.

The caller passes the environment and the prompts (a `WorldSetup`), with the same values as the grader: this
package knows neither tasks nor evaluators.

Demonstrations are the games that the expert wins. A game that outgrows the model's context is used as far as
it fits. Not covered: games in which the expert is wrong at first, or takes over from the model.

All episodes of a step are played at the same time by the engine's own conversations, and no episode waits
for the turn of another. So the model reads and generates exactly the tokens that it would in grading with the
same seed. The reward of an episode is the largest reward of its steps, as in grading. An episode ends when
the environment ends it, when the conversation outgrows the model's context, or after the setup's most turns.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage, Completion, Sampling
from agent2rl.core.environment import Environment, EnvironmentStep, ExpertPolicy
from agent2rl.core.task import Example
from agent2rl.training.conversations import (
    EncodingProgress,
    ObservationFormatter,
    encode_batch,
    open_prompt_encoder,
    require_end_token,
)
from agent2rl.training.grpo import GrpoResult, GrpoRollout, GrpoSettings, RolloutJob, train_on_rollouts
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.policy import TrainingSequence, build_sequences
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sampling import PolicySampler

# The environment with its prompts, as in grading


@dataclass(frozen=True)
class WorldSetup:
    world: Callable[[], Environment]
    """Makes an environment; many are used at the same time."""
    prompt: ObservationFormatter
    action: Callable[[str], str]
    """Extracts the action from a reply."""
    sampling: Sampling
    """Length limit and stop strings of a reply; its temperature and seed are not used."""
    kind: Callable[[Example], str] = lambda _: ""
    """Returns the kind of a game, if kinds have different prompts."""
    most_turns: int | None = None
    """Rollouts end after so many turns, if the environment does not end them before."""


Arena = WorldSetup
"""The name that earlier programs import."""


# An expert's games as training sequences: the tokens that the model would read in grading, and its replies


def encode_expert_games(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    setup: WorldSetup,
    expert: Callable[[], ExpertPolicy],
    games: Sequence[Example],
) -> Iterator[tuple[TrainingSequence, ...]]:
    """Yield the training sequences of each game that the expert wins, as the games are played."""
    encoder = open_prompt_encoder(model, tokenizer).select_encoder(setup.sampling)
    environment = setup.world()
    progress = EncodingProgress("expert games", len(games))
    try:
        for game in games:
            if chat := _play_expert_game(environment, expert(), game, setup, encoder.templated):
                (sequences,) = encode_batch(encoder, [chat], require_end_token(tokenizer))
                progress.add_rows(len(sequences))
                yield sequences
            progress.finish_chats(1)
    finally:
        environment.close()
        encoder.close()


demonstrations = encode_expert_games
"""The former name, which programs of earlier runs use."""


def _play_expert_game(
    environment: Environment, expert: ExpertPolicy, game: Example, setup: WorldSetup, as_chat: bool
) -> Chat:
    """Return the conversation of a game up to the winning action, or an empty one if the game is not won."""
    step = environment.reset(game)
    chat: Chat = ()
    won: Chat = ()
    messages = setup.prompt.build_first_message(step.observation, as_chat, setup.kind(game))
    while not step.done:
        action = expert.act(step.observation)
        chat = (*chat, *messages, ChatMessage("assistant", action))
        step = environment.step(action)
        messages = setup.prompt.build_next_message(step.observation, as_chat)
        if step.won:
            won = chat
    return won


@dataclass
class RolloutEpisode:
    """One game that is being played."""

    name: str
    """The same as in the grader, so that the random numbers are the same."""
    place: Environment
    seen: Chat
    """The first messages."""
    reward: float = 0.0
    won: bool = False
    over: bool = False
    turns: int = 0


class EpisodeRollouts:
    """The games of a world as rollouts for GRPO."""

    def __init__(
        self,
        sampler: PolicySampler,
        setup: WorldSetup,
        games: Sequence[Example],
        group: int,
        temperature: float = 1.0,
    ) -> None:
        self._sampler, self._arena, self._games = sampler, setup, games
        self._group, self._temperature = group, temperature
        self._places: list[Environment] = []
        """Environments that are free."""

    def __len__(self) -> int:
        return len(self._games)

    def sample_rollouts(self, job: RolloutJob) -> list[list[GrpoRollout]]:
        return self.play_games([self._games[i] for i in job.indices], job.seed)

    def reward(self, index: int, attempt: GrpoRollout) -> float:  # noqa: ARG002
        return attempt.reward

    def play_games(self, games: Sequence[Example], seed: int) -> list[list[GrpoRollout]]:
        """Play a group of episodes of each game."""
        conversations = self._sampler.start_conversations()
        numbers: Counter[str] = Counter()  # a game may occur twice
        groups = [[self._start_episode(game, numbers) for _ in range(self._group)] for game in games]
        episodes = [episode for group in groups for episode in group]
        sampling = replace(self._arena.sampling, temperature=self._temperature, seed=seed)
        playing = {episode.name: episode for episode in episodes if not episode.over}

        def answer(name: str, reply: Completion) -> Chat:
            return self._apply_action(playing[name], reply)

        conversations.play({name: episode.seen for name, episode in playing.items()}, answer, sampling)
        self._sampler.release_gpu_memory()
        self._places += [episode.place for episode in episodes]
        return [
            [
                GrpoRollout(
                    build_sequences(
                        (turn.read, turn.reply, turn.log_probs)
                        for turn in conversations.turns.get(episode.name, [])
                    ),
                    reward=episode.reward,
                    won=episode.won,
                )
                for episode in group
            ]
            for group in groups
        ]

    def close(self) -> None:
        for place in self._places:
            place.close()
        self._places = []

    def _start_episode(self, game: Example, numbers: Counter[str]) -> RolloutEpisode:
        environment = self._places.pop() if self._places else self._arena.world()
        step = environment.reset(game)
        kind = self._arena.kind(game)
        seen = self._arena.prompt.build_first_message(step.observation, self._sampler.templated, kind)
        name = f"{game.id}#{numbers[game.id]}"
        numbers[game.id] += 1
        return RolloutEpisode(name, environment, seen, step.reward, step.won, step.done)

    def _apply_action(self, episode: RolloutEpisode, reply: Completion) -> Chat:
        """Take the action of a reply; return what the model reads next, or nothing if the episode is over."""
        if reply.full:
            return ()
        step: EnvironmentStep = episode.place.step(self._arena.action(reply.text))
        episode.reward = max(episode.reward, step.reward)
        episode.won = episode.won or step.won
        episode.turns += 1
        if step.done or episode.turns == self._arena.most_turns:
            return ()
        return self._arena.prompt.build_next_message(step.observation, self._sampler.templated)


def grpo_in_world(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    setup: WorldSetup,
    games: Sequence[Example],
    settings: GrpoSettings,
    progress: TrainingProgress,
    after_step: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place on episodes that it plays: `settings.prompts` games a step."""
    sampler = PolicySampler(model, tokenizer, fused=True)
    rollouts = EpisodeRollouts(sampler, setup, games, settings.group, settings.temperature)
    try:
        return train_on_rollouts(model, rollouts, settings, progress, after_step)
    finally:
        rollouts.close()
        sampler.close()
