"""Training in a world: how it is put to the model, expert demonstrations to imitate, and GRPO on the model's
own episodes.

Who trains says both, with the values that the grader uses: this package knows neither worlds nor evaluators.

Only games that the expert wins are shown. One that outgrows the model's context is shown as far as it fits.
Not covered: games in which the expert is wrong at first, or takes over from the model.

All episodes of a step are played at once, a batch for each turn, by the engine's own conversations: what the
model reads and says is, token for token, what it would in grading with the same seed. An episode is worth the
largest reward of its steps, as in grading. It ends when the world says so, or when the conversation has
outgrown the model's context.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage, Completion, Sampling
from agent2rl.core.environment import Environment, EnvironmentStep, ExpertPolicy
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.training.grpo import GrpoResult, GrpoRollout, GrpoSettings, RolloutJob, improve
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.policy import TrainingSequence, build_sequences
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.sampling import PolicySampler, SampledConversations

# A world as a model meets it in grading: how it is told what it sees, and how its action is read.


class ObservationFormatter(Protocol):
    """Puts a world to a model that has a chat template, or continues text without one."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = "") -> Chat: ...

    def build_next_message(self, seen: str, as_chat: bool) -> Chat: ...


@dataclass(frozen=True)
class Arena:
    world: Callable[[], Environment]
    """A place to play in; many are used at once."""
    telling: ObservationFormatter
    action: Callable[[str], str]
    """The action in a reply."""
    sampling: Sampling
    """How long a reply may be, and what ends it; its temperature and seed are not used."""
    kind: Callable[[Example], str] = lambda _: ""
    """Of a game, where kinds are told in words of their own."""


# An expert's games as rows to imitate: the tokens that the model would read in grading, and what it
# should say to them.


def demonstrations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    arena: Arena,
    expert: Callable[[], ExpertPolicy],
    games: Sequence[Example],
) -> Iterator[tuple[TrainingSequence, ...]]:
    """What is said in each game that the expert wins, as the games are played."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    known = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    reader = PromptEncoder(tokenizer, known, context)
    place = arena.world()
    try:
        for game in games:
            if chat := _play_expert_game(place, expert(), game, arena, reader.templated):
                yield _encode_game(reader, chat, _require_end_token(tokenizer))
    finally:
        place.close()
        reader.close()


def _play_expert_game(
    place: Environment, expert: ExpertPolicy, game: Example, arena: Arena, as_chat: bool
) -> Chat:
    """The conversation of a game that is won, from the first observation to the last action; else none."""
    step = place.reset(game)
    chat: Chat = ()
    won: Chat = ()
    told = arena.telling.build_first_message(step.observation, as_chat, arena.kind(game))
    while not step.done:
        action = expert.act(step.observation)
        chat = (*chat, *told, ChatMessage("assistant", action))
        step = place.step(action)
        told = arena.telling.build_next_message(step.observation, as_chat)
        if step.won:
            won = chat
    return won


def _encode_game(reader: PromptEncoder, chat: Chat, end: int) -> tuple[TrainingSequence, ...]:
    replies = [place for place, message in enumerate(chat) if message.role == "assistant"]
    read = reader.encode_chats_unbounded([chat[:place] for place in replies])
    said = [[*reader.encode_text(chat[place].content), end] for place in replies]
    turns = zip(read, said, strict=True)
    return build_sequences(
        (before, reply) for before, reply in turns if len(before) + len(reply) <= reader.context
    )


def _require_end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise UserError("The tokenizer has no end-of-sequence token.", "Set tokenizer.eos_token.")
    return int(tokenizer.eos_token_id)


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
