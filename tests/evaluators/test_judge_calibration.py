"""A judge is measured by preferences that are known."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent2rl.core.engine import Chat
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import Calibration
from agent2rl.core.task import Example, JudgePreference
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.judge import JudgeReferee, calibrate, select_preferences
from agent2rl.grading.grading_proxy import JudgeProxy, ProxyServices, serve_grading_proxy
from agent2rl.net.grading_proxy_client import GradingProxyClient
from agent2rl.run.judges import measure_judge
from agent2rl.run.settings import Settings
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import RunLauncher

KNOWN = [
    JudgePreference(
        Example(f"one-{n}", f"Say {n}.", "the reference"),
        ("good" if n % 2 else "bad") + " and long" * (n % 3),
        float(n % 2),
    )
    for n in range(12)
]


def shown(chat: Chat) -> tuple[str, str]:
    first, second = (json.loads(line) for line in chat[-1].content.splitlines() if line.startswith('"'))
    return first, second


def by(worth: Callable[[str], float]) -> Callable[[Chat], str]:
    return lambda chat: "A" if worth(shown(chat)[0]) >= worth(shown(chat)[1]) else "B"


def measure(answer: Callable[[Chat], str], kept: Path) -> Calibration:
    with serve_grading_proxy(
        ProxyServices(judging=JudgeProxy("the judge", ScriptedEngine(answer), kept))
    ) as socket:
        assert socket
        return calibrate(JudgeReferee(GradingProxyClient(socket)), KNOWN)


def value(found: Calibration, name: str) -> float:
    return float(getattr(found, name).value)


def test_a_judge_that_sees_what_is_good_agrees(tmp_path: Path) -> None:
    found = measure(by(lambda text: {"g": 2, "t": 1, "b": 0}[text[0]]), tmp_path)
    assert (found.n, found.missing, found.judge) == (12, 0, "the judge pairwise-2")
    assert [value(found, name) for name in ("agreement", "consistency", "first")] == [100, 100, 50]
    assert value(found, "longer") == value(found, "longer_known")


def test_a_judge_that_sees_the_place_alone_is_found_out(tmp_path: Path) -> None:
    found = measure(lambda _: "A", tmp_path)
    assert [value(found, name) for name in ("agreement", "consistency", "first")] == [50, 0, 100]


def test_a_judge_that_likes_length_is_found_out(tmp_path: Path) -> None:
    found = measure(by(len), tmp_path)
    assert value(found, "longer") == 100
    assert value(found, "longer_known") < 70


def test_what_it_does_not_answer_in_both_orders_is_missing(tmp_path: Path) -> None:
    def shy(chat: Chat) -> str:
        return "B" if shown(chat)[0].startswith("good") else "A or B"

    with pytest.raises(GradingError, match="no preference at all"):
        measure(shy, tmp_path)
    found = measure(lambda chat: "A" if "Say 3." in chat[-1].content else "no", tmp_path / "other")
    assert (found.n, found.missing) == (1, 11)


def test_a_sample_is_the_same_each_time_and_has_no_ties() -> None:
    assert select_preferences([JudgePreference(KNOWN[0].example, "half a sign: \ud83d", 1.0)], 5)
    tied = JudgePreference(KNOWN[0].example, "so so", 0.5)
    assert select_preferences([*KNOWN, tied], 100) == select_preferences([tied, *reversed(KNOWN)], 100)
    assert tied not in select_preferences([*KNOWN, tied], 100)
    assert len(select_preferences(KNOWN, 5)) == 5


def test_the_command_asks_a_real_endpoint(launcher: RunLauncher, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "annotations").mkdir(parents=True)
    rows = [{"instruction": one.example.prompt, "output": one.example.target} for one in KNOWN]
    (data / "alpaca_eval_gpt4_baseline.json").write_text(json.dumps(rows), encoding="utf-8")
    said = [
        {"instruction": one.example.prompt, "output_2": one.output, "preference": 1 + one.share}
        for one in KNOWN
    ]
    (data / "annotations" / "mine.json").write_text(json.dumps(said), encoding="utf-8")
    with serve_engine(ScriptedEngine(by(lambda text: "good" in text))) as server:
        name = f"openai-api:tiny@{server.url}"
        done = launcher.cli("judge", "calibrate", name, "--data-dir", str(data), "--json")
    assert done.returncode == 0, done.stderr
    found = Calibration.model_validate_json(done.stdout)
    assert found.n == 12
    # Where neither is good it says A: in one order that is the output, in the other the reference.
    assert value(found, "agreement") == 75
    assert found.by_probability == 0


def test_a_task_without_published_preferences_is_no_measure(tmp_path: Path) -> None:
    where = Settings(runs=tmp_path, cache=tmp_path)
    with pytest.raises(UserError, match="no published preferences"):
        measure_judge("alpacaeval-mini", "openai-api:x@http://127.0.0.1:9", None, 2, where)
    with pytest.raises(UserError, match="annotations/"):
        measure_judge("alpacaeval", "openai-api:x@http://127.0.0.1:9", tmp_path, 2, where)
