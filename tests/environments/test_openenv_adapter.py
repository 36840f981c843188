"""A served world: OpenEnv's protocol over real sockets, whatever is sent."""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.environments.adapters.openenv import BODY_BYTES, MAX_SESSIONS, application
from agent2rl.environments.adapters.openenv_messages import SocketAnswer, StepResult, WorldProblem
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.net.socket_keys import connect_to_socket
from tests.helpers.recorded_meter import RecordedMeter, open_recorded_meter
from tests.helpers.small_worlds import STAIRS_GAMES, STAIRS_WORLD
from tests.helpers.stairs_environment import StairsEnvironment

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(["type", "data", "text", "seed", "game", "episode_id", "action", "metadata"])
WORDS = st.sampled_from(["reset", "step", "state", "stairs-1", "up"])
NEAR = st.dictionaries(KEYS, WORDS | JSON | st.dictionaries(KEYS, WORDS | JSON, max_size=4), max_size=4)
"""What is nearly right."""
PATIENCE_SECONDS = 120
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: world\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@dataclass
class Served:
    socket: Path
    metered: RecordedMeter
    faults: list[str] = field(default_factory=list)

    def connect(self) -> ClientConnection:
        link = connect_to_socket(self.socket)
        return connect("ws://world/ws", sock=link, proxy=None, open_timeout=PATIENCE_SECONDS)

    def http(self) -> httpx.Client:
        transport = KeyedTransport(self.socket)
        return httpx.Client(transport=transport, base_url="http://world", timeout=PATIENCE_SECONDS)


@contextmanager
def served(folder: Path, steps: int | None = None, idle_seconds: float = 60) -> Iterator[Served]:
    faults: list[str] = []
    with open_recorded_meter(folder, steps) as played:
        app = application(STAIRS_WORLD, "stairs", played.meter, faults.append, idle_seconds)
        with serve_on_socket(app, connections=MAX_SESSIONS + 64, message_bytes=BODY_BYTES) as socket:
            yield Served(socket, played, faults)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as one:
        yield one


def ask(line: ClientConnection, kind: str, data: object = None) -> Any:
    line.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
    return json.loads(line.recv(timeout=PATIENCE_SECONDS))


def test_a_connection_is_a_session(world: Served) -> None:
    with world.connect() as line:
        first = ask(line, "reset", {"game": "stairs-2", "seed": 3, "episode_id": "mine"})
        assert first["type"] == "observation"
        assert first["data"]["observation"] == {
            "text": "You stand on step 0. Climb to step 2.",
            "game": "stairs-2",
            "won": False,
            "truncated": False,
            "episode_id": "mine",
            "marks": {},
        }
        assert (first["data"]["reward"], first["data"]["done"]) == (None, False)
        assert ask(line, "step", {"text": "up", "metadata": {}})["data"]["reward"] == 0.0
        last = ask(line, "step", {"text": "up"})["data"]
        assert (last["reward"], last["done"], last["observation"]["won"]) == (1.0, True, True)
        state = ask(line, "state")
        assert state["type"] == "state"
        assert state["data"]["step_count"] == 2
        over = ask(line, "step", {"text": "up"})
        assert over["data"]["code"] == "EXECUTION_ERROR"
        assert "reset" in over["data"]["message"]
        assert ask(line, "reset")["data"]["done"] is False
        line.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=PATIENCE_SECONDS)


def test_a_seed_decides_which_games_are_played(world: Served) -> None:
    def played() -> list[str]:
        with world.connect() as line:
            answers = [ask(line, "reset", {"seed": 7}), *(ask(line, "reset") for _ in STAIRS_WORLD.games[1:])]
            return [answer["data"]["observation"]["game"] for answer in answers]

    assert played() == played()
    assert len(set(played())) == len(STAIRS_WORLD.games)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("up", "INVALID_JSON", "not a JSON object"),
        ("[" * 20000, "INVALID_JSON", "nested"),
        ('["reset"]', "INVALID_JSON", "list"),
        ('{"type": "jump"}', "UNKNOWN_TYPE", "reset, step, state"),
        ('{"type": "step", "data": {"command": "up"}}', "VALIDATION_ERROR", "text"),
        ('{"type": "step", "data": {"text": "up"}}', "EXECUTION_ERROR", "reset"),
        ('{"type": "reset", "data": {"gmae": "stairs-1"}}', "VALIDATION_ERROR", "gmae"),
        ('{"type": "reset", "data": {"game": "stairs-9"}}', "EXECUTION_ERROR", "stairs-1"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR", "seed"),
        ('{"type": "reset", "data": {"game": "\\ud800"}}', "VALIDATION_ERROR", "game"),
        ('{"type": "\\ud800"}', "UNKNOWN_TYPE", "reset"),
    ],
)
def test_what_cannot_be_done_is_said(world: Served, text: str, code: str, says: str) -> None:
    with world.connect() as line:
        line.send(text)
        answer = json.loads(line.recv(timeout=PATIENCE_SECONDS))
    assert answer["type"] == "error"
    assert answer["data"]["code"] == code
    assert says in answer["data"]["message"]


def test_anything_sent_over_a_socket_gets_an_answer(world: Served) -> None:
    @settings(max_examples=30)
    @given(sent=st.text(max_size=40) | st.binary(max_size=40) | (JSON | NEAR).map(json.dumps))
    def check(sent: str | bytes) -> None:
        try:
            line.send(sent)
        except UnicodeEncodeError:
            return  # half a character: the client cannot send it
        assert json.loads(line.recv(timeout=PATIENCE_SECONDS))["type"] in ("observation", "state", "error")

    with world.connect() as line:
        check()


def test_anything_sent_over_http_gets_an_answer_and_never_a_500(world: Served) -> None:
    @settings(max_examples=30)
    @given(
        path=st.sampled_from(["/reset", "/step"]),
        sent=st.binary(max_size=40) | (JSON | NEAR).map(lambda found: json.dumps(found).encode()),
    )
    def check(path: str, sent: bytes) -> None:
        answer = client.post(path, content=sent)
        assert answer.status_code in (200, 422, 429)
        assert isinstance(answer.json(), dict)

    with world.http() as client:
        check()


def test_over_http_an_episode_is_named(world: Served) -> None:
    with world.http() as client:
        seen = client.post("/reset", json={"game": "stairs-1"}).json()["observation"]
        name = seen["episode_id"]
        assert client.get("/state", params={"episode_id": name}).json()["step_count"] == 0
        last = client.post("/step", json={"action": {"text": "up"}, "episode_id": name}).json()
        assert (last["reward"], last["done"]) == (1.0, True)
        gone = client.post("/step", json={"action": {"text": "up"}, "episode_id": name})
        assert gone.status_code == 422
        assert gone.headers["content-type"] == "application/problem+json"
        assert "POST /reset" in gone.json()["detail"]
        assert client.post("/reset", content=b"x" * (BODY_BYTES + 1)).status_code == 413


def test_the_server_says_what_it_is(world: Served) -> None:
    with world.http() as client:
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/metadata").json()["name"] == "stairs"
        schema = client.get("/schema").json()
        assert schema["action"]["properties"]["text"]["type"] == "string"
        assert {"action", "observation", "state"} <= schema.keys()


def test_the_openapi_document_describes_every_call_and_its_messages(world: Served) -> None:
    app = application(STAIRS_WORLD, "stairs")
    with world.http() as client:
        document = client.get("/openapi.json").json()
        assert document["paths"].keys() == {route.path for route in app.routes if hasattr(route, "path")}
        unknown = client.get("/games")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")
    assert "/openapi.json" in unknown.json()["hint"]
    schemas = document["components"]["schemas"]
    used = re.findall(r"#/components/schemas/(\w+)", json.dumps(document))
    assert set(used) <= schemas.keys()
    assert schemas["StepRequest"]["required"] == ["action"]
    assert "Restarts the random order" in schemas["ResetMessage"]["properties"]["seed"]["description"]


def test_what_the_server_says_is_what_its_document_says(world: Served) -> None:
    with world.connect() as line:
        asked = [("reset", {"game": "stairs-1"}), ("step", {"text": "up"}), ("state", None), ("jump", None)]
        answers = [SocketAnswer.model_validate(ask(line, kind, data)) for kind, data in asked]
    assert [answer.type for answer in answers] == ["observation", "observation", "state", "error"]
    with world.http() as client:
        for code, path, body in ((200, "/reset", {"game": "stairs-1"}), (422, "/step", {})):
            answer = client.post(path, json=body)
            assert answer.status_code == code
            (StepResult if code == 200 else WorldProblem).model_validate(answer.json())


def test_a_message_that_is_too_long_ends_its_connection_alone(world: Served) -> None:
    with world.connect() as line, world.connect() as other:
        with pytest.raises(ConnectionClosed):
            ask(line, "step", {"text": "x" * (BODY_BYTES + 1)})
        assert ask(other, "reset")["type"] == "observation"


def test_a_fault_of_the_world_is_answered_and_noted(world: Served) -> None:
    with world.connect() as line:
        ask(line, "reset")
        answer = ask(line, "step", {"text": "trip"})
        assert answer["data"]["message"] == "Internal error in the world (ValueError)."
        assert ask(line, "step", {"text": "wait"})["type"] == "observation"
    assert world.faults[-1] == "world"


class Together(StairsEnvironment):
    """Nobody goes up alone: a step waits for another one."""

    both: ClassVar = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def step(self, action: str) -> EnvironmentStep:
        if action == "up":
            self.both.wait()
        return super().step(action)


def test_a_slow_world_holds_up_nobody_over_plain_http() -> None:
    app = application(World(STAIRS_GAMES, Together, slow=True), "together")
    with serve_on_socket(app) as socket, ThreadPoolExecutor() as pool:
        transport = KeyedTransport(socket)
        with httpx.Client(transport=transport, base_url="http://world", timeout=PATIENCE_SECONDS) as client:

            def begin(name: str) -> None:
                client.post("/reset", json={"game": "stairs-3", "episode_id": name}).raise_for_status()

            def up(name: str) -> dict[str, Any]:
                body = {"action": {"text": "up"}, "episode_id": name}
                return dict(client.post("/step", json=body).raise_for_status().json())

            begin("mine")
            begin("yours")
            first = pool.submit(up, "mine")
            while not Together.both.n_waiting:
                time.sleep(0.01)
            assert client.get("/health").json() == {"status": "healthy"}
            second = pool.submit(up, "mine")  # the same episode's wait for each other
            up("yours")
            up("yours")
            assert {one.result()["observation"]["text"] for one in (first, second)} == {
                "You stand on step 1.",
                "You stand on step 2.",
            }


def test_many_sessions_play_at_once_and_one_too_many_is_told_so(tmp_path: Path) -> None:
    with served(tmp_path) as world, ExitStack() as open_lines:
        lines = [open_lines.enter_context(world.connect()) for _ in range(MAX_SESSIONS)]
        for number, line in enumerate(lines):
            ask(line, "reset", {"game": f"stairs-{number % 8 + 1}"})
        assert all(
            ask(line, "step", {"text": "up"})["data"]["done"] == (n % 8 == 0) for n, line in enumerate(lines)
        )
        with world.connect() as line:
            assert json.loads(line.recv(timeout=PATIENCE_SECONDS))["data"]["code"] == "CAPACITY_REACHED"
        lines[0].close()
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with world.connect() as line:
                line.send('{"type": "reset"}')
                if json.loads(line.recv(timeout=PATIENCE_SECONDS))["type"] == "observation":
                    break
            assert time.monotonic() < until


def test_a_session_that_asks_nothing_for_a_while_is_dropped(tmp_path: Path) -> None:
    with served(tmp_path, idle_seconds=2) as world, world.connect() as line, world.http() as client:
        name = client.post("/reset").json()["observation"]["episode_id"]
        ask(line, "reset")
        assert json.loads(line.recv(timeout=PATIENCE_SECONDS))["data"]["code"] == "SESSION_ERROR"
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=PATIENCE_SECONDS)
        time.sleep(2)
        assert client.get("/state", params={"episode_id": name}).status_code == 422


def test_what_is_served_is_witnessed_and_refused_when_the_budget_is_used_up(tmp_path: Path) -> None:
    with served(tmp_path, steps=3) as world:
        with world.connect() as line:
            ask(line, "reset", {"game": "stairs-2"})
            ask(line, "step", {"text": "up"})
            ask(line, "step", {"text": "up"})
            ask(line, "reset", {"game": "stairs-8"})
            assert world.metered.meter.steps_left() == 1
            ask(line, "step", {"text": "up"})
            for kind, data in (("step", {"text": "up"}), ("reset", {})):
                refused = ask(line, kind, data)
                assert refused["data"]["code"] == "BUDGET_USED_UP"
                assert "used up" in refused["data"]["message"]
        with world.http() as client:
            assert client.post("/reset").status_code == 403
        totals = world.metered.meter.close_and_sum_totals()
        assert totals.served.model_dump() == {"episodes": 2, "steps": 3, "successes": 1}
        assert world.metered.events() == [{"source": "served", "episodes": 2, "steps": 3, "successes": 1}]


def test_whoever_hangs_up_before_the_answer_leaves_room_for_others(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        for _ in range(MAX_SESSIONS + 1):
            line = connect_to_socket(world.socket)
            line.sendall(UPGRADE)
            assert b"101" in line.recv(4096)
            line.sendall(3 * Frame(Opcode.TEXT, b'{"type": "reset"}').serialize(mask=True))
            line.close()
        with world.http() as client:
            assert client.post("/reset").status_code == 200


def test_an_episode_that_cannot_begin_takes_up_no_room(tmp_path: Path) -> None:
    with served(tmp_path) as world, world.http() as client:
        for _ in range(MAX_SESSIONS):
            assert client.post("/reset", json={"game": "stairs-9"}).status_code == 422
        name = client.post("/reset", json={"game": "stairs-1"}).json()["observation"]["episode_id"]
        assert client.post("/reset", json={"game": "stairs-9", "episode_id": name}).status_code == 422
        assert client.get("/state", params={"episode_id": name}).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        100_000 * Frame(Opcode.PING, b"x" * 125).serialize(mask=True),
        1_000_000 * Frame(Opcode.CONT, b"", fin=False).serialize(mask=True),
    ],
    ids=["pings", "pieces"],
)
def test_nobody_fills_the_servers_memory_by_sending_for_ever(world: Served, sent: bytes) -> None:
    with connect_to_socket(world.socket) as line:
        line.sendall(UPGRADE)
        assert b"101" in line.recv(4096)
        line.sendall(Frame(Opcode.TEXT, b"x", fin=False).serialize(mask=True))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            line.sendall(sent)
    with world.connect() as other:
        assert ask(other, "reset")["type"] == "observation"
