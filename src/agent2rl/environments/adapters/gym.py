"""A world as a gym: `reset` and `step` with Gymnasium's signatures, without depending on it.

    gym = Gym(open_world())
    observation, info = gym.reset(seed=0)
    observation, reward, terminated, truncated, info = gym.step("look")

Texts in and out. `terminated` says that the world is done, won or lost; `truncated` that the steps are used
up. `info` has `game` (its id), `steps` and `won`. Not covered: spaces, rendering.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import GameSelector, open_world
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

Info = dict[str, Any]


class Gym:
    """One episode after another."""

    def __init__(self, world: World | None = None, seed: int | None = None) -> None:
        world = world or open_world()
        self._games = GameSelector(world)
        self._order: Iterator[Example] = self._games.iter_shuffled(seed)
        self._seat = ROLLOUT_REPORTER.open_slot(world)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, Info]:
        """The game that `options={"game": id}` names, else the next in the order that a seed begins."""
        if seed is not None:
            self._order = self._games.iter_shuffled(seed)
        _check_options(options, "game")
        named = (options or {}).get("game")
        step = self._seat.reset(next(self._order) if named is None else self._games.find_game(named))
        return step.observation, self._build_info(step)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        step = self._seat.step(action)
        return step.observation, step.reward, step.done and not step.cut, step.cut, self._build_info(step)

    def close(self) -> None:
        self._seat.close()

    def _build_info(self, step: EnvironmentStep) -> Info:
        seat = self._seat
        return {"game": seat.game.id if seat.game else "", "steps": seat.steps, "won": step.won}


class Gyms:
    """Many episodes at once, in lists of one length.

    An episode that ends is followed by the next within the same step (Gymnasium's SAME_STEP): reward,
    terminated and truncated are those of the episode that ended, the observation is the first of the next
    one, and its info has beside the new `game` what ended as `final_obs` and `final_info`. Infos are a list
    of dictionaries, one for each episode.
    """

    def __init__(self, count: int, world: World | None = None, seed: int | None = None) -> None:
        if count < 1:
            raise UserError(f"{count} gyms are none.")
        world = world or open_world()
        self._gyms = [Gym(world, _derive_seed(seed, number)) for number in range(count)]

    def __len__(self) -> int:
        return len(self._gyms)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[str], list[Info]]:
        """All anew; `options={"games": ids}` names one for each. Each gym has its own order of games."""
        _check_options(options, "games")
        games = (options or {}).get("games") or [None] * len(self)
        begun = [
            gym.reset(seed=_derive_seed(seed, number), options={"game": game})
            for number, (gym, game) in enumerate(zip(self._gyms, self._check_length(games), strict=True))
        ]
        return [seen for seen, _ in begun], [info for _, info in begun]

    def step(
        self, actions: Sequence[str]
    ) -> tuple[list[str], list[float], list[bool], list[bool], list[Info]]:
        acted = [
            _step_and_reset(gym, action)
            for gym, action in zip(self._gyms, self._check_length(actions), strict=True)
        ]
        seen, rewards, terminated, truncated, infos = zip(*acted, strict=True)
        return list(seen), list(rewards), list(terminated), list(truncated), list(infos)

    def close(self) -> None:
        for gym in self._gyms:
            gym.close()

    def _check_length(self, given: Sequence[Any]) -> Sequence[Any]:
        if len(given) != len(self):
            raise UserError(f"There are {len(self)} gyms, and {len(given)} of what each wants one of.")
        return given


def _step_and_reset(gym: Gym, action: str) -> tuple[str, float, bool, bool, Info]:
    seen, reward, terminated, truncated, info = gym.step(action)
    if terminated or truncated:
        final = {"final_obs": seen, "final_info": info}
        seen, info = gym.reset()
        info |= final
    return seen, reward, terminated, truncated, info


def _derive_seed(seed: int | None, number: int) -> int | None:
    """A seed of its own for each gym."""
    return None if seed is None else seed * 1_000_003 + number


def _check_options(options: Mapping[str, Any] | None, name: str) -> None:
    strange = sorted(set(options or {}) - {name})
    if strange:
        raise UserError(f"There is no option {strange[0]!r}: the one there is, is {name!r}.")
