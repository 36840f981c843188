"""ALFWorld's engine: against traces of the official one where these are at hand, on small houses anywhere."""

import importlib.util
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.alfworld import (
    NOTHING,
    AlfworldEnvironment,
    AlfworldEpisode,
    AlfworldGame,
    make_game_finder,
)
from agent2rl.record.files import extract_archive
from tests.helpers.alfworld_games import (
    GOALS,
    GRAMMAR,
    KITCHEN_FACTS,
    OLD_GRAMMAR,
    make_game,
    make_random_house,
)

ROOT = Path(__file__).resolve().parents[2]
WINS = {
    "pick_and_place_simple": "go to table 1; take mug 2 from table 1; go to fridge 1; open fridge 1;"
    " move mug 2 to fridge 1",
    "pick_clean_then_place_in_recep": "go to table 1; take mug 2 from table 1; go to sinkbasin 1;"
    " clean mug 2 with sinkbasin 1; go to table 1; move mug 2 to table 1",
    "pick_heat_then_place_in_recep": "go to table 1; take apple 1 from table 1; go to microwave 1;"
    " heat apple 1 with microwave 1; go to table 1; move apple 1 to table 1",
    "pick_cool_then_place_in_recep": "go to table 1; take apple 1 from shelf 1; go to fridge 1;"
    " cool apple 1 with fridge 1; go to shelf 1; move apple 1 to shelf 1",
    "look_at_obj_in_light": "go to table 1; take apple 1 from shelf 1; use desklamp 1",
    "pick_two_obj_and_place": "go to table 1; take mug 2 from table 1; go to cabinet 2; open cabinet 2;"
    " move mug 2 to cabinet 2",
}
ODD = (
    "",
    " ",
    "look at",
    "LOOK",
    "take",
    "go to",
    "go to  table 1",
    "examine table 01",
    "use table 1",
    "take {o}",
)


def play(*commands: str, **of: Any) -> AlfworldEpisode:
    """The kitchen, after some commands."""
    begun = AlfworldEpisode(AlfworldGame.from_data(make_game(**of)))
    for command in commands:
        assert begun.step(command) != NOTHING, command
    return begun


def official_games(archive: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with tarfile.open(archive) as files:
        for member in files:
            file = files.extractfile(member) if member.name.endswith("game.tw-pddl") else None
            if file:
                yield member.name, json.loads(file.read())


def test_every_text_command_and_victory_of_the_official_engine_is_met(shared_data: Path) -> None:
    folder = shared_data / "alfworld"
    games = dict(official_games(folder / "valid_seen.tar.xz"))
    with lzma.open(folder / "golden_valid_seen.jsonl.xz", "rt", encoding="utf-8") as lines:
        traces = [json.loads(line) for line in lines]
    assert sum(len(trace["steps"]) for trace in traces) == 3660
    for trace in traces:
        live = AlfworldEpisode(AlfworldGame.from_data(games[trace["game"]]))
        for step in trace["steps"]:
            if step["command"] is not None:
                live.step(step["command"])
            seen = (live.observation, live.commands, live.won)
            assert seen == (step["text"], step["admissible"], step["won"]), (trace["game"], step["command"])


@pytest.mark.timeout(7200)
def test_all_of_valid_seen_plays_as_in_the_official_engine_where_that_is_installed(
    shared_data: Path, tmp_path: Path
) -> None:
    """AGENT2RL_OFFICIAL_PYTHON names a Python that has it. It takes a quarter of an hour."""
    here = sys.executable if importlib.util.find_spec("textworld") else None
    python = os.environ.get("AGENT2RL_OFFICIAL_PYTHON", here)
    if python is None:
        pytest.skip("the official engine is not installed")
    with tarfile.open(shared_data / "alfworld" / "valid_seen.tar.xz") as archive:
        extract_archive(archive, tmp_path)
    script, games = ROOT / "benchmarks" / "alfworld_engine.py", tmp_path / "json_2.1.1" / "valid_seen"
    done = subprocess.run(
        [python, str(script), str(games), "--games", "140", "--steps", "10"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("split", "every", "count"),
    [("valid_seen", 1, 140), pytest.param("train", 5, 711, marks=pytest.mark.thorough)],
)
def test_official_games_load_and_are_won_by_their_walkthroughs(
    shared_data: Path, split: str, every: int, count: int
) -> None:
    """Every fifth of the training games: all 3,553 were seen to, and take a minute."""
    games = official_games(shared_data / "alfworld" / f"{split}.tar.xz")
    for name, data in islice(games, None, None, every):
        one = AlfworldGame.from_data(data)
        live = AlfworldEpisode(one)
        assert NOTHING not in [live.step(command) for command in one.walkthrough], name
        assert live.won, name
        assert f"/{one.task_type}-" in name
        count -= 1
    assert count == 0


def test_the_first_text_shows_the_house_and_the_task() -> None:
    assert play().observation == (
        "You are in a room. You see a cabinet 2, a cabinet 1, a fridge 1, a microwave 1, a shelf 1,"
        " a sinkbasin 1, and a table 1. Your task is to: do as told."
    )
    assert AlfworldGame.from_data(make_game()).task == "do as told."


def test_looking_around_before_the_first_move_shows_nothing() -> None:
    assert play().step("look") == "You are in a room. You see nothing."


def test_what_stands_in_one_place_is_in_reach_together() -> None:
    here = play("go to table 1")
    assert here.observation == "On the table 1, you see a apple 1, a desklamp 1, and a mug 2."
    assert here.step("look") == "You are at the shelf 1, and table 1. Beside it: nothing."
    assert here.step("go to shelf 1") == NOTHING
    assert here.step("examine shelf 1") == "On the shelf 1, you see a apple 1, a knife 1, and a plate 1."


def test_a_thing_that_is_listed_in_two_places_stays_in_the_other_when_it_is_taken() -> None:
    here = play("go to table 1", "take apple 1 from shelf 1")
    assert here.step("inventory") == "You are carrying: a apple 1."
    assert here.step("examine table 1") == "On the table 1, you see a apple 1, a desklamp 1, and a mug 2."
    assert here.step("take apple 1 from table 1") == NOTHING


def test_looking_lists_what_was_put_down_beside_where_it_was() -> None:
    here = play("go to table 1", "take mug 2 from table 1", "move mug 2 to shelf 1")
    assert here.step("look") == "You are at the shelf 1, and table 1. Beside it: a mug 2."
    back = play("go to table 1", "take mug 2 from table 1", "move mug 2 to table 1")
    assert back.step("look") == "You are at the shelf 1, and table 1. Beside it: nothing."


def test_only_what_is_in_hand_can_be_examined() -> None:
    here = play("go to table 1")
    assert here.step("examine knife 1") == NOTHING
    here.step("take knife 1 from shelf 1")
    assert here.step("examine knife 1") == "You see the knife 1."
    plate = play("go to table 1", "take plate 1 from shelf 1")
    assert plate.step("examine plate 1") == "In the plate 1, you see a knife 1."


def test_what_is_done_to_a_thing_can_be_seen() -> None:
    here = play(
        "go to table 1", "take mug 2 from table 1", "go to microwave 1", "heat mug 2 with microwave 1"
    )
    assert here.step("examine microwave 1") == "The microwave 1 is closed."
    assert here.step("examine mug 2") == "The mug 2 is hot."
    here.step("go to sinkbasin 1")
    assert here.step("clean mug 2 with sinkbasin 1") == "The mug 2 is clean."
    assert here.step("examine mug 2") == "The mug 2 is hot and clean."
    here.step("go to fridge 1")
    assert here.step("heat mug 2 with fridge 1") == NOTHING
    assert here.step("cool mug 2 with fridge 1") == "The mug 2 is cool."
    assert here.step("examine mug 2") == "The mug 2 is cool and clean."


def test_a_knife_in_hand_slices() -> None:
    here = play("go to table 1")
    assert here.step("slice apple 1 with knife 1") == NOTHING
    here.step("take knife 1 from shelf 1")
    assert here.step("slice mug 2 with knife 1") == NOTHING
    assert here.step("slice apple 1 with knife 1") == "The apple 1 is sliced."


def test_what_is_shut_must_be_opened_first() -> None:
    here = play("go to cabinet 2")
    assert here.observation == "The cabinet 2 is closed."
    assert here.step("take mug 1 from cabinet 2") == NOTHING
    assert here.step("open cabinet 2") == "In the cabinet 2, you see a mug 1."
    assert here.step("open cabinet 2") == NOTHING
    assert here.step("take mug 1 from cabinet 2") == "You pick up the mug 1 from the cabinet 2."
    assert here.step("close cabinet 2") == "The cabinet 2 is closed."
    assert here.step("move mug 1 to cabinet 2") == NOTHING


def test_white_space_around_a_command_is_all_that_is_forgiven() -> None:
    here = play()
    for odd in ("Look", "look around", "go to the table 1", "go  to table 1", "go to table 1.", "table 1"):
        assert here.step(odd) == NOTHING
    assert here.step(" go to table 1\n").startswith("On the table 1, ")


def test_both_spellings_of_putting_down_are_read_from_the_grammar() -> None:
    new, old = (
        play("go to table 1", "take mug 2 from table 1", words=words) for words in (GRAMMAR, OLD_GRAMMAR)
    )
    assert "move mug 2 to shelf 1" in new.commands
    assert "put mug 2 in/on shelf 1" in old.commands
    assert old.step("move mug 2 to shelf 1") == NOTHING
    assert old.step("put mug 2 in/on shelf 1") == "You put the mug 2 in/on the shelf 1."
    assert new.step("put mug 2 in/on shelf 1") == NOTHING


def test_a_file_from_before_help_is_read_as_the_official_update_makes_it() -> None:
    old, new = make_game(words=OLD_GRAMMAR), make_game()
    old["pddl_domain"] = re.sub(r"\(:action help .*?\(checked \?a\)\)", "", str(old["pddl_domain"]))
    old["grammar"] = re.sub(r"action help \{.*?\}", "", OLD_GRAMMAR, flags=re.DOTALL)
    old["walkthrough"] = ["go to table 1", "put mug 2 in/on shelf 1"]
    assert "action help" not in f"{old['pddl_domain']}{old['grammar']}"
    game = AlfworldGame.from_data(old)
    assert game.walkthrough == ("go to table 1", "move mug 2 to shelf 1")
    before, after = AlfworldEpisode(game), AlfworldEpisode(AlfworldGame.from_data(new))
    for command in ("go to table 1", "take mug 2 from table 1", "move mug 2 to shelf 1", "look"):
        assert (before.observation, before.commands) == (after.observation, after.commands)
        assert before.step(command) == after.step(command) != NOTHING
    assert before.step("help").startswith("Commands: look")
    assert before.step("put mug 2 in/on shelf 1") == NOTHING


@pytest.mark.parametrize("goal", GOALS)
def test_each_of_the_six_kinds_of_game_is_recognised_and_won(goal: str) -> None:
    live = play(goal=goal)
    assert live.game.task_type == goal
    *before, last = WINS[goal].split("; ")
    assert [(live.step(command) != NOTHING, live.won) for command in before] == [(True, False)] * len(before)
    assert (live.step(last) != NOTHING, live.won) == (True, True)


def test_a_victory_can_be_undone() -> None:
    live = play(*WINS["pick_and_place_simple"].split("; "))
    stands = [live.won, live.step("take mug 2 from fridge 1"), live.won]
    assert stands == [True, "You pick up the mug 2 from the fridge 1.", False]


def test_a_lamp_counts_only_where_one_is() -> None:
    live = play("go to table 1", "take apple 1 from shelf 1", "use desklamp 1", goal="look_at_obj_in_light")
    stands = [live.won, live.step("go to fridge 1"), live.won, live.step("use desklamp 1")]
    assert stands == [True, "The fridge 1 is closed.", False, NOTHING]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pddl_domain": "(define (domain chess) (:action castle))"}, "not the domain"),
        ({"pddl_problem": "(define (problem x) (:init"}, "balanced"),
        ({"pddl_problem": 7}, "pddl_problem"),
        ({"grammar": "grammar :: nothing"}, "task"),
        ({"grammar": str(make_game()["grammar"]).replace('"rhs"', '"lhs"')}, "task"),
        (
            {"grammar": str(make_game()["grammar"]).replace("{ template", '{ grammar :: """[]"""; template')},
            "rules",
        ),
        ({"grammar": str(make_game()["grammar"]).replace("move {o} to {r}", "to {r} move {o}")}, "spelled"),
        ({"grammar": str(make_game()["grammar"]).replace("The {o.name} is on", "{x.name}")}, "not supported"),
        ({"grammar": str(make_game()["grammar"]).replace("carrying: nothing", "#front#")}, "not supported"),
        (
            {"grammar": str(make_game()["grammar"]).replace("#front#. Beside", "#look.feedback#")},
            "not supported",
        ),
        ({"grammar": '"task": [{"rhs": "Your task is to: sing."}]'}, "template"),
    ],
)
def test_what_is_no_game_is_refused_with_a_reason(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        AlfworldGame.from_data({**make_game(), **change})


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [("(holds agent1 Mug_bar_1)", "holds agent1 mug_bar_1"), ("(atLocation agent1 loc_bar_1)", "one place")],
)
def test_a_house_that_the_engine_does_not_know_is_refused(facts: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        AlfworldGame.from_data(make_game(facts=KITCHEN_FACTS + facts))


def test_a_goal_that_asks_for_more_is_refused() -> None:
    data = make_game()
    data["pddl_problem"] = str(data["pddl_problem"]).replace(
        "(inReceptacle ?o ?r)", "(inReceptacle ?o ?r) (isHot ?o)"
    )
    with pytest.raises(UserError, match="has no known form"):
        AlfworldGame.from_data(data)


def test_files_are_named_after_their_folders_and_broken_ones_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pick_and_place_simple-Mug" / "trial_1" / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(make_game()))
    assert AlfworldGame.load(file).id == "pick_and_place_simple-Mug/trial_1"
    for broken in ("{", "[]"):
        file.write_text(broken)
        with pytest.raises(UserError, match="ALFWorld game"):
            AlfworldGame.load(file)


@lru_cache(maxsize=40)
def random_game(seed: int) -> AlfworldGame:
    chance = random.Random(seed)
    return AlfworldGame.from_data(
        make_game(
            chance.choice(list(GOALS)), make_random_house(chance), chance.choice([GRAMMAR, OLD_GRAMMAR])
        )
    )


def every_command(one: AlfworldGame) -> list[str]:
    """All that can be said of a house's things and fixtures, sense or nonsense."""
    names = [*one.house.things, *one.house.fixtures, "unicorn 1"]
    alone = [f"{verb} {name}" for verb in ("go to", "open", "close", "examine", "use") for name in names]
    forms = ["take {} from {}", "move {} to {}", "put {} in/on {}", "heat {} with {}", "clean {} with {}"]
    forms += ["cool {} with {}", "slice {} with {}"]
    return [
        "look",
        "inventory",
        "help",
        *alone,
        *(form.format(a, b) for form in forms for a in names for b in names),
    ]


def shown(live: AlfworldEpisode) -> tuple[object, ...]:
    """Everything about an episode that a later step could depend on."""
    state = live._state
    facts = (*state.thing_facts, *state.fixture_facts, *state.contents, *state.around)
    return state.location, state.held, frozenset(state.left), facts, live.won


@settings(max_examples=25)
@given(seed=st.integers(0, 39), steps=st.lists(st.floats(0, 0.999), max_size=25))
def test_exactly_the_listed_commands_do_something(seed: int, steps: list[float]) -> None:
    one = random_game(seed)
    live = AlfworldEpisode(one)
    for step in steps:
        live.step(live.commands[int(step * len(live.commands))])
    listed, before = set(live.commands), shown(live)
    for command in every_command(one):
        if command not in listed:
            assert live.step(command) == NOTHING
            assert shown(live) == before
        else:
            other = AlfworldEpisode(one)
            for step in steps:
                other.step(other.commands[int(step * len(other.commands))])
            assert other.step(command) != NOTHING
    assert listed <= set(every_command(one))


@settings(max_examples=50)
@given(seed=st.integers(0, 39), texts=st.lists(st.one_of(st.text(), st.sampled_from(ODD)), max_size=8))
def test_any_text_is_answered_and_nonsense_changes_nothing(seed: int, texts: list[str]) -> None:
    live = AlfworldEpisode(random_game(seed))
    live.step(live.commands[0])
    for text in texts:
        listed, before = live.commands, shown(live)
        answer = live.step(text)
        if text.strip() not in listed:
            assert answer == NOTHING
            assert (live.commands, shown(live)) == (listed, before)


@settings(max_examples=50)
@given(seed=st.integers(0, 39), steps=st.lists(st.floats(0, 0.999), max_size=60))
def test_things_are_never_lost_nor_doubled(seed: int, steps: list[float]) -> None:
    """A thing is in hand or in as many fixtures as before. The game, which others play, stays as it was."""
    one = random_game(seed)
    at_first = {
        thing: sum(thing in held for held in one.house.contents) for thing in range(len(one.house.things))
    }
    live, untouched = AlfworldEpisode(one), shown(AlfworldEpisode(one))
    for step in steps:
        live.step(live.commands[int(step * len(live.commands))])
        state = live._state
        assert live.won == state.reaches_goal(one.goal)
        for thing, count in at_first.items():
            places = sum(thing in held for held in state.contents) + (thing == state.held)
            # One that was in two fixtures may be put into the second.
            assert places == count or (count == 2 and places == 1)
        for held in state.contents:
            assert list(held) == sorted(set(held))
    assert shown(AlfworldEpisode(one)) == untouched


def test_an_episode_ends_when_it_is_won(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(make_game("look_at_obj_in_light")))
    world: Environment = AlfworldEnvironment(make_game_finder(tmp_path))
    first = world.reset(Example("mine/trial_1", "", ""))
    assert (first.observation[:8], first.reward, first.done, first.won) == ("You are ", 0.0, False, False)
    *before, last = WINS["look_at_obj_in_light"].split("; ")
    assert [(step.reward, step.done) for step in map(world.step, before)] == [(0.0, False)] * 2
    end = world.step(last)
    assert (end.observation, end.reward, end.done, end.won) == ("The desklamp 1 is on.", 1.0, True, True)
    after = world.step("go to fridge 1")
    assert (after.observation, after.reward, after.done, after.won) == (NOTHING, 0.0, True, True)
    world.close()
    with pytest.raises(RuntimeError):
        world.step("look")


def test_thoughts_cost_a_step_and_change_nothing() -> None:
    one = AlfworldGame.from_data(make_game())
    world = AlfworldEnvironment(lambda _: one)
    three = Example("", "", "", {"steps": 3})
    world.reset(three)
    thought = world.step("think: where do mugs hide?")
    assert (thought.observation, thought.done, thought.invalid) == ("OK.", False, False)
    assert world.step("go to table 1").observation.startswith("On the table 1, ")
    last = EnvironmentStep(NOTHING, 0.0, done=True, won=False, cut=True, invalid=True)
    assert world.step("dance") == last
    world.reset(three)
    assert not world.step("look").done


def test_an_example_without_its_game_says_how_training_games_are_played() -> None:
    with pytest.raises(UserError, match=r"has no game.*open_world\(\).environment"):
        AlfworldEnvironment().reset(Example("mine/trial_1", "", ""))
