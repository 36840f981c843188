"""Whole runs with judges: one that grades, out of the agent's reach, and one to train with."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agent2rl.core.engine import Chat
from agent2rl.core.errors import UserError
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_proxy import JudgeProxy
from agent2rl.grading.server import serve_on_socket as at_socket
from agent2rl.grading.training_judge import BODY_BYTES, TrainingJudge, create_training_judge_app
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.record import ledger
from agent2rl.run import grading_proxy_setup, judges
from agent2rl.run.assets import prepare_model_directory
from agent2rl.run.settings import Settings
from agent2rl.tasks.alpacaeval.mini import TASK
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.short_alpacaeval import CONSTANT_COUNT, INSTRUCTION_COUNT

ROOT = Path(__file__).resolve().parents[2]

ASKS = """
JUDGE = os.environ["JUDGE_URL"]
body = {"model": "judge", "messages": [{"role": "user", "content": "Is this good?"}], "max_tokens": 9}
request = urllib.request.Request(JUDGE + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
reply = json.load(urllib.request.urlopen(request))
say(reply=reply["choices"][0]["message"]["content"], told=(WORKSPACE / "instructions.md").read_text(),
    doors=sorted(name for name in os.environ if name.endswith("_URL")))
"""


def test_the_agent_asks_its_own_judge_and_another_one_grades(launcher: RunLauncher) -> None:
    with (
        serve_engine(ScriptedEngine(lambda _: "A")) as grader,
        serve_engine(ScriptedEngine(lambda _: "Quite good.")) as other,
    ):
        run = launcher.run(
            ASKS,
            *("--task", "tests.helpers.short_alpacaeval:TASK", "--max-submissions", "1"),
            *("--judge", f"openai-api:tiny@{grader.url}", "--train-judge", f"openai-api:other@{other.url}"),
            *("--train-judge-questions", "7"),
            PYTHONPATH=str(ROOT),
        )
    assert run.code == 0, run.errors
    assert run.said["reply"] == "Quite good."
    assert run.said["doors"] == ["GRADING_SERVER_URL", "JUDGE_URL"]
    assert "$JUDGE_URL/v1/chat/completions" in run.said["told"]
    assert len(other.questions) == 1
    assert len(grader.questions) == INSTRUCTION_COUNT + 3 * CONSTANT_COUNT
    baseline = run.result.baseline
    assert baseline is not None
    assert str(baseline.how["judge"]).startswith("tiny@")
    # Who says A whatever is asked favours a place, and places are drawn.
    assert 30 < baseline.value < 70
    (entry,) = [
        one
        for one in ledger.read_ledger(run.paths.ledger, run.paths.ledger_head).entries
        if one.kind == "train_judge"
    ]
    assert (entry.data["questions"], entry.data["failed"]) == (1, 0)
    assert run.result.train_judge is not None
    assert run.result.train_judge.model_dump() == entry.data
    assert "7 questions" in run.said["told"]
    shown = launcher.cli("show", run.result.run_id).stdout
    assert f"1 of 7 questions to other@{other.url}" in shown
    assert re.search(r"constants.*empty \d+\.\d+, generic .* attack .*5 examples", shown)
    assert grader.url not in run.log
    used = run.result.judge_usage
    assert used
    assert (used.answered, used.failed) == (len(grader.questions), 0)
    assert "judge usage" in shown
    seen = [path for path in run.paths.workspace.rglob("*") if path.is_file() and not path.is_symlink()]
    assert seen
    assert not [path for path in seen if grader.url.encode() in path.read_bytes()]


def test_the_judge_that_grades_is_not_the_one_to_train_with(tmp_path: Path) -> None:
    where = Settings(runs=tmp_path, cache=tmp_path / "cache")
    shutil.copytree(prepare_model_directory("abacus", where.cache), tmp_path / "copy")
    with serve_engine(ScriptedEngine(lambda _: "A")) as server:
        name = f"openai-api:tiny@{server.url}"
        for judge, other in (
            (name, name),
            (name, f"{name}/"),
            (name, f"openai-api:{server.url}"),
            (f"openai-api:{server.url}", "openai-api:Tiny@http://127.0.0.1:9/v1"),
            ("model:abacus", f"model:{tmp_path / 'copy'}"),
        ):
            wanted = grading_proxy_setup.GradingProxyOptions(judge=judge, train_judge=other)
            with (
                pytest.raises(UserError, match="are the same model"),
                grading_proxy_setup.open_grading_proxy(wanted, TASK, where),
            ):
                pass
    wanted = grading_proxy_setup.GradingProxyOptions(train_judge="transformers")
    with (
        pytest.raises(UserError, match="The provider of 'transformers' is unknown"),
        grading_proxy_setup.open_grading_proxy(wanted, TASK, where),
    ):
        pass


def test_a_judge_is_one_however_it_is_spelt_and_another_where_the_model_is(tmp_path: Path) -> None:
    where = Settings(runs=tmp_path, cache=tmp_path / "cache")

    def named(name: str) -> str:
        with judges.open_judge(name, where) as judging:
            return judging.name

    with serve_engine(ScriptedEngine(lambda _: "A")) as server:
        one = f"tiny@{server.url}"
        assert named(f"openai-api:{server.url}/") == named(f"openai-api:{one}") == named(one) == one
    content = compute_manifest(prepare_model_directory("abacus", where.cache)).sha256
    assert named("model:abacus") == f"model:abacus@{content[:12]}"


def test_there_are_so_many_questions_and_no_more(tmp_path: Path) -> None:
    training_judge = TrainingJudge(JudgeProxy("it", ScriptedEngine(lambda _: "Good."), tmp_path), limit=3)
    asked = {"messages": [{"role": "user", "content": "Well?"}]}
    with (
        at_socket(create_training_judge_app(training_judge)) as socket,
        httpx.Client(transport=KeyedTransport(socket), base_url="http://it", timeout=120) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        said = list(pool.map(lambda _: client.post("/v1/chat/completions", json=asked), range(8)))
    assert sorted(one.status_code for one in said) == [200] * 3 + [429] * 5
    assert "All 3 questions" in next(one.text for one in said if one.status_code == 429)
    use = training_judge.read_usage()
    assert (use.questions, use.refused, use.characters, use.limit) == (3, 5, 15, 3)


def test_a_question_that_fails_says_so_and_is_counted(tmp_path: Path) -> None:
    def breaks(_: Chat) -> str:
        raise RuntimeError("words with a key in them")

    training_judge = TrainingJudge(JudgeProxy("it", ScriptedEngine(breaks), tmp_path), limit=9)
    with (
        at_socket(create_training_judge_app(training_judge)) as socket,
        httpx.Client(transport=KeyedTransport(socket), base_url="http://it", timeout=120) as client,
    ):
        asked = {"messages": [{"role": "user", "content": "Well?"}]}
        failed = client.post("/v1/chat/completions", json=asked)
        large = client.post("/v1/chat/completions", content=b"x" * (BODY_BYTES + 1))
        named = client.get("/v1/models").json()
    assert (failed.status_code, failed.json()) == (
        502,
        {"error": {"message": "internal error (RuntimeError)"}},
    )
    assert large.status_code == 413
    assert named["data"][0]["id"] == "judge"
    use = training_judge.read_usage()
    assert (use.questions, use.failed, use.characters, use.tokens) == (1, 1, 5, 0)
