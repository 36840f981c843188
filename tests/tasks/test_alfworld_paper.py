"""ALFWorld under the paper's protocol: every model continues a text of two examples."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, Sampling, render_plain_text
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example, Splits
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.alfworld.pddl import TaskType
from agent2rl.evaluators.episodes import Episodes
from agent2rl.record.files import extract_archive
from agent2rl.tasks import alfworld
from agent2rl.tasks.alfworld.paper import mark_kinds
from tests.helpers.alfworld_games import OLD_GRAMMAR, make_game

ROOM = "You are in the middle of a room. Looking quickly around you, you see "


def find_evaluator(task: str = "alfworld") -> Episodes:
    found = registry.find_task(task).apply_profile("paper-alfworld-1").evaluator
    assert isinstance(found, Episodes)
    return found


def make_example(older: bool = False, steps: int = 50) -> Example:
    data: dict[str, Any] = {**make_game(), "walkthrough": ["look"]}
    if older:
        data["grammar"] = OLD_GRAMMAR
    example = alfworld.attach_game(alfworld.build_example(data, "pick/trial", steps), data)
    splits = Splits((), (example,), (example,))
    return mark_kinds(splits).feedback[0]


def play(commands: list[str], example: Example) -> tuple[list[str], list[Sampling], Any]:
    """Play the commands; return the texts that the model continued, and the result."""
    texts: list[str] = []
    samplings: list[Sampling] = []
    remaining = iter(commands)

    class Engine(ScriptedEngine):
        def generate(self, chats: Any, sampling: Sampling) -> Any:
            samplings.append(sampling)
            return super().generate(chats, sampling)

    def answer(chat: Chat) -> str:
        texts.append(render_plain_text(chat))
        return next(remaining, " look")

    result = find_evaluator().evaluate(Engine(answer), [example], EvalSettings())
    return texts, samplings, result


def test_the_text_has_two_examples_the_game_and_all_commands_since() -> None:
    example = make_example(steps=3)
    texts, samplings, _ = play([" think: where is it?\nnonsense", " go to table 1", " dance"], example)
    examples, found, game = texts[0].partition("\nNow your task.\n")
    assert found
    assert game == f"{example.prompt}\n>"
    assert examples.startswith("Do a task in a household with text commands. Two examples show how.\n" + ROOM)
    assert examples.count(ROOM) == examples.count("\nYour task is to: ") == 2
    assert "\n\n" not in examples
    assert texts[1] == texts[0] + " think: where is it?\nOK.\n>"
    arrived = texts[2].removeprefix(texts[1])
    assert arrived.startswith(" go to table 1\n")
    assert arrived.endswith("\n>")
    assert {(one.max_tokens, one.stop, one.temperature, one.plain) for one in samplings} == {
        (100, ("\n", "\n"), 0.0, True)
    }


def test_the_welcome_and_the_empty_lines_of_an_official_game_are_left_out() -> None:
    seen = "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in a room.\n\nYour task is to: put a mug in shelf."
    (message,) = find_evaluator().prompt.build_first_message(seen, True, "pick_and_place_simple")
    ending = "\nNow your task.\nYou are in a room.\nYour task is to: put a mug in shelf.\n>"
    assert message.content.endswith(f"You move the sponge 1 to the cabinet 1.\n{ending}")


def test_a_thought_costs_one_of_the_steps() -> None:
    texts, _, result = play([" think: a", " think: b", " think: c"], make_example(steps=2))
    assert len(texts) == 2
    assert result.results[0].score == 0
    assert [turn.observation for turn in result.results[0].trajectory[1:]] == ["OK.", "OK."]


def test_a_won_game_scores_one() -> None:
    example = make_example()
    commands = [" go to table 1", " take mug 2 from table 1", " go to fridge 1", " open fridge 1"]
    texts, _, result = play([*commands, " move mug 2 to fridge 1"], example)
    assert result.results[0].score == 1, texts[-1][-500:]
    assert result.how["prompting"] == "plain"


def test_the_number_of_steps_is_the_published_one() -> None:
    texts, _, result = play([], make_example())
    assert len(texts) == 50
    assert result.results[0].score == 0


@pytest.mark.parametrize("kind", get_args(TaskType))
def test_every_kind_of_task_has_its_own_two_examples(kind: str) -> None:
    plain = find_evaluator().prompt.plain
    assert plain[kind].count("Your task is to: ") == 2
    assert "> move " in plain[kind] or kind == "look_at_obj_in_light"
    older = plain[f"{kind}, older grammar"]
    assert "> move " not in older
    assert "You move the " not in older


def test_a_game_of_the_older_grammar_gets_examples_in_its_wording() -> None:
    texts, _, _ = play([" look"], make_example(older=True, steps=1))
    assert "> put keychain 2 in/on shelf 1\nYou put the keychain 2 in/on the shelf 1.\n" in texts[0]
    newer, _, _ = play([" look"], make_example(steps=1))
    assert "> move keychain 2 to shelf 1\nYou move the keychain 2 to the shelf 1.\n" in newer[0]


def test_the_arrival_at_a_location_is_cut_as_published() -> None:
    (message,) = find_evaluator().prompt.build_next_message(
        "You arrive at loc 3. On the shelf 1, you see a cup 1.", False
    )
    assert message.content == "\nOn the shelf 1, you see a cup 1.\n>"


@pytest.mark.parametrize("task", ["alfworld", "alfworld-mini"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(task: str) -> None:
    found = find_evaluator(task)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(found.export_program(), namespace)
    own = namespace["EVALUATOR"]
    assert own == replace(found, world=open_training_environment)
    assert own.version == found.version


def test_official_games_of_all_kinds_have_a_prompt(shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "alfworld" / "valid_seen.tar.xz") as archive:
        members = [one for one in archive.getmembers() if one.name.endswith("game.tw-pddl")][::10]
        extract_archive(archive, tmp_path, members)
    games = alfworld.load_scoring_examples(tmp_path / "json_2.1.1" / "valid_seen")
    evaluator = find_evaluator()
    for example in mark_kinds(Splits((), games, games)).feedback:
        (message,) = evaluator.prompt.build_first_message(example.prompt, True, evaluator.get_kind(example))
        assert message.content.count(ROOM) == 3
        assert "Welcome" not in message.content
        assert json.dumps(message.content)
