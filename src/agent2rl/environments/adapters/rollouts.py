"""Plays many episodes with a policy, all live ones in one batch for each turn.

    def policy(conversations):
        return [model_says(conversation.messages()) for conversation in conversations]

    for episode in rollout(policy, 64, seed=0):
        print(episode.game, episode.reward, episode.steps)

The policy is asked for an action for each live episode, given its turns so far. An episode that ends makes
room for the next that waits, so the batches stay full.
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
"""Episodes that are played at once, unless the caller says otherwise."""


@dataclass(eq=False)
class EpisodeConversation:
    """A live episode as the policy sees it."""

    number: int
    """Of the episode among all that are asked for: the same in every batch."""
    game: str
    turns: list[TrajectoryTurn] = field(default_factory=list)
    """The first has no action: it is what is seen first. The last one wants an answer."""

    def messages(self, preface: str = "") -> list[dict[str, str]]:
        """As a chat: what was seen is the user's, what was done the model's; a preface comes first."""
        first, *rest = self.turns
        seen = f"{preface}\n\n{first.observation}" if preface else first.observation
        chat = [{"role": "user", "content": seen}]
        for turn in rest:
            chat.append({"role": "assistant", "content": turn.action})
            chat.append({"role": "user", "content": turn.observation})
        return chat


@dataclass(frozen=True)
class PlayedEpisode:
    """What was played."""

    game: str
    turns: tuple[TrajectoryTurn, ...]
    reward: float
    won: bool
    steps: int


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
    """Play n episodes: of the games named, in turn and over again, or in an order that the seed decides."""
    world = world or open_world()
    known = GameSelector(world)
    chosen = cycle([known.find_game(name) for name in games]) if games else known.iter_shuffled(seed)
    waiting = deque(enumerate(islice(chosen, n)))
    free = [ROLLOUT_REPORTER.open_slot(world) for _ in range(min(live, n))]
    playing: list[tuple[EpisodeConversation, EpisodeSlot]] = []
    done: dict[int, PlayedEpisode] = {}
    while waiting or playing:
        while waiting and free:
            playing.append(_begin_episode(*waiting.popleft(), free.pop()))
        talking = [conversation for conversation, seat in playing if not seat.over]
        actions = iter(_ask_policy(policy, talking))
        alive = []
        for conversation, seat in playing:
            if not seat.over:
                action = next(actions)
                seen = seat.step(action).observation
                conversation.turns.append(TrajectoryTurn(action=action, observation=seen))
            if seat.over:
                done[conversation.number] = _finish_episode(conversation, seat)
                free.append(seat)
            else:
                alive.append((conversation, seat))
        playing = alive
    for seat in free:
        seat.close()
    return [done[number] for number in range(len(done))]


def demonstrations(
    n: int,
    *,
    world: World | None = None,
    games: Sequence[str] | None = None,
    seed: int | None = None,
    live: int = MAX_LIVE_EPISODES,
) -> list[PlayedEpisode]:
    """Episodes that the world's expert plays; it does not win all of them."""
    world = world or open_world()
    hire = world.expert
    if hire is None:
        raise UserError(
            "This world has no expert to show how it is played.", "Learn from your own episodes: rollout()."
        )
    experts: dict[int, ExpertPolicy] = {}

    def policy(conversations: Sequence[EpisodeConversation]) -> list[str]:
        for conversation in conversations:
            if len(conversation.turns) == 1:
                experts[conversation.number] = hire()
        return [experts[each.number].act(each.turns[-1].observation) for each in conversations]

    return rollout(policy, n, world=world, games=games, seed=seed, live=live)


def _begin_episode(number: int, game: Example, seat: EpisodeSlot) -> tuple[EpisodeConversation, EpisodeSlot]:
    seen = seat.reset(game).observation
    return EpisodeConversation(number, game.id, [TrajectoryTurn(action="", observation=seen)]), seat


def _ask_policy(policy: Policy, talking: list[EpisodeConversation]) -> Sequence[str]:
    actions = policy(talking) if talking else []
    if len(actions) != len(talking) or not all(isinstance(action, str) for action in actions):
        raise UserError(f"The policy was asked for {len(talking)} texts and gave {len(actions)} things.")
    return actions


def _finish_episode(conversation: EpisodeConversation, seat: EpisodeSlot) -> PlayedEpisode:
    return PlayedEpisode(conversation.game, tuple(conversation.turns), seat.reward, seat.won, seat.steps)
