"""WebShop as a task: the official files, what scores, what an agent is given of them, and whole runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Splits
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.webshop import Shop
from agent2rl.environments.webshop.environment import read_goal
from agent2rl.evaluators.episodes import Episodes
from agent2rl.run.assets import test_set as paper_test_set
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.tiny_models import write_tiny_llama
from tests.helpers.webshop_products import write_catalogue, write_large_catalogue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of our own with 2,000 generated goals."""
    folder = tmp_path_factory.mktemp("webshop") / "files"  # which sandboxes may read
    write_large_catalogue(folder)
    return folder


@pytest.fixture(scope="module")
def splits(official: Path) -> Splits:
    return registry.find_task("webshop").load(official)


def test_the_official_split_is_test_validation_and_training(official: Path, splits: Splits) -> None:
    assert [len(part) for part in (splits.feedback, splits.heldout)] == [500, 500]
    assert len(splits.train) == 500
    goals = Shop.load(official).goals
    assert [read_goal(one) for one in splits.heldout] == list(goals[:500])
    assert [read_goal(one) for one in splits.feedback] == list(goals[500:1000])
    assert [read_goal(one) for one in splits.train] == list(goals[1500:])
    assert (splits.heldout[7].id, splits.train[0].id) == ("generated-00007", "generated-01500")
    assert paper_test_set(splits) == splits.heldout


def test_what_people_wrote_is_asked_where_there_is_enough_of_it(official: Path, tmp_path: Path) -> None:
    write_large_catalogue(tmp_path, people=True)
    task = registry.find_task("webshop")
    assert task.load(tmp_path).heldout[0].id == "human-00000"
    assert registry.find_task("webshop:generated").load(tmp_path).heldout[0].id == "generated-00000"
    with pytest.raises(UserError, match="There are 0 human goals"):
        registry.find_task("webshop:human").load(official)
    with pytest.raises(UserError, match="Known: generated, human"):
        registry.find_task("webshop:mixed")


def test_training_does_not_ask_in_the_words_of_what_scores(tmp_path: Path) -> None:
    write_large_catalogue(tmp_path)
    path = tmp_path / "items_ins_v2_40.json"
    known = json.loads(path.read_text())
    for one in known.values():
        one["instruction"] = "Find me a hat"
    path.write_text(json.dumps(known))
    found = registry.find_task("webshop").load(tmp_path)
    scoring = {one.prompt for one in (*found.feedback, *found.heldout)}
    assert not scoring & {one.prompt for one in found.train}


def test_the_agent_gets_every_product_and_nothing_that_is_asked_for(
    official: Path, splits: Splits, tmp_path: Path
) -> None:
    write_large_catalogue(tmp_path / "source", people=True)
    folders = registry.find_task("webshop").load(tmp_path / "source").folders
    show = folders["shop"]
    assert callable(show)
    (tmp_path / "shop").mkdir()
    show(tmp_path / "shop")
    assert {path.name for path in (tmp_path / "shop").iterdir()} == {
        "items_shuffle_40.json",
        "items_ins_v2.json",
    }
    assert not any("Find me" in path.read_text() for path in (tmp_path / "shop").iterdir())
    seen, whole = Shop.load(tmp_path / "shop"), Shop.load(official)
    assert (seen.prices, seen.goals) == (whole.prices, ())
    assert [one.attributes for one in seen.products.values()] == [
        one.attributes for one in whole.products.values()
    ]
    assert splits.evaluator_folders == {"shop": official}


def test_without_the_official_files_it_is_said_which_to_put_where(tmp_path: Path) -> None:
    task = registry.find_task("webshop")
    with pytest.raises(UserError, match=r"--data-dir.*setup.*items_shuffle\*.json"):
        task.load(None)
    with pytest.raises(UserError, match=r"no items_shuffle\*.json"):
        task.load(tmp_path)
    write_catalogue(tmp_path)
    with pytest.raises(UserError, match="6 generated goals"):
        task.load(tmp_path)


@pytest.mark.thorough
def test_the_official_thousand_products_are_a_task(shared_data: Path) -> None:
    found = registry.find_task("webshop").load(shared_data / "webshop")
    assert [len(part) for part in (found.train, found.feedback, found.heldout)] == [5408, 500, 500]
    assert found.heldout[0].id == "generated-00000"
    assert len({one.meta["category"] for one in found.heldout}) == 5


@pytest.mark.parametrize("name", ["webshop", "webshop-mini"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(name: str) -> None:
    evaluator = registry.find_task(name).evaluator
    assert isinstance(evaluator, Episodes)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(evaluator.export_program(), namespace)
    assert namespace["EVALUATOR"] == replace(evaluator, world=open_training_environment)
    assert namespace["EVALUATOR"].version == evaluator.version


def test_the_score_is_success_and_the_reward_stands_beside_it(
    official: Path, splits: Splits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT2RL_EVALUATOR_FOLDERS", str(tmp_path))
    (tmp_path / "shop").symlink_to(official)
    some = splits.heldout[:3]
    walks = [one.target.splitlines() for one in some]
    walks[1] = [*walks[1][:-2], walks[1][-1]]  # without the colour
    walks[2] = ["search[hat]", "dance"]
    lines = {one.prompt: walk for one, walk in zip(some, walks, strict=True)}

    def walker(chat: Chat) -> str:
        walk = lines[chat[0].content.partition("\n\n")[2]]
        return walk[min(len(chat) // 2, len(walk) - 1)]

    evaluator = registry.find_task("webshop").evaluator
    found = evaluator.evaluate(ScriptedEngine(walker), some, EvalSettings()).results
    assert [one.score for one in found] == [1, 0, 0]
    assert [one.metrics["reward"] for one in found] == pytest.approx([1, 2 / 3, 0])
    assert [one.metrics["reward>=0.5"] for one in found] == [1, 1, 0]
    assert {one.group for one in found} == {"fashion"}


def test_many_episodes_at_once_are_the_episodes_of_one_at_a_time(
    official: Path, splits: Splits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a real model, which says something else to every goal: batches of 1, 5 and 24."""
    monkeypatch.setenv("AGENT2RL_EVALUATOR_FOLDERS", str(tmp_path))
    (tmp_path / "shop").symlink_to(official)
    evaluator = registry.find_task("webshop").evaluator
    assert isinstance(evaluator, Episodes)
    short = replace(evaluator, sampling=Sampling(max_tokens=5))
    some = [replace(one, meta={**one.meta, "steps": 2}) for one in splits.heldout[:24]]
    with registry.find_engine("transformers")(write_tiny_llama(tmp_path / "llama")) as engine:
        found = [replace(short, live=live).evaluate(engine, some, EvalSettings()) for live in (24, 5, 1)]
    assert found[0] == found[1] == found[2]
    assert len({result.trajectory[1].action for result in found[0].results}) > 5


AGENT = """
from websockets.sync.client import connect
from agent2rl.environments.adapters import Gym, open_world

world = open_world()
game = world.games[0].id
gym = Gym(world)
first, _ = gym.reset(options={"game": game})
listed, *_ = gym.step("search[hat]")
say(games=len(world.games), expert=world.expert is not None, answer=world.games[0].target)
with connect(os.environ["ENVIRONMENT_URL"].replace("http", "ws", 1) + "/ws") as line:
    def ask(kind, **data):
        line.send(json.dumps({"type": kind, "data": data}))
        return json.loads(line.recv())["data"]["observation"]["text"]
    say(same=[ask("reset", game=game) == first, ask("step", text="search[hat]") == listed])
if world.expert:
    place, player = world.environment(), world.expert()
    step = place.reset(world.games[0])
    while not step.done:
        step = place.step(player.act(step.observation))
    say(won=step.won, reward=step.reward)
    command = [sys.executable, "eval.py", str(MODEL), "--games", "2"]
    tried = subprocess.run(command, capture_output=True, text=True)
    say(tried=tried.stdout, wrong=tried.stderr)
    from safetensors.torch import load_file, save_file
    mine = OUTPUT / "mine"
    shutil.copytree(MODEL, mine)
    weights = load_file(mine / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, mine / "model.safetensors",
        metadata={"format": "pt"})
    say(verdict=submit(mine))
"""
OPTIONS = ("--model", "seedling", "--protocol", "paper", "--budget", "20m")


@pytest.mark.thorough
def test_an_agent_plays_evaluates_and_submits_in_a_whole_run(launcher: RunLauncher, official: Path) -> None:
    task = ("--task", "tests.helpers.short_webshop:TASK", "--data-dir", str(official))
    done = launcher.run(AGENT, *OPTIONS, *task, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log + done.result.reason
    assert (done.said["games"], done.said["expert"], done.said["same"]) == (20, True, [True, True])
    assert (done.said["won"], done.said["reward"]) == (True, 1.0)
    means = json.loads(done.said["tried"].splitlines()[-1])
    assert set(means) == {"score", "reward", "reward>=0.5"}, done.said["wrong"]
    assert done.said["verdict"]["verdict"] == "scored", done.log
    assert done.result.baseline is not None
    assert set(done.result.baseline.metrics) == {"reward", "reward>=0.5"}
    assert "reward>=0.5" in launcher.report(done)
    assert [asset.name for asset in done.result.assets][-1] == "beside shop"
    assert done.result.rollouts is not None
    assert done.result.rollouts.served.steps == 1


def test_a_run_without_expert_hides_it(launcher: RunLauncher) -> None:
    task = ("--task", "tests.helpers.short_webshop:MINI_TASK", "--expert", "none")
    engine = ("--engine", "scripted:tests.helpers.short_gsm8k:open_constant_model")
    done = launcher.run(AGENT, *OPTIONS, *task, *engine, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log + done.result.reason
    assert (done.said["expert"], done.said["answer"], done.said["same"]) == (False, "", [True, True])


def test_a_product_that_no_search_finds_has_a_goal_without_an_answer(tmp_path: Path) -> None:
    write_large_catalogue(tmp_path)
    (path,) = tmp_path.glob("items_shuffle*.json")
    rows = json.loads(path.read_text())
    (known_path,) = tmp_path.glob("items_ins_v2*.json")
    known = json.loads(known_path.read_text())
    copies = [{**rows[0], "asin": f"A{number:03}"} for number in range(60)]
    known |= {copy["asin"]: {"attributes": known[rows[0]["asin"]]["attributes"]} for copy in copies}
    path.write_text(json.dumps([*rows, *copies]))
    known_path.write_text(json.dumps(known))

    loaded = registry.find_task("webshop").load(tmp_path)

    lost = [one for one in (*loaded.train, *loaded.feedback, *loaded.heldout) if not one.target]
    assert lost
    assert {read_goal(one).asin for one in lost} == {rows[0]["asin"]}
