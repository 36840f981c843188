"""WebShop under the paper's protocol: the page, its actions and the last five turns; success from 0.5 on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core import task as core_task
from agent2rl.core.engine import Chat
from agent2rl.core.grading_records import EvalResult, EvalSettings, TrajectoryTurn
from agent2rl.core.task import Splits
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.webshop.environment import WebshopEnvironment
from agent2rl.environments.webshop.expert import WebshopExpert
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.published_prompts import ShopWindowPrompt, extract_shop_action
from agent2rl.tasks.webshop.mini import build_shop
from agent2rl.tasks.webshop.paper import REQUEST, SYSTEM
from tests.helpers.webshop_products import write_large_catalogue

PROFILE = "paper-webshop-1"
START = "WebShop [SEP] Instruction: [SEP] Find me a red mug [SEP] Search"
LIST = "\n\nAvailable actions:\n"


def find_evaluator(task: str = "webshop") -> Episodes:
    found = registry.find_task(task).apply_profile(PROFILE).evaluator
    assert isinstance(found, Episodes)
    return found


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("webshop") / "files"
    write_large_catalogue(folder, people=True)
    return folder


@pytest.fixture(scope="module")
def splits(official: Path) -> Splits:
    return registry.find_task("webshop").apply_profile(PROFILE).load(official)


@pytest.fixture
def beside(official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").symlink_to(official)
    monkeypatch.setenv(core_task.FOLDER_VARIABLE, str(tmp_path))


def write_request(instruction: str, *actions: str) -> str:
    listed = "\n".join(f"  {action}" for action in actions)
    return REQUEST.replace("{instruction}", instruction).replace("{actions}", listed)


def test_the_first_request_has_the_instruction_the_actions_and_the_page() -> None:
    (system, user) = find_evaluator().prompt.build_first_message(
        f"{START}{LIST}  search[<your query>]\n  click[search]", True
    )
    assert (system.role, system.content) == ("system", SYSTEM)
    assert user.content == (
        write_request("Find me a red mug", "search[<your query>]", "click[search]")
        + f"\nObservation 1: {START}\nAction 1:"
    )


def test_a_later_request_has_the_last_five_turns_each_with_the_page_that_its_action_led_to() -> None:
    prompt = find_evaluator().prompt
    assert isinstance(prompt, ShopWindowPrompt)
    turns = [TrajectoryTurn(action="", observation=f"{START}{LIST}  click[search]")]
    turns += [
        TrajectoryTurn(action=f"click[{n}]", observation=f"page {n}{LIST}  click[x{n}]") for n in range(1, 8)
    ]
    user = prompt.build_chat(turns)[-1].content
    pairs = "".join(f"\nObservation {n}: page {n}\nAction {n}: click[{n}]\n" for n in range(3, 8))
    assert (
        user == write_request("Find me a red mug", "click[x7]") + f"{pairs}\nObservation 8: page 7\nAction 8:"
    )


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (" search[red mug]", "search[red mug]"),
        ("Action: click[buy now]", "click[buy now]"),
        ("choose[large]", "click[large]"),
        ("I think click[large]", "I think click[large]"),
    ],
)
def test_the_whole_line_is_the_action(reply: str, action: str) -> None:
    assert extract_shop_action(reply) == action


def test_the_test_set_is_the_first_hundred_generated_goals_with_fifty_steps(splits: Splits) -> None:
    assert splits.test is not None
    assert [one.id for one in splits.test] == [f"generated-{number:05}" for number in range(100)]
    assert {one.meta["steps"] for one in (*splits.test, *splits.train)} == {50}


def play(splits: Splits, *replies: str) -> tuple[list[Chat], EvalResult]:
    asked: list[Chat] = []
    remaining = iter(replies)

    def answer(chat: Chat) -> str:
        asked.append(chat)
        return next(remaining, "nonsense\nclick[buy now]")

    assert splits.test is not None
    return asked, find_evaluator().evaluate(ScriptedEngine(answer), splits.test[:1], EvalSettings())


@pytest.mark.usefixtures("beside")
def test_an_episode_that_buys_nothing_ends_after_fifty_steps_with_nothing(splits: Splits) -> None:
    asked, result = play(splits)
    assert len(asked) == 50
    assert all(len(chat) == 2 for chat in asked)
    assert asked[-1][-1].content.count("Observation ") == 6
    assert result.results[0].score == 0
    assert result.how["max_tokens"] == 100


@pytest.mark.usefixtures("beside")
def test_a_right_purchase_is_a_success_and_a_full_one(splits: Splits) -> None:
    assert splits.test is not None
    asked, result = play(splits, *splits.test[0].target.splitlines())
    assert "  search[<your query>]\n  click[search]\n\nRules:" in asked[0][-1].content
    assert "  click[back to search]\n" in asked[1][-1].content
    assert result.results[0].score == 1
    assert result.results[0].metrics == {"reward": 1.0, "reward>=1": 1.0}


def test_half_of_the_reward_is_a_success_and_no_full_one() -> None:
    evaluator = find_evaluator()
    assert (evaluator.success, evaluator.also) == (0.5, (1.0,))


@pytest.mark.parametrize("task", ["webshop", "webshop-mini"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(task: str) -> None:
    found = find_evaluator(task)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(found.export_program(), namespace)
    own = namespace["EVALUATOR"]
    assert own == replace(found, world=open_training_environment)
    assert own.version == found.version


def test_the_expert_reads_pages_that_list_their_actions() -> None:
    for goal in registry.find_task("webshop-mini").apply_profile(PROFILE).load(None).train[:10]:
        environment, expert = WebshopEnvironment(lambda _: build_shop()), WebshopExpert()
        step = environment.reset(goal)
        while not step.done:
            step = environment.step(expert.act(step.observation))
        assert step.won


def test_the_miniature_lists_actions_too() -> None:
    mini = registry.find_task("webshop-mini").apply_profile(PROFILE).load(None)
    assert mini.train[0].meta["list_actions"] is True
    text = find_evaluator("webshop-mini").prompt.build_first_message(mini.train[0].prompt, True)[-1].content
    assert "\nInstruction: Find me" in text
