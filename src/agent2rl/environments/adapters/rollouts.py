"""Play many episodes with a policy, with all live episodes in one batch per turn.

    def policy(conversations):
        return [model_says(conversation.messages()) for conversation in conversations]

    for episode in rollout(policy, 64, seed=0):
        print(episode.game, episode.reward, episode.steps)

The policy returns one action for each live episode, given its turns so far. When an episode ends, the next
one takes its slot, so the batches stay full.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

from agent2rl.core.environment import ExpertPolicy, World
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import TrajectoryTurn
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import EpisodeSlot, GameSelector, open_world
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

MAX_LIVE_EPISODES = 256
"""Default number of episodes that are played at the same time."""


@dataclass(eq=False)
class EpisodeConversation:
    """A live episode as the policy sees it."""

    number: int
    """Index of the episode among all requested ones: the same in every batch."""
    game: str
    turns: list[TrajectoryTurn] = field(default_factory=list)
    """The first has no action, only the first observation. The policy answers the last one."""

    def messages(self, preface: str = "") -> list[dict[str, str]]:
        """Return the turns as a chat: observations from the user, actions from the assistant.

        A preface is put before the first observation.
        """
        first, *rest = self.turns
        content = f"{preface}\n\n{first.observation}" if preface else first.observation
        chat = [{"role": "user", "content": content}]
        for turn in rest:
            chat.append({"role": "assistant", "content": turn.action})
            chat.append({"role": "user", "content": turn.observation})
        return chat


@dataclass(frozen=True)
class PlayedEpisode:
    """A finished episode."""

    game: str
    turns: tuple[TrajectoryTurn, ...]
    reward: float
    won: bool
    steps: int

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """Pairs of an observation and the action that answered it, in order."""
        answered = zip(self.turns, self.turns[1:], strict=False)
        return [(seen.observation, turn.action) for seen, turn in answered]


Policy = Callable[[Sequence[EpisodeConversation]], Sequence[str]]


def rollout(
    policy: Policy,
    n: int,
    *,
    world: World | None = None,
    games: Sequence[str] | None = None,
    seed: int | None = None,
    live: int = MAX_LIVE_EPISODES,
) -> list[PlayedEpisode]:
    """Play n episodes: of the named games in turn, repeating them, or else in an order set by the seed."""
    world = world or open_world()
    selector = GameSelector(world)
    chosen = cycle([selector.find_game(name) for name in games]) if games else selector.iter_shuffled(seed)
    waiting = deque(enumerate(islice(chosen, n)))
    free = [ROLLOUT_REPORTER.open_slot(world) for _ in range(min(live, n))]
    playing: list[tuple[EpisodeConversation, EpisodeSlot]] = []
    done: dict[int, PlayedEpisode] = {}
    while waiting or playing:
        while waiting and free:
            playing.append(_begin_episode(*waiting.popleft(), free.pop()))
        waiting_for_policy = [conversation for conversation, slot in playing if not slot.over]
        actions = iter(_ask_policy(policy, waiting_for_policy))
        alive = []
        for conversation, slot in playing:
            if not slot.over:
                action = next(actions)
                observation = slot.step(action).observation
                conversation.turns.append(TrajectoryTurn(action=action, observation=observation))
            if slot.over:
                done[conversation.number] = _finish_episode(conversation, slot)
                free.append(slot)
            else:
                alive.append((conversation, slot))
        playing = alive
    for slot in free:
        slot.close()
    return [done[number] for number in range(len(done))]


def play_expert_episodes(
    n: int,
    *,
    world: World | None = None,
    games: Sequence[str] | None = None,
    seed: int | None = None,
    live: int = MAX_LIVE_EPISODES,
) -> list[PlayedEpisode]:
    """Play n episodes with the world's expert, which does not win all of them."""
    world = world or open_world()
    make_expert = world.expert
    if make_expert is None:
        raise UserError(
            "This world has no expert.",
            "Read data/demonstrations.jsonl if there is one, or use rollout() with a policy of your own.",
        )
    experts: dict[int, ExpertPolicy] = {}

    def policy(conversations: Sequence[EpisodeConversation]) -> list[str]:
        for conversation in conversations:
            if len(conversation.turns) == 1:
                experts[conversation.number] = make_expert()
        return [
            experts[conversation.number].act(conversation.turns[-1].observation)
            for conversation in conversations
        ]

    return rollout(policy, n, world=world, games=games, seed=seed, live=live)


demonstrations = play_expert_episodes
"""The former name, which programs of earlier runs use."""


def _begin_episode(number: int, game: Example, slot: EpisodeSlot) -> tuple[EpisodeConversation, EpisodeSlot]:
    observation = slot.reset(game).observation
    return EpisodeConversation(number, game.id, [TrajectoryTurn(action="", observation=observation)]), slot


def _ask_policy(policy: Policy, conversations: list[EpisodeConversation]) -> Sequence[str]:
    actions = policy(conversations) if conversations else []
    if len(actions) != len(conversations) or not all(isinstance(action, str) for action in actions):
        raise UserError(
            f"The policy must return {len(conversations)} actions as text; it returned {len(actions)}."
        )
    return actions


def _finish_episode(conversation: EpisodeConversation, slot: EpisodeSlot) -> PlayedEpisode:
    return PlayedEpisode(conversation.game, tuple(conversation.turns), slot.reward, slot.won, slot.steps)
