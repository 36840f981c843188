"""The expert of ALFWorld: wins from the texts alone, and bears any text."""

import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.environments.alfworld import NOTHING, AlfworldEpisode, AlfworldGame
from agent2rl.environments.alfworld.expert import (
    PUTTING,
    AlfworldExpert,
    ParsedTask,
    estimate_find_rate,
    parse_task,
)
from agent2rl.record.files import extract_archive
from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.layout import LEVELS
from tests.helpers import alfworld_games

LIMIT = 50
TASKS = {
    "pick_and_place_simple": "put a mug in fridge.",
    "pick_clean_then_place_in_recep": "put a clean mug in table.",
    "pick_heat_then_place_in_recep": "heat some apple and put it in table.",
    "pick_cool_then_place_in_recep": "cool some apple and put it in shelf.",
    "look_at_obj_in_light": "look at apple under the desklamp.",
    "pick_two_obj_and_place": "find two mug and put them in cabinet.",
}
START = "You see a shelf 2, a shelf 1, and a cabinet 1.\n\nYour task is to: put two mug in cabinet."


def kitchen(goal: str, words: str = "new") -> AlfworldGame:
    data = alfworld_games.make_game(
        goal, words=alfworld_games.OLD_GRAMMAR if words == "old" else alfworld_games.GRAMMAR
    )
    grammar = str(data["grammar"]).replace("do as told.", TASKS[goal])
    return AlfworldGame.from_data({**data, "grammar": grammar})


def steps(game: AlfworldGame, expert: AlfworldExpert) -> int:
    """How many steps it took to win; more than the limit where it did not."""
    play = AlfworldEpisode(game)
    for taken in range(LIMIT):
        if play.won:
            return taken
        play.step(expert.act(play.observation))
    return LIMIT if play.won else LIMIT + 1


@pytest.mark.parametrize("words", ["new", "old"])
@pytest.mark.parametrize("goal", list(TASKS))
def test_every_type_of_task_is_won_in_either_spelling(goal: str, words: str) -> None:
    assert steps(kitchen(goal, words), AlfworldExpert()) <= 20


def test_the_old_spelling_costs_a_step_unless_it_is_said_before() -> None:
    game = kitchen("pick_two_obj_and_place", "old")
    assert steps(game, AlfworldExpert()) == steps(game, AlfworldExpert(putting=PUTTING[1])) + 1


def test_the_same_game_is_played_the_same_way() -> None:
    plays = []
    for _ in range(2):
        expert, play = AlfworldExpert(), AlfworldEpisode(kitchen("pick_two_obj_and_place"))
        plays.append([play.step(expert.act(play.observation)) for _ in range(10)])
    assert plays[0] == plays[1]


@pytest.mark.parametrize(
    ("sentence", "meant"),
    [
        ("put a pen in drawer.", ParsedTask("pen", "drawer")),
        ("put some handtowel on handtowelholder.", ParsedTask("handtowel", "handtowelholder")),
        ("put a clean cloth in drawer.", ParsedTask("cloth", "drawer", verb="clean")),
        ("clean some soapbar and put it in toilet.", ParsedTask("soapbar", "toilet", verb="clean")),
        ("put a hot egg in fridge.", ParsedTask("egg", "fridge", verb="heat")),
        ("heat some mug and put it in coffeemachine.", ParsedTask("mug", "coffeemachine", verb="heat")),
        ("put a cool pan in stoveburner.", ParsedTask("pan", "stoveburner", verb="cool")),
        ("cool some tomato and put it in microwave.", ParsedTask("tomato", "microwave", verb="cool")),
        ("put two cd in safe.", ParsedTask("cd", "safe", count=2)),
        ("find two pillow and put them in sofa.", ParsedTask("pillow", "sofa", count=2)),
        ("examine the book with the desklamp.", ParsedTask("book", lamp="desklamp")),
        ("look at bowl under the desklamp.", ParsedTask("bowl", lamp="desklamp")),
    ],
)
def test_every_official_phrasing_is_understood(sentence: str, meant: ParsedTask) -> None:
    assert parse_task(sentence) == meant


def test_it_looks_first_where_such_things_are_usually_found() -> None:
    room = (
        "You see a drawer 1, a garbagecan 1, a bed 1, and a desk 1. Your task is to: put some pillow on desk."
    )
    assert AlfworldExpert().act(room) == "go to bed 1"
    assert estimate_find_rate("no such thing", "shelf") > estimate_find_rate("no such thing", "drawer") > 0


def test_what_was_seen_on_the_way_is_fetched_without_a_search() -> None:
    expert = AlfworldExpert()
    expert.act("You see a sofa 1, a bed 1, and an armchair 1. Your task is to: put two pillow in armchair.")
    assert expert.act("On the bed 1, you see a pillow 2, and a pillow 1.") == "take pillow 2 from bed 1"
    assert expert.act("You pick up the pillow 2.") == "go to armchair 1"
    assert expert.act("On the armchair 1, you see nothing.") == "move pillow 2 to armchair 1"
    assert expert.act("You move the pillow 2 to the armchair 1.") == "go to bed 1"
    assert expert.act("On the bed 1, you see a pillow 1.") == "take pillow 1 from bed 1"


def test_a_fixture_in_the_same_place_is_examined_instead_of_gone_to() -> None:
    expert = AlfworldExpert()
    expert.act("You see a desk 1, and a shelf 1. Your task is to: put a pen in bed.")
    assert expert.act("On the desk 1, you see nothing.") == "go to shelf 1"
    assert expert.act(NOTHING) == "examine shelf 1"
    assert expert.act("On the shelf 1, you see a pen 3.") == "take pen 3 from shelf 1"


ANSWERS = st.one_of(
    st.text(),
    st.sampled_from(
        [
            "",
            NOTHING,
            START,
            "The cabinet 1 is closed.",
            "On the shelf 1, you see a mug 1, and a mug 2.",
            "In it, you see nothing.",
        ]
    ),
)


@given(st.one_of(st.text(), st.sampled_from([START, *TASKS.values()])), st.lists(ANSWERS, max_size=30))
def test_any_text_is_borne_and_answered_with_a_command(first: str, answers: list[str]) -> None:
    expert = AlfworldExpert()
    for text in (first, *answers):
        command = expert.act(text)
        assert command.strip() == command != ""
        assert "\n" not in command


@pytest.mark.parametrize(
    ("split", "every", "mean"),
    [("valid_seen", 1, 8), pytest.param("train", 20, 9, marks=pytest.mark.thorough)],
)
def test_official_games_are_won_from_their_texts_alone(
    split: str, every: int, mean: float, shared_data: Path, tmp_path: Path
) -> None:
    with tarfile.open(shared_data / "alfworld" / f"{split}.tar.xz") as archive:
        files = [member for member in archive if member.name.endswith("game.tw-pddl")][::every]
        extract_archive(archive, tmp_path, files)
    games = [AlfworldGame.load(file) for file in sorted(tmp_path.glob("**/game.tw-pddl"))]
    taken = [steps(game, AlfworldExpert()) for game in games]
    assert len(games) >= 140
    assert sum(count <= LIMIT for count in taken) >= 0.99 * len(games)
    assert sum(taken) / len(taken) < mean


def test_it_goes_on_from_what_another_did() -> None:
    for number, home in enumerate(generate_homes("train", 40, LEVELS["hard"])):
        chance, play, expert = (
            random.Random(number),
            AlfworldEpisode(AlfworldGame.from_data(home.data, home.id)),
            AlfworldExpert(),
        )
        for taken in range(LIMIT):
            said = expert.act(play.observation)
            if taken < 12:
                said = chance.choice([*play.commands, "go to narnia 1", "take it", "think: hm"])
                expert.replace_action(said)
            play.step(said)
            if play.won:
                break
        assert play.won, home.id
