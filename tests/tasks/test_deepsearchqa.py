"""DeepSearchQA as a task: its data, its words, what an agent is given of it, and whole runs."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core import task as besides
from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Splits
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.search.environment import open_world
from agent2rl.evaluators.episodes import Episodes
from agent2rl.run.assets import test_set as paper_test_set
from agent2rl.run.grading_proxy_setup import GradingProxyOptions, open_grading_proxy
from agent2rl.run.settings import Settings
from agent2rl.tasks import deepsearchqa
from tests.helpers.openai_server import make_fault_reply as fault
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.search_models import CAPITALS, judge_with_gaps, write_search_data
from tests.helpers.tiny_models import write_tiny_llama
from tests.helpers.web_server import PageRequest, PageResponse, make_json_response, serve_pages

ROOT = Path(__file__).resolve().parents[2]
HEADER = "problem,problem_category,answer,answer_type\n"


@pytest.fixture(scope="module")
def lands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lands") / "data"
    write_search_data(folder)
    return folder


@pytest.fixture(scope="module")
def mini() -> Splits:
    return registry.find_task("deepsearchqa-mini").load(None)


@pytest.fixture
def beside(mini: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beside the examples, as a grading child has it."""
    for name, write in mini.evaluator_folders.items():
        assert callable(write)
        (tmp_path / "beside" / name).mkdir(parents=True)
        write(tmp_path / "beside" / name)
    monkeypatch.setenv(besides.FOLDER_VARIABLE, str(tmp_path / "beside"))


def evaluator(name: str = "deepsearchqa-mini") -> Episodes:
    found = registry.find_task(name).evaluator
    assert isinstance(found, Episodes)
    return found


def test_the_official_questions_are_divided_as_in_the_paper(shared_data: Path) -> None:
    splits = registry.find_task("deepsearchqa").load(shared_data / "deepsearchqa")
    parts = (splits.train, splits.feedback, splits.heldout)
    assert [len(part) for part in parts] == [100, 100, 100]
    assert len({example.id for part in parts for example in part}) == 300
    assert len(paper_test_set(splits)) == 200
    assert splits.train[0].id == "deepsearchqa-0014"  # the division is fixed
    every = deepsearchqa.read_examples(shared_data / "deepsearchqa" / "DSQA-full.csv")
    assert len(every) == 900
    assert len({example.meta["problem_category"] for example in every}) == 17
    assert Counter(example.meta["answer_type"] for example in every) == {
        "Set Answer": 584,
        "Single Answer": 316,
    }


def test_a_smaller_file_in_the_official_format_will_do(lands: Path, tmp_path: Path) -> None:
    splits = registry.find_task("deepsearchqa").load(lands)
    assert [len(part) for part in (splits.train, splits.feedback, splits.heldout)] == [2, 2, 2]
    assert splits.train[0].target in [f"answer[{town}]" for town in CAPITALS.values()]
    with pytest.raises(UserError, match=r"There is no DSQA-full\.csv"):
        registry.find_task("deepsearchqa").load(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("problem,answer\na,b\n", "columns"),
        (HEADER + "Who?,Other,,Single Answer\n", "row 0 has no answer"),
        (HEADER + ",Other,Ada,Single Answer\n", "no problem"),
        (HEADER + "Who?,Other,Ada,Essay\n", "another type of answer"),
        (HEADER + "Who?,Other,Ada,Single Answer\n", "fewer than six"),
    ],
)
def test_a_file_that_holds_no_questions_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "DSQA-full.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        registry.find_task("deepsearchqa").load(tmp_path)


@pytest.mark.parametrize("name", ["deepsearchqa", "deepsearchqa-mini"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(name: str) -> None:
    found = evaluator(name)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(found.export_program(), namespace)
    own = namespace["EVALUATOR"]
    assert own == replace(found, world=open_training_environment, slow=own.slow)
    assert own.version == found.version
    assert own.action is found.action


def test_a_thought_on_a_line_of_its_own_does_not_end_a_reply() -> None:
    """A published evaluator stops at the end of a line, and so makes no search at all."""
    for name in ("deepsearchqa", "deepsearchqa-mini"):
        found = evaluator(name)
        stops = (*found.prompt.stop, *found.sampling.stop)
        reply = "Thought: who founded it?\n\nAction: search[founder of Orin Foods]"
        assert not any(stop in reply for stop in stops)
        assert found.action(reply) == "search[founder of Orin Foods]"


def test_the_plain_prompts_show_episodes_that_the_parser_reads() -> None:
    for name in ("deepsearchqa", "deepsearchqa-mini"):
        found = evaluator(name)
        shown = [line for line in found.prompt.plain[""].splitlines() if line.startswith(">")]
        actions = [found.action(line) for line in shown]
        assert all(action.startswith(("search[", "open[", "answer[")) for action in actions)
        assert actions[-1].startswith("answer[")


@pytest.mark.thorough
def test_a_real_model_scores_the_same_in_batches_of_any_size(
    mini: Splits, beside: None, tmp_path: Path
) -> None:
    short = replace(evaluator(), sampling=Sampling(max_tokens=5))
    some = [replace(example, meta={**example.meta, "steps": 2}) for example in mini.feedback[:15]]
    with registry.find_engine("transformers")(write_tiny_llama(tmp_path)) as engine:
        found = [replace(short, live=live).evaluate(engine, some, EvalSettings()) for live in (15, 7, 1)]
    assert found[0] == found[1] == found[2]


def test_searching_models_score_the_same_in_batches_of_any_size_and_in_threads(
    mini: Splits, beside: None
) -> None:
    some = mini.heldout[:100]
    walks = {f"Question: {one.prompt}": one.target.split("\n") for one in some}

    def walker(chat: Chat) -> str:
        walk = walks[chat[0].content.partition("\n\n")[2]]
        action = walk[len(chat) // 2]
        wrong = len(walk) % 2 and action.startswith("answer")
        return "answer[nobody]" if wrong else f"Thought: I see.\nAction: {action}"

    found = [
        replace(evaluator(), live=live, slow=slow).evaluate(ScriptedEngine(walker), some, EvalSettings())
        for live, slow in ((100, False), (7, False), (1, False), (100, True))
    ]
    assert all(one == found[0] for one in found)
    scores = [result.score for result in found[0].results]
    assert 0 < sum(scores) < len(scores)
    assert {*found[0].results[0].metrics} == {"precision", "recall", "f1", "search_recall"}
    assert sum(one.metrics["search_recall"] for one in found[0].results) > 0.9 * len(scores)
    assert found[0].how["searches"] == sum(
        turn.action.startswith("search[") for one in found[0].results for turn in one.trajectory
    )
    assert (found[0].how["failed"], found[0].how["search"]) == (0, "corpus")


def test_the_agent_has_its_corpus_and_somebody_who_shows_how(mini: Splits, tmp_path: Path) -> None:
    def data(splits: Splits, place: Path) -> Path:
        rows = [
            {"id": one.id, "question": one.prompt, "answer": one.target, **one.meta}
            for one in splits.train[:20]
        ]
        write = splits.folders["corpus"]
        assert callable(write)
        (place / "corpus").mkdir(parents=True)
        write(place / "corpus")
        (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return place

    world = open_world(data(mini, tmp_path / "shown"))
    assert world.expert
    for game in world.games:
        place, expert = world.environment(), world.expert()
        step = place.reset(game)
        while not step.done:
            step = place.step(expert.act(step.observation))
        assert step.won
    withhold = registry.find_task("deepsearchqa-mini").withhold
    assert withhold
    held = open_world(data(withhold(mini), tmp_path / "held"))
    assert held.expert is None
    assert held.environment().reset(held.games[0]).observation.startswith("Question: ")


def test_the_miniature_reads_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Leave out --data-dir"):
        registry.find_task("deepsearchqa-mini").load(tmp_path)


LANDS = ("--task", "deepsearchqa", "--agent", "nop", "--model", "abacus", "--budget", "20m", "--json")
RESEARCHER = ("--engine", "scripted:tests.helpers.search_models:open_research_model")


def test_a_run_that_does_not_say_what_is_searched_is_refused_before_anything_is_spent(
    launcher: RunLauncher, lands: Path
) -> None:
    done = launcher.cli("run", *LANDS, "--data-dir", str(lands))
    assert done.returncode == 2
    assert "--search" in done.stderr
    assert "tavily" in done.stderr
    assert not launcher.runs.exists()


@pytest.mark.parametrize(
    ("task", "wanted", "said"),
    [
        ("deepsearchqa-mini", GradingProxyOptions(search="ddgs"), "Leave out --search"),
        ("gsm8k-mini", GradingProxyOptions(judge="openai-api:m@http://h/v1"), "Leave out --judge"),
        ("deepsearchqa-mini", GradingProxyOptions(judge="transformers"), "MODEL@URL"),
        ("deepsearchqa-mini", GradingProxyOptions(judge="openai-api:nowhere"), "must start with http"),
        ("deepsearchqa-mini", GradingProxyOptions(record="x"), "no searches to record"),
        ("deepsearchqa", GradingProxyOptions(search="replay:x", record="x"), "already a recording"),
        ("deepsearchqa", GradingProxyOptions(search="bing"), "Backends: ddgs"),
        ("deepsearchqa", GradingProxyOptions(search="tavily"), "TAVILY_API_KEY"),
        ("deepsearchqa", GradingProxyOptions(), "Backends: ddgs"),
    ],
)
def test_what_a_run_cannot_search_or_judge_with_is_refused(
    task: str, wanted: GradingProxyOptions, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    where = Settings(tmp_path, tmp_path)
    with pytest.raises(UserError, match=said), open_grading_proxy(wanted, registry.find_task(task), where):
        pass


VISITOR = """
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import open_world

def ask(path, body):
    request = urllib.request.Request(os.environ["ENVIRONMENT_URL"] + path, json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)

ask("/reset", {"episode_id": "mine"})
seen = ask("/step", {"episode_id": "mine", "action": {"text": "search[capital of Arlen]"}})
say(seen=json.dumps(seen))
world = open_world()
try:
    world.environment().reset(world.games[0])
except UserError as error:
    say(alone=str(error), expert=world.expert is not None)
"""


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def episodes(file: Path) -> list[dict[str, Any]]:
    """All that was done and seen, without what else a model wrote."""
    found = sorted(rows(file), key=lambda row: str(row["id"]))
    for turn in (turn for row in found for turn in row["trajectory"]):
        del turn["reply"]
    return found


def test_a_recorded_run_is_replayed_to_the_byte(launcher: RunLauncher, tmp_path: Path, lands: Path) -> None:
    """And its agent searches with the harness, at the world's door and nowhere else."""
    cache = tmp_path / "own-cache"
    launcher = replace(launcher, cache=cache)
    record, again = launcher.home / "searches.jsonl", launcher.home / "again.jsonl"
    data = ("--data-dir", str(lands))
    search = ("--search", f"local:{lands / 'pages'}", "--record-searches", str(record))
    options = ("--task", "deepsearchqa", "--model", "abacus", *RESEARCHER)
    done = launcher.run(VISITOR, *options, *data, *search, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log
    assert not [*(cache / "baselines").glob("*")]  # or the next record would lack its searches
    assert "Its capital is Tolm." in done.said["seen"]
    assert "ENVIRONMENT_URL" in done.said["alone"]
    assert not done.said["expert"]
    assert done.result.rollouts
    assert done.result.rollouts.served.steps == 1
    baseline = done.result.baseline
    assert baseline
    assert baseline.value == 100
    how = baseline.how
    assert (how["searches"], how["opened"], how["failed"], how["not_recorded"]) == (2, 2, 0, 0)
    assert len(str(how["searches_sha256"])) == len(str(how["corpus_sha256"])) == 64
    played = done.paths.root / "baseline" / "feedback.jsonl"
    replay = ("--search", f"replay:{record}", "--results", str(again))
    scored = launcher.cli("score", "deepsearchqa", str(played), *data, *replay)
    assert scored.returncode == 0, scored.stderr
    said = [turn["reply"] for row in rows(played) for turn in row["trajectory"]]
    assert any(reply.startswith("Thought: I look it up.\nA land.\nAction 1: ") for reply in said)
    assert episodes(again) == episodes(played)
    assert done.result.spec.search == f"local:{lands / 'pages'}"
    assert done.result.spec.record_searches == str(record)


def test_searches_that_fail_are_a_failed_grading_and_no_score(launcher: RunLauncher, lands: Path) -> None:
    secret = "tvly-very-secret"

    def down(_: PageRequest) -> PageResponse:
        return make_json_response({"error": secret}, 400)

    with serve_pages(down) as web:
        search = ("--search", f"searxng:{web.url}")
        options = (*LANDS, *RESEARCHER, "--data-dir", str(lands), *search)
        done = launcher.cli("run", *options, PYTHONPATH=str(ROOT), TAVILY_API_KEY=secret)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["ending"], result["baseline"]) == ("failed", None)
    assert "searches" in result["reason"]
    assert "failed" in result["reason"]
    for path in (launcher.runs / result["run_id"]).rglob("*"):
        assert not path.is_file() or secret not in path.read_text(errors="replace")


@pytest.mark.thorough
def test_a_judge_scores_in_the_sandbox_and_its_outage_is_no_score(
    launcher: RunLauncher, mini: Splits
) -> None:
    outputs = launcher.home / "outputs.jsonl"
    rows = [{"id": one.id, "output": one.target.rpartition("\n")[2]} for one in mini.feedback[:60]]

    def write(first: str) -> None:
        said = [{**rows[0], "output": first}, *rows[1:]]
        outputs.write_text("".join(json.dumps(row) + "\n" for row in said))

    with serve_engine(ScriptedEngine(judge_with_gaps)) as server:
        named = f"openai-api:tiny@{server.url}"
        options = ("score", "deepsearchqa-mini", str(outputs), "--judge", named, "--json")
        write("answer[hush]")
        done = launcher.cli(*options)
        assert done.returncode == 0, done.stderr
        score = json.loads(done.stdout)["parts"][0]["score"]
        assert (score["value"], score["n"], score["missing"]) == (100, 59, 1)
        assert score["how"]["judge"].startswith(f"tiny@{server.url}")
        rows = [{**row, "output": "answer[nobody]"} for row in rows]
        write("answer[nobody]")
        server.faults.extend([fault(400)] * 100)
        done = launcher.cli(*options)
    assert done.returncode == 1
    assert "could not be judged" in done.stderr
    assert done.stdout == ""


AGENT = """
import numpy
from agent2rl.environments.adapters import Gym, open_world, play_expert_episodes

world = open_world()
shown = play_expert_episodes(3, world=world)
say(games=len(world.games), won=[episode.won for episode in shown])
say(hidden=not any(name in str(path) for name in ("heldout", "feedback") for path in DATA.rglob("*")))
mine = OUTPUT / "mine"
shutil.copytree(MODEL, mine)
weights = bytearray((mine / "model.safetensors").read_bytes())
begin = 8 + int.from_bytes(weights[:8], "little")
halves = numpy.frombuffer(weights[begin:], dtype="<u2").astype("<u4") << 16
more = (halves.view("<f4") * 1.01).view("<u4") >> 16  # all of them are bfloat16
weights[begin:] = more.astype("<u2").tobytes()
(mine / "model.safetensors").write_bytes(weights)
say(verdict=submit(mine))
"""


@pytest.mark.thorough
def test_a_real_model_plays_the_miniature_in_a_whole_run(launcher: RunLauncher) -> None:
    task = (
        "--task",
        "tests.helpers.short_deepsearchqa:TASK",
        "--model",
        "seedling",
        "--budget",
        "20m",
        "--protocol",
        "paper",
    )
    done = launcher.run(AGENT, *task, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.errors + done.log
    assert (done.said["games"], done.said["won"], done.said["hidden"]) == (10, [True] * 3, True)
    assert done.said["verdict"]["verdict"] == "scored", done.log
    assert done.result.baseline
    assert {*done.result.baseline.metrics} == {"precision", "recall", "f1", "search_recall"}
    assert done.result.rollouts
    assert done.result.rollouts.claimed.successes >= 3
    episode = launcher.cli("show", str(done.paths.root), "--submission", "1", "--episode", "1")
    assert "Question: " in episode.stdout
