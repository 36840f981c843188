"""The homes of ALFWorld in miniature: games that can be won, in splits that share no more than words."""

import hashlib
import json
import lzma
import random
from collections import Counter
from functools import cache
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts.seedling import words

from agent2rl.core.errors import UserError
from agent2rl.environments.alfworld import NOTHING, AlfworldEpisode, AlfworldGame
from agent2rl.environments.alfworld.expert import AlfworldExpert
from agent2rl.environments.alfworld.pddl import TaskType
from agent2rl.tasks.alfworld.homes import (
    GeneratedHome,
    find_walkthrough,
    generate_homes,
    read_domain,
    write_grammar,
    write_problem,
    write_task_sentence,
)
from agent2rl.tasks.alfworld.layout import (
    FIXTURES,
    LAMP,
    LEVELS,
    OPENABLE,
    ROOMS,
    TASK_TYPES,
    THINGS,
    HomeDifficulty,
    Part,
    furnish_home,
)

SPLITS: tuple[Part, ...] = get_args(Part)
TRACES = Path(__file__).with_name("alfworld_mini_traces.jsonl.xz")
COUNTS: dict[Part, int] = {"train": 1000, "feedback": 300, "heldout": 300}


@cache
def generated(level: str, split: Part) -> list[tuple[GeneratedHome, AlfworldGame]]:
    count = COUNTS[split] if level == "easy" else 60
    return [
        (home, AlfworldGame.from_data(home.data, home.id))
        for home in generate_homes(split, count, LEVELS[level])
    ]


def all_games() -> list[tuple[Part, GeneratedHome, AlfworldGame]]:
    return [(split, *one) for level in LEVELS for split in SPLITS for one in generated(level, split)]


def steps(game: AlfworldGame, limit: int) -> int:
    """How many the expert takes; more than the limit where it does not win."""
    play, expert = AlfworldEpisode(game), AlfworldExpert()
    for taken in range(limit + 1):
        if play.won:
            return taken
        play.step(expert.act(play.observation))
    return limit + 1


def pair(home: GeneratedHome) -> tuple[str, str]:
    """The kinds of the thing and of the place that a goal is about, after its name."""
    _, thing, _, place, _ = home.id.partition("/")[0].split("-")
    return thing.lower(), place.lower()


def room(game: AlfworldGame) -> tuple[str, ...]:
    return tuple(sorted(game.house.fixture_types))


def test_every_walkthrough_wins_with_its_last_command_and_not_before() -> None:
    for _, home, game in all_games():
        play, won = AlfworldEpisode(game), []
        for command in game.walkthrough:
            won.append(play.won)
            assert play.step(command) != NOTHING, (home.id, command)
        assert not any(won), home.id
        assert play.won, home.id


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_wins_every_easy_game_within_twenty_steps_from_its_texts_alone(split: Part) -> None:
    taken = [steps(game, 20) for _, game in generated("easy", split)]
    assert max(taken) <= 20
    assert sum(taken) / len(taken) <= 8


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_the_expert_wins_harder_games_too_in_more_steps(level: str) -> None:
    games = [game for split in SPLITS for _, game in generated(level, split)]
    taken = [steps(game, 50) for game in games if game.task_type in TASK_TYPES]
    easy = [steps(game, 50) for split in SPLITS for _, game in generated("easy", split)[:60]]
    assert max(taken) <= 50
    assert fmean(taken) > fmean(easy)


def test_no_walkthrough_is_longer_than_what_the_expert_needs() -> None:
    for _, home, game in all_games()[::7]:
        assert len(game.walkthrough) <= steps(game, 60), home.id


def test_the_six_types_take_turns() -> None:
    for split in SPLITS:
        types = [game.task_type for _, game in generated("easy", split)]
        assert types == [TASK_TYPES[number % 6] for number in range(len(types))]


def test_names_are_unique_and_tell_the_task() -> None:
    every = [home.id for split in SPLITS for home, _ in generated("easy", split)]
    assert len(set(every)) == len(every)
    for _, home, game in all_games():
        thing, place = pair(home)
        assert home.id.startswith(f"{game.task_type}-")
        assert thing in game.task
        assert game.task.endswith(f" the {place}.")


def test_no_two_homes_are_alike() -> None:
    every = [str(home.data["pddl_problem"]) for _, home, _ in all_games()]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("splits", list(combinations(SPLITS, 2)))
def test_two_splits_share_neither_rooms_nor_goals(splits: tuple[Part, Part]) -> None:
    rooms = [{room(game) for split, _, game in all_games() if split == name} for name in splits]
    pairs = [{pair(home) for split, home, _ in all_games() if split == name} for name in splits]
    assert min(len(pairs[0]), len(pairs[1])) > 40
    assert not rooms[0] & rooms[1]
    assert not pairs[0] & pairs[1]


def test_every_kind_is_met_in_training() -> None:
    def met(split: Part) -> set[str]:
        houses = [game.house for _, game in generated("easy", split)]
        return {kind for house in houses for kind in (*house.thing_types, *house.fixture_types)}

    assert met("train") >= met("feedback") | met("heldout")
    assert met("train") == {f"{kind}type" for kind in (*THINGS, *FIXTURES)}
    assert {pair(home)[0] for home, _ in generated("easy", "train")} == {*THINGS} - {LAMP}


def test_kinds_are_words_that_the_seedling_has_read() -> None:
    assert {*THINGS} <= {*words.THING}
    assert {*FIXTURES} <= {*words.RECEPTACLES}


def test_every_fixture_of_every_room_can_hold_several_kinds_of_things() -> None:
    for name, fixtures in ROOMS.items():
        for fixture in fixtures:
            assert sum(name in kind.rooms and fixture in kind.places for kind in THINGS.values()) >= 2


def test_the_same_homes_come_each_time_and_fewer_are_the_first_of_more() -> None:
    def digest(split: Part) -> str:
        first = [(home.id, home.data) for home in generate_homes(split, 12)]
        return hashlib.sha256(json.dumps(first).encode()).hexdigest()

    assert [digest(split) for split in SPLITS] == [
        "0af971149dfc64b489de28ea754ac49a58662e4e844f009f88e823115d2af806",
        "655f30b391b82dd8194d150590b0182b96b013a496c151fe98475babf6c5a452",
        "68154c37c61d214933dd85a04c4b6fb09c2e9ac7a7bbe599164f7613496cbb66",
    ]
    assert generate_homes("train", 12) == tuple(home for home, _ in generated("easy", "train")[:12])


def test_files_are_small() -> None:
    sizes = [len(json.dumps(home.data)) for home, _ in generated("easy", "train")]
    assert sum(sizes) / len(sizes) < 11_500
    assert max(sizes) < 12.5 * 1024


def test_a_home_reads_in_short_sentences() -> None:
    home = generate_homes("train", 5)[-1]
    assert home.id == "pick_cool_then_place_in_recep-Apple-None-Sink-1/trial_0004"
    play = AlfworldEpisode(AlfworldGame.from_data(home.data, home.id))
    said = [play.observation, *map(play.step, play.game.walkthrough), play.step("look")]
    assert said == [
        (
            "You are in a room. You see a drawer 1, a fridge 1, a microwave 1, and a sink 1."
            " Your task is to: cool an apple and put it in the sink."
        ),
        "The fridge 1 is closed.",
        "In the fridge 1, you see a apple 2, a apple 1, and a pot 1.",
        "You pick up the apple 1 from the fridge 1.",
        "The apple 1 is cool.",
        "On the sink 1, you see a bowl 1.",
        "You move the apple 1 to the sink 1.",
        "You are at the sink 1. Beside it: nothing.",
    ]


def test_difficulty_sets_how_much_there_is() -> None:
    for level, limits in LEVELS.items():
        for split in SPLITS:
            for _, game in generated(level, split):
                alike = len(game.goal.things) - game.goal.count
                assert limits.fixtures[0] <= len(game.house.fixtures) <= limits.fixtures[1]
                assert limits.things[0] <= len(game.house.things) <= limits.things[1]
                assert limits.alike[0] <= alike <= limits.alike[1]


def test_difficulty_sets_how_much_is_closed() -> None:
    def closed(difficulty: HomeDifficulty) -> Counter[str]:
        games = [AlfworldGame.from_data(home.data) for home in generate_homes("train", 60, difficulty)]
        facts = [facts for game in games for facts in game.house.fixture_facts]
        return Counter(
            "open" if "opened" in one else "shut" if "openable" in one else "flat" for one in facts
        )

    assert closed(HomeDifficulty(shut=0.0))["shut"] == 0
    assert closed(HomeDifficulty(shut=1.0))["open"] == 0
    assert closed(HomeDifficulty(openable=1.0))["flat"] < closed(HomeDifficulty(openable=0.0))["flat"]
    assert {*FIXTURES} > OPENABLE


@pytest.mark.parametrize(
    "wrong",
    [{"fixtures": (2, 4)}, {"fixtures": (6, 5)}, {"things": (3, 21)}, {"alike": (-1, 0)}, {"shut": 1.5}],
)
def test_a_difficulty_that_no_home_can_have_is_refused(wrong: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(UserError):
        HomeDifficulty(**wrong)  # type: ignore[arg-type]


def ranges(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    number = st.integers(least, most)
    return st.tuples(number, number).map(lambda both: (min(both), max(both)))


DIFFICULTIES = st.builds(
    HomeDifficulty,
    fixtures=ranges(3, 12),
    things=ranges(3, 20),
    alike=ranges(0, 3),
    openable=st.floats(0, 1),
    shut=st.floats(0, 1),
)


@settings(max_examples=150)
@given(st.integers(), st.sampled_from(TASK_TYPES), st.sampled_from(SPLITS), DIFFICULTIES)
def test_any_home_can_be_won_by_its_walkthrough_and_by_the_expert(
    seed: int, task: TaskType, split: Part, difficulty: HomeDifficulty
) -> None:
    dice = random.Random(seed)
    layout = furnish_home(dice, task, split, difficulty)
    game = AlfworldGame.from_data(
        {
            "pddl_domain": read_domain(),
            "grammar": write_grammar(write_task_sentence(dice, layout.goal)),
            "pddl_problem": write_problem(layout),
            "walkthrough": find_walkthrough(layout),
        }
    )
    play = AlfworldEpisode(game)
    at_first = play.won
    assert sorted(game.house.fixtures) == sorted(layout.fixtures)
    assert sorted(game.house.things) == sorted(layout.things)
    assert NOTHING not in [play.step(command) for command in game.walkthrough]
    assert (at_first, play.won) == (False, True)
    assert steps(game, 50) <= 50


def test_the_official_engine_shows_the_same_in_these_homes() -> None:
    with lzma.open(TRACES, "rt", encoding="utf-8") as lines:
        traces = [json.loads(line) for line in lines]
    played = {(trace["level"], trace["split"], trace["id"].partition("-")[0]) for trace in traces}
    assert played == {
        (level, split, kind)
        for level, split in product(("easy", "hard"), SPLITS)
        for kind in LEVELS[level].list_task_types(split)
    }
    for trace in traces:
        home = generate_homes(trace["split"], trace["number"] + 1, LEVELS[trace["level"]])[-1]
        written = hashlib.sha256(json.dumps(home.data).encode()).hexdigest()
        assert written == trace["sha256"], "the homes have changed: run benchmarks/alfworld_traces.py anew"
        play = AlfworldEpisode(AlfworldGame.from_data(home.data, home.id))
        for step in trace["steps"]:
            if step["command"] is not None:
                play.step(step["command"])
            seen = (play.observation, play.commands, play.won)
            assert seen == (step["text"], step["admissible"], step["won"]), (home.id, step["command"])
