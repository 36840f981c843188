"""What is played in a world is counted once, and claims are told from what was witnessed."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.records import Budget, ExpertHelp, RunSpec
from agent2rl.environments.adapters import StepsUsedUp
from agent2rl.grading.rollout_meter import ForgedReport, ReportOutOfOrder, RolloutReport
from agent2rl.run.training_services import render_world_instructions
from agent2rl.tasks.gsm8k.mini import TASK as MINI
from tests.helpers.recorded_meter import open_recorded_meter
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_worlds import write_alfworld_data

PLAY = """
from agent2rl.environments.adapters import rollout

def look(conversations):
    return ["look"] * len(conversations)
"""


REPORT_WHEN_TOLD = """
from agent2rl.environments.adapters import rollout_reports

rollout_reports.FIRST_SECONDS = 600.0
report = rollout_reports.ROLLOUT_REPORTER.send_report
"""


def test_reports_are_counted_each_on_the_record(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.count_claim(one.report(1, episodes=2, steps=40))
        one.meter.count_claim(one.report(2, episodes=1, steps=30, successes=2))
        one.meter.count_claim(one.report(1, "another", episodes=1, steps=1))
        totals = one.meter.close_and_sum_totals()
        assert totals.claimed.model_dump() == {"episodes": 4, "steps": 71, "successes": 2}
        assert not any(totals.served.model_dump().values())
        assert [event["steps"] for event in one.events()] == [40, 30, 1]
        assert {event["source"] for event in one.events()} == {"claimed"}
        assert '"rollout_totals"' in one.recorder.paths.ledger.read_text()


@pytest.mark.parametrize("sequence", [1, 3, 7])
def test_a_report_that_is_not_the_next_one_does_not_count(tmp_path: Path, sequence: int) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.count_claim(one.report(1, steps=1, episodes=1))
        with pytest.raises(ReportOutOfOrder, match="The next number is 2"):
            one.meter.count_claim(one.report(sequence, steps=5))
        assert one.meter.sum_totals().claimed.steps == 1


def test_a_report_that_another_key_signed_or_that_was_changed_does_not_count(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        right = one.report(1, steps=5, episodes=1)
        for wrong in (
            one.report(1, steps=5, episodes=1, key="another"),
            right.model_copy(update={"steps": 6}),
            right.model_copy(update={"reporter": "you"}),
            right.model_copy(update={"signature": "é"}),
        ):
            with pytest.raises(ForgedReport, match="signature"):
                one.meter.count_claim(wrong)
        assert one.meter.sum_totals().claimed.steps == 0


@pytest.mark.parametrize(
    "counts", [{"steps": 10**11}, {"episodes": 10**11}, {"successes": 1}, {"episodes": 1, "successes": 2}]
)
def test_the_absurd_is_refused(tmp_path: Path, counts: dict[str, int]) -> None:
    with open_recorded_meter(tmp_path) as one, pytest.raises(Refusal):
        one.meter.count_claim(one.report(1, "me", "", **counts))


@settings(max_examples=30)
@given(
    counts=st.dictionaries(
        st.sampled_from(["episodes", "steps", "successes"]),
        st.integers() | st.floats() | st.booleans() | st.text(),
        min_size=1,
    )
)
def test_whatever_is_claimed_is_counted_or_refused(
    counts: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_recorded_meter(tmp_path_factory.mktemp("meter")) as one:
        body = one.report(1).model_dump() | counts
        try:
            one.meter.count_claim(RolloutReport.model_validate(body))
        except (ValidationError, Agent2RLError):
            assert not any(one.meter.sum_totals().claimed.model_dump().values())


def test_claims_and_served_steps_use_up_one_budget(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path, steps=10) as one:
        one.meter.count_claim(one.report(1, episodes=1, steps=8))
        one.meter.begin_episode()
        one.meter.require_budget()
        one.meter.count_step(won=False)
        assert one.meter.steps_left() == 1
        one.meter.count_claim(one.report(2, steps=5))  # it happened, so it counts
        assert one.meter.steps_left() == 0
        for refused in (one.meter.begin_episode, one.meter.require_budget):
            with pytest.raises(StepsUsedUp):
                refused()
        assert one.meter.sum_totals().claimed.steps == 13


def test_play_goes_on_where_the_service_is_away(tmp_path: Path) -> None:
    code = PLAY + REPORT_WHEN_TOLD + "rollout(look, 2); report(); print(len(rollout(look, 3)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "DATA_PATH": str(write_alfworld_data(tmp_path / "data", 2)),
            "GRADING_SERVER_URL": "http://127.0.0.1:9",
            "ROLLOUT_KEY": "key",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_lost_answer_makes_nothing_count_twice(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        heard: list[int] = []

        class Forgetful(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                report = RolloutReport.model_validate_json(body)
                heard.append(report.sequence)
                try:
                    one.meter.count_claim(report)
                    status, answer = 200, b'{"environment_steps_left": null}'
                except ReportOutOfOrder:
                    status, answer = 409, b"{}"
                if len(heard) > 1:  # the first is counted and gets no answer
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    PLAY + REPORT_WHEN_TOLD + "rollout(look, 2); report(); rollout(look, 1)",
                ],
                env={
                    **os.environ,
                    "DATA_PATH": str(write_alfworld_data(tmp_path / "data", 2)),
                    "GRADING_SERVER_URL": f"http://127.0.0.1:{server.server_port}",
                    "ROLLOUT_KEY": one.meter.key,
                },
                timeout=300,
                check=False,
            )
            server.shutdown()
        assert done.returncode == 0
        assert heard == [1, 1, 2]
        assert one.meter.sum_totals().claimed.model_dump() == {"episodes": 3, "steps": 150, "successes": 0}


def test_the_example_that_an_agent_reads_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_PATH", str(write_alfworld_data(tmp_path / "data", 2)))
    spec = RunSpec(
        task="alfworld-mini", agent="nop", model="abacus", engine="scripted", budget=Budget(wall_seconds=60)
    )
    told = render_world_instructions(replace(MINI, world="alfworld"), spec)
    namespace: dict[str, Any] = {}
    exec(told.split("```python")[1].split("```")[0], namespace)
    assert len(namespace["episodes"]) == 8
    assert render_world_instructions(MINI, spec) == ""


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("full", "an expert plays any training game"),
        (1500, "data/demonstrations.jsonl` has 1,500 training games"),
        ("none", "There is no expert and there are no demonstrations."),
    ],
)
def test_the_instructions_say_how_much_help_there_is(level: ExpertHelp, said: str) -> None:
    spec = RunSpec(
        task="alfworld-mini",
        agent="nop",
        model="abacus",
        engine="scripted",
        budget=Budget(wall_seconds=60),
        expert=level,
    )
    assert said in render_world_instructions(replace(MINI, world="alfworld"), spec)


HOUSE = """
from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Example, Splits
from agent2rl.tasks.gsm8k.mini import TASK as MINI

DATA = Path(__file__).with_name("data")
IDS = ["/".join(path.parts[-3:-1]) for path in sorted(DATA.rglob("*.tw-pddl"))]


def load(data_dir):
    whole = MINI.load(data_dir)
    train = tuple(Example(name, "Do as told.", "#### 1", {"steps": 5}) for name in IDS)
    return Splits(train, whole.feedback[:4], whole.heldout[:4], folders={"games": DATA / "games"})


TASK = replace(MINI, id="house", load=load, world="alfworld")
"""

AGENT = (
    PLAY
    + r"""
import multiprocessing
from websockets.sync.client import connect
from agent2rl.environments.adapters import Gym, StepsUsedUp, open_world

games = [game.id for game in open_world().games]
rollout(look, 2)                                                      # 2 episodes, 10 steps
child = multiprocessing.get_context("fork").Process(target=rollout, args=(look, 1))
child.start()                                                         # 1 episode, 5 steps
child.join()
with connect(os.environ["ENVIRONMENT_URL"].replace("http", "ws", 1) + "/ws") as line:
    def ask(kind, **data):
        line.send(json.dumps({"type": kind, "data": data}))
        return json.loads(line.recv())
    seen = ask("reset", game=games[0])["data"]["observation"]
    same = seen["text"] == Gym().reset(options={"game": games[0]})[0] # 1 episode
    for _ in range(4):                                                # served: 1 ep   isode, 4 steps
        ask("step", text="look")
    bad = [
        call("POST", "/rollouts", body)["http"]
        for body in (
            {}, [], None, {"reporter": "x"},
            {"reporter": "x", "sequence": 1, "episodes": 1, "steps": 1, "successes": 0, "signature": "no"},
            {"reporter": "x", "sequence": 1, "episodes": -1, "steps": 1, "successes": 0, "signature": "no"},
        )
    ]
    until = time.monotonic() + 120
    while (left := call("GET", "/time")["environment_steps_left"]) > 21 and time.monotonic() < until:
        time.sleep(0.05)
    stopped = 0
    try:
        for _ in range(100):
            rollout(look, 1)
            stopped += 1
    except StepsUsedUp as error:
        refused = ask("step", text="look")["data"]
        say(same=same, bad=bad, left=left, stopped=stopped, error=str(error), refused=refused["code"])
told = (WORKSPACE / "instructions.md").read_text()
clock = call("GET", "/time")
say(told="at most 40 steps" in told, after=clock["environment_steps_left"], steps=clock["environment_steps"])
"""
)


def test_a_run_counts_what_is_played_inside_and_at_the_door_and_ends_it_when_it_is_used_up(
    launcher: RunLauncher,
) -> None:
    plugins = launcher.home / "plugins"
    write_alfworld_data(plugins / "data", 3)
    (plugins / "house.py").write_text(HOUSE)
    run = launcher.run(
        AGENT, "--task", "house:TASK", "--max-env-steps", "40", "--budget", "20m", PYTHONPATH=str(plugins)
    )
    assert run.result.ending == "completed", run.log
    assert run.said["told"]
    assert run.said["same"]
    assert run.said["bad"] == [400, 400, 400, 400, 403, 400]
    assert run.said["left"] == 40 - 10 - 5 - 4
    assert "used up" in run.said["error"]
    assert run.said["refused"] == "BUDGET_USED_UP"
    assert run.said["after"] == 0
    played = run.result.rollouts
    assert played is not None
    assert played.served.model_dump() == {"episodes": 1, "steps": 4, "successes": 0}
    assert played.claimed.steps == 15 + 5 * run.said["stopped"] >= 36
    assert played.claimed.steps <= 45
    assert played.replayed.steps >= 15
    assert played.refuted.episodes == 0
    assert played.unverified.steps <= 10
    shown = launcher.cli("show", run.result.run_id)
    assert f"{played.claimed.steps} steps, 0 won, in the agent's own processes" in shown.stdout
    assert "1 episode, 4 steps, 0 won, in the harness's world" in shown.stdout
    assert f"{played.replayed.steps} steps, 0 won, with the same result" in shown.stdout
    total = played.claimed.steps + 4
    steps = {"played": total, "served": 4, "claimed": played.claimed.steps, "left": 0}
    assert run.said["steps"] == steps
    assert f"{total} played, 0 left of 40" in shown.stdout
    assert launcher.cli("verify", run.result.run_id).returncode == 0
