"""The client of a served world: an environment like any other, whose steps the harness counts itself."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters import StepsUsedUp
from agent2rl.environments.adapters.client import ServedWorld
from agent2rl.environments.adapters.openenv import BODY_BYTES, MAX_SESSIONS, application
from agent2rl.environments.adapters.openenv_messages import SessionLimitReached
from agent2rl.environments.adapters.rollout_reports import RolloutReporter
from agent2rl.grading.rollout_meter import RolloutMeter
from agent2rl.grading.server import serve_on_socket
from tests.helpers.recorded_meter import open_recorded_meter
from tests.helpers.small_worlds import STAIRS_GAMES, STAIRS_WORLD
from tests.helpers.stairs_environment import StairsEnvironment
from tests.helpers.web_server import make_json_response, serve_pages


class MarkedStairs(StairsEnvironment):
    """The stairs with a metric of their own."""

    def step(self, action: str) -> EnvironmentStep:
        return replace(super().step(action), marks={"height": self.height / 10})


@pytest.fixture
def serving() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(
    stack: ExitStack, folder: Path, steps: int | None = None, idle_seconds: float = 60
) -> tuple[str, RolloutMeter]:
    played = stack.enter_context(open_recorded_meter(folder, steps))
    world = replace(STAIRS_WORLD, environment=MarkedStairs)
    app = application(world, "stairs", played.meter, idle_seconds=idle_seconds)
    socket = stack.enter_context(
        serve_on_socket(app, connections=MAX_SESSIONS + 64, message_bytes=BODY_BYTES)
    )
    return f"unix:{socket}", played.meter


def play(environment: Environment, game: Example, actions: list[str]) -> list[EnvironmentStep]:
    return [environment.reset(game), *(environment.step(action) for action in actions)]


def test_a_served_world_plays_as_the_world_itself_and_the_harness_counts_the_steps(
    serving: ExitStack, tmp_path: Path
) -> None:
    url, meter = serve(serving, tmp_path)
    served = ServedWorld(url)
    for game, actions in (
        (STAIRS_GAMES[1], ["up", "up"]),
        (STAIRS_GAMES[7], ["wait"] * 6),
        (STAIRS_GAMES[2], ["jump"]),
        (STAIRS_GAMES[2], ["", "\ud800", "\0" * 100_000, "\U0001f600" * 100_000]),
    ):
        assert play(served, game, actions) == play(MarkedStairs(), game, actions)
    served.close()
    assert meter.sum_totals().served.model_dump() == {"episodes": 4, "steps": 13, "successes": 1}


def test_steps_in_a_served_world_are_not_claimed_a_second_time(serving: ExitStack, tmp_path: Path) -> None:
    url, meter = serve(serving, tmp_path)
    with serve_pages(lambda _: make_json_response({"environment_steps_left": None})) as grading:
        reporter = RolloutReporter(grading.url, "key")
        for environment in (MarkedStairs, lambda: ServedWorld(url)):
            slot = reporter.open_slot(replace(STAIRS_WORLD, environment=environment))
            assert play(slot, STAIRS_GAMES[1], ["up", "up"])[-1].won
        reporter.send_report()
    assert [request.body["steps"] for request in grading.asked] == [2]
    assert meter.sum_totals().served.steps == 2


def test_a_used_up_budget_is_the_same_error_as_everywhere(serving: ExitStack, tmp_path: Path) -> None:
    served = ServedWorld(serve(serving, tmp_path, steps=1)[0])
    served.reset(STAIRS_GAMES[7])
    served.step("up")
    with pytest.raises(StepsUsedUp):
        served.step("up")
    with pytest.raises(StepsUsedUp):
        served.reset(STAIRS_GAMES[7])


def test_a_connection_that_was_idle_for_too_long_is_opened_again_by_the_next_reset(
    serving: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = threading.Semaphore(0)
    monkeypatch.setattr(MarkedStairs, "close", lambda _: dropped.release())
    served = ServedWorld(serve(serving, tmp_path, idle_seconds=1)[0])
    served.reset(STAIRS_GAMES[7])
    assert dropped.acquire(timeout=60)
    with pytest.raises(ExternalServiceError, match="Call reset to start another"):
        served.step("up")
    served.reset(STAIRS_GAMES[7])
    assert dropped.acquire(timeout=60)
    assert served.reset(STAIRS_GAMES[1]).observation == "You stand on step 0. Climb to step 2."


def test_a_forked_process_opens_a_connection_of_its_own(serving: ExitStack, tmp_path: Path) -> None:
    served = ServedWorld(serve(serving, tmp_path)[0])
    served.reset(STAIRS_GAMES[7])
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(UserError, match="Call reset"):
                served.step("up")
            step = play(served, STAIRS_GAMES[0], ["up"])[-1]
            served.close()
            os._exit(0 if step.won else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert served.step("up").observation == "You stand on step 1."


def test_too_many_connections_are_refused_by_name(serving: ExitStack, tmp_path: Path) -> None:
    url, _ = serve(serving, tmp_path)
    worlds = [ServedWorld(url) for _ in range(MAX_SESSIONS)]
    for world in worlds:
        world.reset(STAIRS_GAMES[0])
        serving.callback(world.close)
    with pytest.raises(SessionLimitReached, match="256 are open"):
        ServedWorld(url).reset(STAIRS_GAMES[0])


def test_what_cannot_be_done_says_what_to_do(
    serving: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVIRONMENT_URL", raising=False)
    with pytest.raises(UserError, match="ENVIRONMENT_URL is not set"):
        ServedWorld()
    with pytest.raises(UserError, match="Invalid URL"):
        ServedWorld("127.0.0.1:80")
    with pytest.raises(ExternalServiceError, match="Cannot connect"):
        ServedWorld("http://127.0.0.1:9").reset(STAIRS_GAMES[0])
    served = ServedWorld(serve(serving, tmp_path)[0])
    with pytest.raises(UserError, match="Call reset"):
        served.step("up")
    with pytest.raises(UserError, match="no training game 'cellar'"):
        served.reset(Example("cellar", "", ""))
    served.reset(STAIRS_GAMES[0])
    with pytest.raises(UserError, match="Internal error in the world"):
        served.step("trip")
