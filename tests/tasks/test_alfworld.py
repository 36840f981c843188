"""ALFWorld as a task: its data, its words, what an agent is given of it, and whole runs."""

import json
import random
import re
import shutil
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from agent2rl import registry
from agent2rl.analysis import contamination
from agent2rl.core.agent import Brief
from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.records import Budget, ExpertHelp, RunSpec
from agent2rl.core.task import Splits, Task
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.alfworld.environment import open_world
from agent2rl.environments.alfworld.pddl import ChainType, TaskType
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.task_data import fetch_archive, read_prompts
from agent2rl.record.files import extract_archive
from agent2rl.run import workspace
from agent2rl.run.assets import load_assets
from agent2rl.run.assets import test_set as paper_test_set
from agent2rl.run.expert_help import apply_expert_help, choose_expert_help
from agent2rl.tasks import alfworld
from tests.helpers.alfworld_games import make_game
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.short_alfworld import MAX_STEPS
from tests.helpers.tiny_models import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
KINDS = set(get_args(TaskType))


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of our own in the official layout."""
    root = tmp_path_factory.mktemp("alfworld") / "json_2.1.1"
    for split, count in (("train", 3), ("valid_seen", 2), ("valid_unseen", 2)):
        for number in range(count):
            place = root / split / f"{split}-Mug-None-Shelf-{number}" / "trial_1"
            place.mkdir(parents=True)
            data = {**make_game(), "walkthrough": ["go to table 1"]}
            (place / "game.tw-pddl").write_text(json.dumps(data))
    return root


@pytest.fixture(scope="module")
def mini() -> Splits:
    return registry.find_task("alfworld-mini").load(None)


def test_the_official_splits_are_train_feedback_and_heldout(official: Path) -> None:
    for named in (official, official.parent):
        splits = registry.find_task("alfworld").load(named)
        assert [len(part) for part in (splits.train, splits.feedback, splits.heldout)] == [3, 2, 2]
        assert {example.id.split("-")[0] for example in splits.feedback} == {"valid_seen"}
        assert splits.folders == {"games": official / "train"}
    assert "game" not in splits.train[0].meta
    assert "Your task is to:" in splits.feedback[0].prompt


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", '{"pddl_problem": 1}'])
def test_a_file_that_holds_no_game_is_named(official: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(official, tmp_path / "games")
    name = "valid_seen-Mug-None-Shelf-1/trial_1"
    (tmp_path / "games" / "valid_seen" / name / "game.tw-pddl").write_text(text)
    with pytest.raises(UserError, match=name):
        registry.find_task("alfworld").load(tmp_path / "games")


def test_the_papers_test_set_is_valid_unseen(official: Path) -> None:
    splits = registry.find_task("alfworld").load(official)
    assert paper_test_set(splits) == splits.heldout


def test_a_folder_without_the_official_layout_is_refused(tmp_path: Path, official: Path) -> None:
    with pytest.raises(UserError, match="There is no train"):
        registry.find_task("alfworld").load(tmp_path)
    for split in ("train", "valid_seen", "valid_unseen"):
        (tmp_path / split).mkdir()
    with pytest.raises(UserError, match="There are no games"):
        registry.find_task("alfworld").load(tmp_path)


def test_every_official_game_of_valid_seen_becomes_an_example(shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "alfworld" / "valid_seen.tar.xz") as archive:
        extract_archive(archive, tmp_path)
    found = alfworld.load_scoring_examples(tmp_path / "json_2.1.1" / "valid_seen")
    assert len(found) == 140
    assert {example.meta["task_type"] for example in found} == KINDS
    assert len({example.meta["sha256"] for example in found}) == 140


class TestDownload:
    @pytest.fixture
    def site(self, official: Path, tmp_path: Path) -> Iterator[str]:
        served = tmp_path / "served"
        served.mkdir()
        with zipfile.ZipFile(served / "games.zip", "w") as archive:
            for path in sorted(official.rglob("*.tw-pddl")):
                archive.write(path, path.relative_to(official.parent))
            archive.writestr("json_2.1.1/train/traj_data.json", "{}")
            archive.writestr("json_2.1.1/../../evil/game.tw-pddl", "{}")
        (served / "broken.zip").write_bytes(b"no archive")
        with zipfile.ZipFile(served / "damaged.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("json_2.1.1/game.tw-pddl", random.Random(0).randbytes(9999).hex())
        whole = (served / "damaged.zip").read_bytes()
        (served / "damaged.zip").write_bytes(whole[:200] + bytes(100) + whole[300:])
        handler = partial(_Quiet, directory=str(served))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    def test_the_release_is_downloaded_once(self, site: str, tmp_path: Path) -> None:
        home = tmp_path / "home"
        root = fetch_archive(f"{site}/games.zip", home, "json_2.1.1", "*/game.tw-pddl")
        assert len(registry.find_task("alfworld").load(root).train) == 3
        assert not list(home.rglob("traj_data.json"))
        assert not list(tmp_path.rglob("evil"))
        assert fetch_archive("http://127.0.0.1:1/nothing.zip", home, "json_2.1.1", "*") == root

    @pytest.mark.parametrize("name", ["missing.zip", "broken.zip", "damaged.zip"])
    def test_a_download_that_fails_leaves_nothing_behind(self, site: str, name: str, tmp_path: Path) -> None:
        with pytest.raises(MachineError):
            fetch_archive(f"{site}/{name}", tmp_path / "home", "json_2.1.1", "*")
        assert not list((tmp_path / "home").iterdir())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", ["alfworld", "alfworld-mini", "alfworld-mini:hard"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(name: str) -> None:
    evaluator = registry.find_task(name).evaluator
    assert isinstance(evaluator, Episodes)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(evaluator.export_program(), namespace)
    assert namespace["EVALUATOR"] == replace(evaluator, world=open_training_environment)
    assert namespace["EVALUATOR"].version == evaluator.version


def test_the_miniature_has_every_kind_of_task_evenly(mini: Splits) -> None:
    for part in (mini.train, mini.feedback, mini.heldout):
        kinds = [example.meta["task_type"] for example in part]
        assert {kinds.count(kind) for kind in KINDS} <= {len(part) // 6, len(part) // 6 + 1}


def test_400_games_score_so_that_five_points_can_be_told_from_noise(mini: Splits) -> None:
    ids = [{example.id for example in part} for part in (mini.train, mini.feedback, mini.heldout)]
    assert [len(part) for part in ids] == [1200, 400, 400]
    assert len(ids[0] | ids[1] | ids[2]) == 2000


def test_the_hard_tier_scores_kinds_that_training_never_shows() -> None:
    splits = registry.find_task("alfworld-mini:hard").load(None)
    train, feedback, heldout = (
        Counter(str(example.meta["task_type"]) for example in part)
        for part in (splits.train, splits.feedback, splits.heldout)
    )
    unseen = set(get_args(ChainType))
    assert set(train) == KINDS
    assert set(feedback) == set(heldout) == KINDS | unseen
    assert {heldout[kind] for kind in unseen} == {40}
    assert "kinds that no training game has" in registry.find_task("alfworld-mini:hard").description


def test_the_miniature_reads_no_files_and_knows_its_levels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Leave out --data-dir"):
        registry.find_task("alfworld-mini").load(tmp_path)
    with pytest.raises(UserError, match="Known: easy"):
        registry.find_task("alfworld-mini:impossible")
    assert registry.find_task("alfworld-mini:hard").id == "alfworld-mini-hard"


def test_a_model_that_says_the_right_commands_wins_every_kind_of_task(mini: Splits) -> None:
    evaluator = registry.find_task("alfworld-mini").evaluator
    some = mini.feedback[:6]
    walks = {example.prompt: example.target.splitlines() for example in some}

    def walker(chat: Chat) -> str:
        walk = walks[chat[0].content.partition("\n\n")[2]]
        return walk[len(chat) // 2]

    found = evaluator.evaluate(ScriptedEngine(walker), some, EvalSettings())
    assert [result.score for result in found.results] == [1.0] * 6
    assert {result.group for result in found.results} == KINDS


@pytest.mark.thorough
def test_134_episodes_at_once_are_the_episodes_of_one_game_at_a_time(mini: Splits, tmp_path: Path) -> None:
    """With a real model, which says something else in every game: batches of 1, 7 and 134."""
    evaluator = registry.find_task("alfworld-mini").evaluator
    assert isinstance(evaluator, Episodes)
    short = replace(evaluator, sampling=Sampling(max_tokens=5))
    some = [
        replace(example, meta={**example.meta, "steps": 2})
        for example in (*mini.feedback[:120], *mini.heldout[:14])
    ]
    with registry.find_engine("transformers")(write_tiny_llama(tmp_path)) as engine:
        found = [replace(short, live=live).evaluate(engine, some, EvalSettings()) for live in (134, 7, 1)]
    assert found[0] == found[1] == found[2]
    assert len({result.trajectory[1].action for result in found[0].results}) > 30


def test_without_an_expert_nothing_shows_how_a_game_is_won(mini: Splits, tmp_path: Path) -> None:
    task = registry.find_task("alfworld-mini")
    assert task.withhold is not None
    held = task.withhold(mini)
    assert {example.target for example in held.train} == {""}
    assert [example.id for example in held.train] == [example.id for example in mini.train]
    write = held.folders["games"]
    assert callable(write)
    write(tmp_path)
    files = list(tmp_path.glob("*/*/game.tw-pddl"))
    assert len(files) == len(mini.train)
    assert all(json.loads(file.read_text())["walkthrough"] == [] for file in files)


class TestPrompts:
    def test_a_users_words_reach_the_model(self, tmp_path: Path, mini: Splits) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('chat = "Be quick."\n')
        evaluator = registry.find_task("alfworld-mini").evaluator
        assert isinstance(evaluator, Episodes)
        mine = evaluator.with_prompts(read_prompts(file))
        heard: list[str] = []

        def listener(chat: Chat) -> str:
            heard.append(chat[0].content)
            return "look"

        found = mine.evaluate(ScriptedEngine(listener), mini.feedback[:1], EvalSettings())
        assert heard[0] == f"Be quick.\n\n{mini.feedback[0].prompt}"
        assert found.how["prompts"] == "mine"
        assert mine.version != evaluator.version

    def test_a_kind_of_task_may_have_words_of_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('[plain]\nlook_at_obj_in_light = "Look."\n"" = "Act."\n')
        evaluator = registry.find_task("alfworld").evaluator
        assert isinstance(evaluator, Episodes)
        prompt = evaluator.with_prompts(read_prompts(file)).prompt
        assert (
            prompt.build_first_message("Seen.", False, "look_at_obj_in_light")[0].content
            == "Look.\n\nSeen.\n>"
        )
        assert (
            prompt.build_first_message("Seen.", False, "pick_two_obj_and_place")[0].content
            == "Act.\n\nSeen.\n>"
        )

    def test_a_kind_that_no_words_are_for_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('[plain]\nlook_at_obj_in_ligth = "Look."\n')
        evaluator = registry.find_task("alfworld").evaluator
        assert isinstance(evaluator, Episodes)
        prompt = evaluator.with_prompts(read_prompts(file)).prompt
        with pytest.raises(UserError, match=r"'mine' .* 'look_at_obj_in_light'.* look_at_obj_in_ligth"):
            prompt.build_first_message("Seen.", False, "look_at_obj_in_light")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("chat = 3", "chat"),
            ("words = 'no'", "words"),
            ("chat =", "is not TOML"),
            ("", "has no prompt"),
        ],
    )
    def test_a_file_that_holds_no_prompts_is_refused(self, text: str, said: str, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(UserError, match=said):
            read_prompts(tmp_path / "bad.toml")

    def test_a_question_must_have_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text("chat = 'Answer.'")
        evaluator: Any = registry.find_task("gsm8k-mini").evaluator
        with pytest.raises(UserError, match=r"has no placeholder \{question\}"):
            evaluator.with_prompts(read_prompts(tmp_path / "bad.toml"))


def test_a_model_without_a_template_is_shown_two_episodes_of_each_kind_of_task() -> None:
    evaluator = registry.find_task("alfworld").evaluator
    assert isinstance(evaluator, Episodes)
    assert set(evaluator.prompt.plain) == KINDS
    for text in evaluator.prompt.plain.values():
        assert text.count("Your task is to:") == 2


def test_a_data_directory_becomes_a_world_with_its_expert(mini: Splits, tmp_path: Path) -> None:
    rows = [
        {"id": example.id, "question": example.prompt, "answer": example.target, **example.meta}
        for example in mini.train[:12]
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write = mini.folders["games"]
    assert callable(write)
    write(tmp_path / "games")
    world = open_world(tmp_path)
    assert world.expert is not None
    for example in world.games:
        place, expert = world.environment(), world.expert()
        step = place.reset(example)
        while not step.done:
            step = place.step(expert.act(step.observation))
        assert step.won


AGENT = """
from agent2rl.environments.adapters import open_world

world = open_world()
say(games=len(world.games), expert=world.expert is not None, answer=world.games[0].target)
place = world.environment()
step = place.reset(world.games[0])
say(first=step.observation)
try:
    from agent2rl.environments.alfworld.expert import AlfworldExpert
    say(hidden=False)
except ImportError:
    say(hidden=True)
if world.expert:
    player = world.expert()
    while not step.done:
        step = place.step(player.act(step.observation))
    say(won=step.won)
    tried = subprocess.run([sys.executable, "eval.py", str(MODEL), "--games", "1", "--episodes", "e.jsonl"],
        capture_output=True, text=True)
    say(tried=tried.stdout + tried.stderr, episodes=len(open("e.jsonl").readlines()))
    from safetensors.torch import load_file, save_file
    mine = OUTPUT / "mine"
    shutil.copytree(MODEL, mine)
    weights = load_file(mine / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, mine / "model.safetensors",
        metadata={"format": "pt"})
    say(verdict=submit(mine))
"""
OPTIONS = ("--task", "tests.helpers.short_alfworld:TASK", "--model", "seedling", "--budget", "20m")
WITHOUT_TORCH = ("--engine", "scripted:tests.helpers.short_gsm8k:open_constant_model")


@pytest.mark.thorough
def test_an_agent_plays_evaluates_and_submits_in_a_whole_run(launcher: RunLauncher) -> None:
    done = launcher.run(AGENT, *OPTIONS, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log
    assert (done.said["games"], done.said["expert"], done.said["won"]) == (30, True, True)
    assert done.said["first"].startswith("You are in a room.")
    assert "all" in done.said["tried"], done.said
    assert done.said["episodes"] == 1
    assert done.said["verdict"]["verdict"] == "scored", done.log
    assert done.result.best is not None or done.said["verdict"]["score"] == 0
    run = str(done.paths.root)
    listed = launcher.cli("show", run, "--submission", "1")
    assert "pick_two_obj_and_place" in listed.stdout
    episode = launcher.cli("show", run, "--submission", "1", "--episode", "2")
    assert "You are in a room." in episode.stdout
    assert episode.stdout.count("\n> ") == MAX_STEPS
    asked = launcher.cli("show", run, "--submission", "0", "--episode", "1", "--json")
    assert len(json.loads(asked.stdout)["trajectory"]) == MAX_STEPS + 1
    answers = str(done.paths.submission_paths(1).results_file("feedback"))
    again = launcher.cli(
        "score", "tests.helpers.short_alfworld:TASK", answers, "--json", PYTHONPATH=str(ROOT)
    )
    score = json.loads(again.stdout)["parts"][0]["score"]
    assert (score["value"], score["n"]) == (done.said["verdict"]["score"], 6)
    assert "by kind" in launcher.report(done).lower()
    for wrong in (("--episode", "1"), ("--submission", "7"), ("--submission", "1", "--episode", "99")):
        assert launcher.cli("show", run, *wrong).returncode == 2


def test_a_run_without_expert_hides_it(launcher: RunLauncher) -> None:
    done = launcher.run(AGENT, *OPTIONS, *WITHOUT_TORCH, "--expert", "none", PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log
    assert (done.said["expert"], done.said["hidden"], done.said["answer"]) == (False, True, "")
    spec = RunSpec.model_validate_json(done.paths.spec.read_bytes())
    assert spec.expert == "none"
    assert re.search(r"expert +none +\n", launcher.cli("show", str(done.paths.root)).stdout)


READER = """
from pathlib import Path
from agent2rl.environments.adapters import open_world
from agent2rl.training.demonstrations import read_demonstrations

world, data = open_world(), Path(os.environ["DATA_PATH"])
shown = read_demonstrations(data)
try:
    from agent2rl.environments.alfworld.expert import AlfworldExpert
    say(hidden=False)
except ImportError:
    say(hidden=True)
games = {game.id for game in world.games}
say(expert=world.expert is not None, shown=len(shown), ours=all(one.game in games for one in shown))
files = [json.loads(path.read_text()) for path in data.rglob("game.tw-pddl")]
say(walkthroughs=sum(bool(file["walkthrough"]) for file in files), files=len(files))
say(answers=sum(bool(game.target) for game in world.games))
say(meta=json.loads(Path("run_meta.json").read_text())["expert"])
environment = world.environment()
step = environment.reset(next(game for game in world.games if game.id == shown[0].game))
for turn in shown[0].turns:
    assert step.observation == turn.observation
    step = environment.step(turn.action)
say(won=step.won)
"""


def test_a_run_with_a_number_of_demonstrations_has_them_as_a_file_and_no_expert(
    launcher: RunLauncher,
) -> None:
    done = launcher.run(READER, *OPTIONS, *WITHOUT_TORCH, "--expert", "5", PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log
    assert (done.said["expert"], done.said["hidden"]) == (False, True)
    assert (done.said["shown"], done.said["ours"], done.said["won"]) == (5, True, True)
    assert (done.said["files"], done.said["walkthroughs"], done.said["answers"]) == (30, 0, 0)
    assert done.said["meta"] == 5
    assert RunSpec.model_validate_json(done.paths.spec.read_bytes()).expert == 5
    assert "demonstrations" in [asset.name for asset in done.result.assets]
    assert "5 demonstrations" in launcher.cli("show", str(done.paths.root)).stdout
    assert "5 demonstrations" in launcher.report(done)


def test_a_task_without_an_expert_rejects_a_level_of_help(launcher: RunLauncher) -> None:
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", "--expert", "none")
    assert done.returncode == 2
    assert "The task 'gsm8k-mini' has no expert." in done.stderr


def test_more_demonstrations_than_the_expert_wins_are_refused(mini: Splits) -> None:
    few = replace(mini, train=mini.train[:12])
    task = registry.find_task("alfworld-mini")
    with pytest.raises(UserError, match="wins 12 training games, not 13"):
        apply_expert_help(task, few, 13)


def test_demonstrations_are_the_same_each_time_and_more_of_them_begin_with_fewer(mini: Splits) -> None:
    task = registry.find_task("alfworld-mini")
    few, more = (apply_expert_help(task, mini, count).demonstrations for count in (4, 6))
    assert more[:4] == few
    assert all(one.won and one.kind in KINDS for one in more)


@pytest.mark.parametrize("name", ["alfworld-mini", "webshop-mini", "deepsearchqa-mini"])
def test_a_miniature_has_a_limited_number_of_demonstrations_unless_the_user_chooses(name: str) -> None:
    task = registry.find_task(name)
    assert choose_expert_help(task, None) == 96
    assert choose_expert_help(task, "full") == "full"
    assert choose_expert_help(registry.find_task(name.removesuffix("-mini")), None) == "full"


@pytest.mark.parametrize(("recorded", "level"), [(True, "full"), (False, "none"), (96, 96), ("none", "none")])
def test_specifications_of_earlier_versions_are_read(recorded: object, level: ExpertHelp) -> None:
    spec = {"task": "t", "agent": "a", "model": "m", "engine": "e", "budget": {"wall_seconds": 1}}
    assert RunSpec.model_validate({**spec, "expert": recorded}).expert == level


def test_a_miniature_is_a_task() -> None:
    found: Task = registry.find_task("alfworld-mini")
    assert (found.level, found.world) == (3, "alfworld")


def test_actions_that_an_agent_finds_by_itself_are_no_evaluation_data(tmp_path: Path, mini: Splits) -> None:
    task = registry.find_task("alfworld-mini")
    spec = RunSpec(
        task="alfworld-mini",
        agent="nop",
        model="abacus",
        engine="scripted",
        budget=Budget(wall_seconds=1),
        expert="none",
    )
    assets = load_assets(spec, task, tmp_path, registry.find_sandbox("local"))
    assert {example.target for example in assets.train} == {""}
    brief = Brief(task.id, "free", spec.budget, PurePosixPath("/workspace"), "", {})
    index = contamination.NgramIndex(
        [
            part
            for example in (*mini.feedback, *mini.heldout)
            for part in contamination.split_example(
                "test", example.id, example.prompt, example.target, example.meta
            )
        ],
        workspace.list_given_texts(task, brief, assets),
    )
    assert index.search_text("\n\n".join(example.target for example in mini.train)) == []
