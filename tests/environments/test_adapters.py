"""A world's training games as gyms, rollouts and demonstrations: the same engine, whoever plays."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import (
    EpisodeConversation,
    Gym,
    Gyms,
    StepsUsedUp,
    open_world,
    play_expert_episodes,
    rollout,
)
from agent2rl.environments.alfworld import AlfworldEpisode, AlfworldGame
from tests.helpers.small_worlds import STAIRS_GAMES, STAIRS_WORLD, write_alfworld_data
from tests.helpers.stairs_environment import MAX_STEPS

IDS = [game.id for game in STAIRS_GAMES]


def climb(conversations: Sequence[EpisodeConversation]) -> list[str]:
    return ["up"] * len(conversations)


def test_a_game_can_be_chosen_and_is_played_to_its_end() -> None:
    gym = Gym(STAIRS_WORLD)
    seen, info = gym.reset(options={"game": "stairs-2"})
    assert seen == "You stand on step 0. Climb to step 2."
    assert info == {"game": "stairs-2", "steps": 0, "won": False}
    assert gym.step("up")[1:4] == (0.0, False, False)
    seen, reward, terminated, truncated, info = gym.step("up")
    assert (seen, reward, terminated, truncated) == ("You stand on step 2.", 1.0, True, False)
    assert info == {"game": "stairs-2", "steps": 2, "won": True}
    with pytest.raises(UserError, match="reset"):
        gym.step("up")


def test_what_runs_out_of_steps_is_truncated_and_what_is_lost_is_terminated() -> None:
    gym = Gym(STAIRS_WORLD)
    gym.reset(options={"game": "stairs-8"})
    ends = [gym.step("wait")[2:4] for _ in range(MAX_STEPS)]
    assert ends == [(False, False)] * (MAX_STEPS - 1) + [(False, True)]
    gym.reset()
    assert gym.step("jump")[2:4] == (True, False)


@given(seed=st.integers(0, 2**64))
def test_a_seed_decides_the_order_and_every_game_comes_once_before_any_comes_again(seed: int) -> None:
    gym = Gym(STAIRS_WORLD, seed=seed)
    first = [gym.reset()[1]["game"] for _ in IDS]
    assert sorted(first) == sorted(IDS)
    again = [gym.reset(seed=seed)[1]["game"]] + [gym.reset()[1]["game"] for _ in IDS[1:]]
    assert again == first


@pytest.mark.parametrize(
    ("options", "says"),
    [({"game": "stairs-9"}, "such as 'stairs-1'"), ({"gmae": "stairs-1"}, "no option 'gmae'")],
)
def test_what_there_is_not_is_said_with_what_there_is(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Gym(STAIRS_WORLD).reset(options=options)


def test_gyms_begin_the_next_episode_in_the_step_that_ends_one() -> None:
    gyms = Gyms(3, STAIRS_WORLD, seed=1)
    seen, infos = gyms.reset(options={"games": ["stairs-1", "stairs-2", "stairs-8"]})
    assert [info["game"] for info in infos] == ["stairs-1", "stairs-2", "stairs-8"]
    seen, rewards, terminated, truncated, infos = gyms.step(["up", "up", "up"])
    assert rewards == [1.0, 0.0, 0.0]
    assert terminated == [True, False, False]
    assert truncated == [False] * 3
    assert seen[0].startswith("You stand on step 0. Climb")
    assert infos[0]["final_obs"] == "You stand on step 1."
    assert infos[0]["final_info"] == {"game": "stairs-1", "steps": 1, "won": True}
    assert infos[0]["steps"] == 0
    assert "final_obs" not in infos[1]
    gyms.close()


def test_gyms_of_one_seed_play_different_games_and_the_same_again() -> None:
    gyms = Gyms(4, STAIRS_WORLD)
    first = [[info["game"] for info in gyms.reset(seed=5)[1]] for _ in range(2)]
    assert first[0] == first[1]
    assert len(set(first[0])) > 1


def test_gyms_want_an_action_each() -> None:
    gyms = Gyms(2, STAIRS_WORLD)
    gyms.reset()
    with pytest.raises(UserError, match="Expected 2 values"):
        gyms.step(["up"])


@pytest.mark.parametrize("live", [1, 3, 256])
def test_a_rollout_gives_every_episode_in_order_however_many_play_at_once(live: int) -> None:
    batches: list[int] = []

    def policy(conversations: Sequence[EpisodeConversation]) -> list[str]:
        batches.append(len(conversations))
        return climb(conversations)

    episodes = rollout(policy, 10, world=STAIRS_WORLD, games=IDS, live=live)
    assert [episode.game for episode in episodes] == [*IDS, *IDS[:2]]
    assert [episode.won for episode in episodes] == [n <= MAX_STEPS for n in [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]]
    assert [episode.reward for episode in episodes] == [float(episode.won) for episode in episodes]
    assert [turn.action for turn in episodes[1].turns] == ["", "up", "up"]
    assert episodes[7].steps == MAX_STEPS
    assert max(batches) == min(live, 10)


def test_a_policy_sees_the_turns_so_far_as_a_chat() -> None:
    chats: list[list[dict[str, str]]] = []

    def policy(conversations: Sequence[EpisodeConversation]) -> list[str]:
        chats.extend(conversation.messages("Climb.") for conversation in conversations)
        return climb(conversations)

    rollout(policy, 1, world=STAIRS_WORLD, games=["stairs-2"])
    first = {"role": "user", "content": "Climb.\n\nYou stand on step 0. Climb to step 2."}
    done = {"role": "assistant", "content": "up"}
    assert chats == [[first], [first, done, {"role": "user", "content": "You stand on step 1."}]]


def test_a_seed_decides_the_games_of_a_rollout() -> None:
    first, again, other = (
        [episode.game for episode in rollout(climb, 8, world=STAIRS_WORLD, seed=seed)] for seed in (3, 3, 4)
    )
    assert first == again != other


@pytest.mark.parametrize("said", [[], ["up", "up"], [None]])
def test_a_policy_must_answer_with_one_text_for_each(said: list[str]) -> None:
    with pytest.raises(UserError, match="1 actions"):
        rollout(lambda _: said, 1, world=STAIRS_WORLD)


def test_the_expert_plays_demonstrations_where_there_is_one() -> None:
    shown = play_expert_episodes(3, world=STAIRS_WORLD, games=["stairs-3"])
    assert [(episode.won, episode.steps) for episode in shown] == [(True, 3)] * 3
    assert shown[0].exchanges == [
        ("You stand on step 0. Climb to step 3.", "up"),
        ("You stand on step 1.", "up"),
        ("You stand on step 2.", "up"),
    ]
    with pytest.raises(UserError, match="no expert"):
        play_expert_episodes(1, world=replace(STAIRS_WORLD, expert=None))


def test_the_world_of_the_run_is_opened_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_PATH", str(write_alfworld_data(tmp_path / "data")))
    games = [game.id for game in open_world().games]
    assert sorted(episode.game for episode in play_expert_episodes(6)) == sorted(games)
    assert Gym().reset()[1]["game"] in games
    monkeypatch.delenv("DATA_PATH")
    with pytest.raises(UserError, match="DATA_PATH"):
        Gym()


def test_a_gym_of_alfworld_says_what_the_bare_engine_says(tmp_path: Path) -> None:
    world = open_world(write_alfworld_data(tmp_path / "data", 3))
    gym = Gym(world)
    for game in world.games:
        play = AlfworldEpisode(AlfworldGame.load(tmp_path / "data" / "games" / game.id / "game.tw-pddl"))
        seen, _ = gym.reset(options={"game": game.id})
        assert seen == play.observation
        for number in range(20):
            action = play.commands[number % len(play.commands)]
            seen, _, terminated, truncated, info = gym.step(action)
            assert (seen, info["won"]) == (play.step(action), play.won)
            if terminated or truncated:
                break


def test_a_used_up_budget_is_told_from_one_process_to_another() -> None:
    told = pickle.loads(pickle.dumps(StepsUsedUp()))
    assert isinstance(told, StepsUsedUp)
    assert "used up" in str(told)


def test_the_world_of_eval_py_plays_the_training_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_alfworld_data(tmp_path / "data", 1)
    monkeypatch.setenv("DATA_PATH", str(data))
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(registry.find_task("alfworld-mini").evaluator.export_program(), namespace)  # type: ignore[attr-defined]
    (game,) = open_world().games
    assert namespace["EVALUATOR"].world().reset(game) == open_world().environment().reset(game)
