"""The harness replays reported episodes, and tells true reports from false ones."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent2rl import registry
from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.records import Rollouts
from agent2rl.core.task import Example
from agent2rl.environments.adapters import EpisodeTrace, open_world
from agent2rl.environments.examples import MOST_REPLAYED_BYTES
from agent2rl.grading import rollout_meter
from agent2rl.grading.rollout_meter import (
    EpisodeReport,
    ForgedReport,
    ReportOutOfOrder,
    RolloutReport,
    TooManyReports,
    replay_episodes,
)
from agent2rl.run.task_data import open_training_world, write_training_data
from tests.helpers.recorded_meter import RecordedMeter, open_recorded_meter
from tests.helpers.small_worlds import STAIRS_WORLD, write_alfworld_data

STAIRS = replace(STAIRS_WORLD, replayable=True)
GAME = STAIRS.games[2]
CLIMB = ("up",) * int(GAME.target)
WON = EpisodeTrace(GAME.id, CLIMB, 1.0, True)
LOST = EpisodeTrace(GAME.id, ("wait", "up"), 0.0, False)


def fail(where: str) -> None:
    raise AssertionError(where)


def claim(one: RecordedMeter, traces: list[EpisodeTrace], sequence: int = 1) -> None:
    steps = sum(len(trace.actions) for trace in traces)
    wins = sum(trace.won for trace in traces)
    one.meter.count_claim(one.report(sequence, episodes=len(traces), steps=steps, successes=wins))


def test_a_claimed_episode_is_replayed_and_counts_as_such(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(STAIRS, fail)
        claim(one, [WON, LOST])
        one.meter.accept_episodes(one.report_traces(1, [WON, LOST]))
        totals = one.meter.close_and_sum_totals()
        assert totals.replayed == totals.claimed == totals.witnessed
        assert totals.replayed.model_dump() == {"episodes": 2, "steps": len(CLIMB) + 2, "successes": 1}
        assert not any(totals.refuted.model_dump().values())
        assert not any(totals.unverified.model_dump().values())
        assert [event["source"] for event in one.events()] == ["claimed", "replayed"]


@pytest.mark.parametrize(
    ("false", "detail"),
    [
        (replace(WON, actions=CLIMB[:-1]), "reported reward 1, won; replayed reward 0"),
        (replace(LOST, reward=0.5), "reported reward 0.5; replayed reward 0"),
        (replace(LOST, won=True), "reported reward 0, won; replayed reward 0"),
        (replace(WON, actions=(*CLIMB, "up")), "over after"),
        (replace(WON, game="another"), "no training game 'another'"),
    ],
)
def test_an_episode_with_another_outcome_is_refuted(tmp_path: Path, false: EpisodeTrace, detail: str) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(STAIRS, fail)
        claim(one, [false, LOST])
        one.meter.accept_episodes(one.report_traces(1, [false, LOST]))
        totals = one.meter.close_and_sum_totals()
        assert (totals.refuted.episodes, totals.replayed.episodes) == (1, 1)
        assert detail in next(event["detail"] for event in one.events() if event["source"] == "refuted")


def test_episodes_of_a_world_that_cannot_be_replayed_stay_claims(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(STAIRS_WORLD, fail)
        claim(one, [WON])
        one.meter.accept_episodes(one.report_traces(1, [WON]))
        totals = one.meter.close_and_sum_totals()
        assert totals.unverified == totals.claimed
        assert totals.witnessed.episodes == 0


@pytest.mark.parametrize("task", ["alfworld-mini", "webshop-mini", "deepsearchqa-mini"])
def test_what_an_expert_wins_in_a_shipped_world_is_replayed_with_the_same_rewards(task: str) -> None:
    with open_training_world(task, None) as (_, world):
        assert world.expert is not None
        environment, traces = world.environment(), []
        for game in world.games[:12]:
            expert = world.expert()
            step, actions, reward = environment.reset(game), list[str](), 0.0
            while not step.done:
                actions.append(expert.act(step.observation))
                step = environment.step(actions[-1])
                reward = max(reward, step.reward)
            traces.append(EpisodeTrace(game.id, tuple(actions), reward, step.won))
        environment.close()
        assert world.replayable
        outcome = replay_episodes(world, traces)
        assert outcome.replayed.episodes == len(traces), outcome.detail
        assert outcome.replayed.successes > 6
        wrong = [replace(trace, reward=trace.reward / 2 + 0.25, won=not trace.won) for trace in traces]
        assert replay_episodes(world, wrong).refuted.episodes == len(traces)


@pytest.mark.parametrize(("task", "folder"), [("webshop-mini", "shop"), ("deepsearchqa-mini", "corpus")])
def test_episodes_in_a_large_shop_or_corpus_are_not_replayed(task: str, folder: str, tmp_path: Path) -> None:
    opened = registry.find_task(task)
    splits = opened.load(None)
    write_training_data(tmp_path, opened, splits.train[:3], splits.folders, templated=True)
    assert opened.world
    open_data = registry.find_world(opened.world)
    assert open_data(tmp_path).replayable
    with (tmp_path / folder / "more").open("wb") as file:
        file.truncate(MOST_REPLAYED_BYTES)
    assert not open_data(tmp_path).replayable


def test_only_claimed_episodes_can_be_proved_and_each_once(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(STAIRS, fail)
        with pytest.raises(Refusal, match="not counted yet"):
            one.meter.accept_episodes(one.report_traces(1, [WON]))
        claim(one, [WON])
        one.meter.accept_episodes(one.report_traces(1, [WON]))
        with pytest.raises(ReportOutOfOrder, match="next number is 2"):
            one.meter.accept_episodes(one.report_traces(1, [WON]))
        with pytest.raises(Refusal, match="not counted yet"):
            one.meter.accept_episodes(one.report_traces(2, [WON]))
        with pytest.raises(Refusal, match="not counted yet"):
            one.meter.accept_episodes(one.report_traces(1, [WON], reporter="another"))
        assert one.meter.close_and_sum_totals().replayed.episodes == 1


def test_a_report_of_episodes_with_a_wrong_signature_does_not_count(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path) as one:
        claim(one, [WON, WON])
        with pytest.raises(ForgedReport):
            one.meter.accept_episodes(one.report_traces(1, [WON], key="another"))
        right = one.report_traces(1, [WON])
        with pytest.raises(ForgedReport):
            one.meter.accept_episodes(right.model_copy(update={"episodes": right.episodes * 2}))


@pytest.mark.parametrize(
    ("limit", "value"), [("WAITING_STEPS", 1 + len(CLIMB)), ("WAITING_CHARACTERS", sum(map(len, CLIMB)))]
)
def test_a_full_queue_refuses_and_takes_the_same_report_later(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_meter, limit, value)
    entered, go_on = threading.Event(), threading.Event()

    class Waiting:
        def __init__(self) -> None:
            self.inner = STAIRS.environment()
            self.step, self.close = self.inner.step, self.inner.close

        def reset(self, example: Example) -> EnvironmentStep:
            entered.set()
            assert go_on.wait(60)
            return self.inner.reset(example)

    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(replace(STAIRS, environment=Waiting), fail)
        claim(one, [WON] * 3)
        one.meter.accept_episodes(one.report_traces(1, [WON]))
        assert entered.wait(60)
        one.meter.accept_episodes(one.report_traces(2, [WON]))
        with pytest.raises(TooManyReports):
            one.meter.accept_episodes(one.report_traces(3, [WON]))
        go_on.set()
        assert one.meter.close_and_sum_totals().replayed.episodes == 2


def test_what_is_not_replayed_soon_after_the_end_stays_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_meter, "CLOSE_SECONDS", 0.3)
    entered, closing = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.inner = STAIRS.environment()
            self.step, self.close = self.inner.step, self.inner.close

        def reset(self, example: Example) -> EnvironmentStep:
            entered.set()
            assert closing.wait(60)
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                time.sleep(0.01)
            return self.inner.reset(example)

    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(replace(STAIRS, environment=Slow), fail)
        claim(one, [WON] * 3)
        one.meter.accept_episodes(one.report_traces(1, [WON] * 3))
        assert entered.wait(60)
        closing.set()
        totals = one.meter.close_and_sum_totals()
        assert (totals.replayed.episodes, totals.unverified.episodes) == (1, 2)


def test_an_error_of_the_world_is_recorded_and_the_episodes_stay_claims(tmp_path: Path) -> None:
    class Broken:
        def reset(self, example: Example) -> EnvironmentStep:
            raise RuntimeError(f"{example.id} is broken")

        def step(self, action: str) -> EnvironmentStep:
            raise NotImplementedError

        def close(self) -> None: ...

    faults: list[str] = []
    with open_recorded_meter(tmp_path) as one:
        one.meter.replay_in(replace(STAIRS, environment=Broken), faults.append)
        claim(one, [WON])
        one.meter.accept_episodes(one.report_traces(1, [WON]))
        assert one.meter.close_and_sum_totals().unverified.episodes == 1
    assert faults == ["replaying episodes"]


@settings(max_examples=50)
@given(
    actions=st.lists(st.sampled_from(["up", "wait"]), max_size=8),
    reward=st.sampled_from([0.0, 1.0]),
    won=st.booleans(),
)
def test_a_replay_confirms_exactly_what_the_world_does(actions: list[str], reward: float, won: bool) -> None:
    environment = STAIRS.environment()
    step, best, taken = environment.reset(GAME), 0.0, 0
    for action in actions:
        if not step.done:
            step, taken = environment.step(action), taken + 1
            best = max(best, step.reward)
    true = taken == len(actions) and (reward, won) == (best, step.won)
    outcome = replay_episodes(STAIRS, [EpisodeTrace(GAME.id, tuple(actions), reward, won)])
    assert outcome.replayed.episodes == true
    assert outcome.refuted.episodes == (not true)
    assert bool(outcome.detail) == (not true)


@settings(max_examples=30)
@given(
    episodes=st.lists(
        st.dictionaries(
            st.sampled_from(["game", "actions", "reward", "won"]),
            st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.booleans(),
        )
    )
)
def test_whatever_is_reported_is_taken_or_refused(
    episodes: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_recorded_meter(tmp_path_factory.mktemp("meter")) as one:
        one.meter.replay_in(STAIRS, fail)
        claim(one, [WON])
        body = one.report_traces(1, [WON]).model_dump() | {"episodes": episodes}
        with pytest.raises((ValidationError, Agent2RLError)):
            one.meter.accept_episodes(EpisodeReport.model_validate(body))


# The side of the agent

PLAY = """
import time
from agent2rl.environments.adapters import EpisodeTrace, count_steps, open_world, report_episodes, rollout

world = open_world()
def look(conversations):
    return ["look"] * len(conversations)
"""


def run_agent(
    tmp_path: Path, code: str, answer: Callable[[str, bytes], int], key: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that plays, with a service that answers with these statuses."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"environment_steps_left": null, "detail": "refused"}')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-c", PLAY + code],
            env={
                **os.environ,
                "DATA_PATH": str(write_alfworld_data(tmp_path / "data", 2)),
                "GRADING_SERVER_URL": f"http://127.0.0.1:{server.server_port}",
                "ROLLOUT_KEY": key,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        server.shutdown()
    return done


ALL_WAYS = """
rollout(look, 3, world=world)                   # 150 steps
environment = count_steps(world).environment()
environment.reset(world.games[0])
environment.step("look")                        # given up after a step
environment.reset(world.games[1])
environment.step("inventory")
environment.close()
report_episodes([EpisodeTrace(world.games[0].id, ("look", "look"), 0.0, False)])
"""


def replay_what_is_reported(tmp_path: Path, program: str) -> Rollouts:
    """Run a program as an agent, and replay the episodes that it reports."""
    with open_recorded_meter(tmp_path / "runs") as one:
        batches: list[EpisodeReport] = []

        def answer(path: str, body: bytes) -> int:
            if path == "/rollouts":
                one.meter.count_claim(RolloutReport.model_validate_json(body))
            else:
                batches.append(EpisodeReport.model_validate_json(body))
            return 200

        run_agent(tmp_path, program, answer, one.meter.key)
        one.meter.replay_in(open_world(tmp_path / "data"), fail)
        for batch in batches:
            one.meter.accept_episodes(batch)
        return one.meter.close_and_sum_totals()


def test_what_the_adapters_play_is_reported_and_can_be_replayed(tmp_path: Path) -> None:
    totals = replay_what_is_reported(tmp_path, ALL_WAYS)
    assert totals.claimed.model_dump() == {"episodes": 6, "steps": 154, "successes": 0}
    assert totals.replayed == totals.claimed


LEFT_OPEN = """
import multiprocessing

kept = []

def play():
    kept.append(count_steps(world).environment())
    kept[-1].reset(world.games[0])
    kept[-1].step("look")  # the conversation outgrows the model's context, say

play()
child = multiprocessing.get_context("fork").Process(target=play)
child.start()
child.join()
"""


def test_episodes_that_are_open_when_their_process_ends_are_reported_with_their_actions(
    tmp_path: Path,
) -> None:
    totals = replay_what_is_reported(tmp_path, LEFT_OPEN)
    assert totals.claimed.model_dump() == {"episodes": 2, "steps": 2, "successes": 0}
    assert totals.replayed == totals.claimed


def test_a_report_without_an_answer_is_sent_again_and_a_refused_one_is_not(tmp_path: Path) -> None:
    with open_recorded_meter(tmp_path / "runs") as one:
        seen: list[int] = []

        def answer(path: str, body: bytes) -> int:
            if path == "/rollouts":
                return 200
            seen.append(EpisodeReport.model_validate_json(body).sequence)
            return {1: 503, 2: 200, 3: 422}.get(len(seen), 200)

        code = "from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER as reporter\n"
        code += "for _ in range(4):\n    rollout(look, 1, world=world)\n    reporter.send_report()\n"
        done = run_agent(tmp_path, code, answer, one.meter.key)
        assert seen == [1, 1, 2, 2]  # unanswered, again, refused, the next
        assert "refuses rollout reports" in done.stderr


def test_traces_beyond_the_buffer_are_dropped(tmp_path: Path) -> None:
    code = """
from agent2rl.environments.adapters import rollout_reports
rollout_reports.BUFFER_BYTES = 2000
rollout(look, 20, world=world, live=20)
"""
    with open_recorded_meter(tmp_path / "runs") as one:
        counted: list[int] = []
        proved: list[int] = []

        def answer(path: str, body: bytes) -> int:
            if path == "/rollouts":
                counted.append(RolloutReport.model_validate_json(body).episodes)
            else:
                proved.append(len(EpisodeReport.model_validate_json(body).episodes))
            return 200

        run_agent(tmp_path, code, answer, one.meter.key)
        assert sum(counted) == 20
        assert 1 <= sum(proved) < 20
