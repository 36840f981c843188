"""Sends malformed and well-formed requests to the grading API and to the gateway, and counts what comes back.

    .venv/bin/python -m benchmarks.fuzz --requests 1000000

Requests follow the API's own OpenAPI schema, and for the gateway the requests of the four wire formats.
Values are valid, at a limit, of another type, or nonsense; some requests are damaged as bytes. Each follows
from the seed and its number, so `--seed S --first N --requests 1` repeats one. Servers are processes of
their own, on unix sockets: what they answer and how much memory they have is printed. The exit code is 1 if
a status is 500 or more, if a server hangs up without an answer or dies, or if its memory grows by more than
`--most-growth` after the first fifth of the requests.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from tests.gateway.fake_provider import (
    MODEL,
    REAL_KEY,
    WIRES,
    ProviderReply,
    ProviderRequest,
    answer_in_wire_format,
    get_request_path,
    make_request,
    serve_provider,
)

from agent2rl import registry
from agent2rl.analysis.statistics import score_evaluation
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult
from agent2rl.core.records import Budget, Limits, RunSpec
from agent2rl.gateway import drivers
from agent2rl.gateway.gateway import Gateway, UsageCaps
from agent2rl.gateway.keys import Key
from agent2rl.gateway.prices import load_prices
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.grading.verdict_maker import GradingSetup
from agent2rl.models.abacus import Abacus
from agent2rl.net.socket_keys import connect_to_socket
from agent2rl.record.recorder import Recorder

TARGETS = ("api", "gateway")
SUBMISSIONS = 40
"""Budget of the fuzzed run: later ones are refused, as at the end of a run."""
ANSWER_SECONDS = 60.0
MEMORY_SAMPLES = 20
MOST_FAULTS = 20

# The servers, each in a process of its own


@contextmanager
def open_api(place: Path) -> Iterator[Any]:
    """The grading API of a run whose base model is an abacus; nothing that is sent can be graded."""
    Abacus.base().save(place / "base")
    budget = Budget(wall_seconds=10 * 86400, submissions=SUBMISSIONS)
    spec = RunSpec(task="gsm8k-mini", agent="nop", model="abacus", engine="scripted", budget=budget)
    child = GradingChild(
        sandbox=registry.find_sandbox("local"),
        task="gsm8k-mini",
        engine="scripted:agent2rl.models.abacus:solver",
        settings=EvalSettings(),
        splits={},
        limits=Limits(memory_bytes=1 << 30, disk_bytes=1 << 30, processes=100),
        seconds=60,
    )
    wrong = EvalResult(results=(ExampleResult(id="1", output="", score=0.0),))
    setup = GradingSetup(
        seen_at=PurePosixPath("/workspace"),
        base=read_base_model(place / "base"),
        base_seen_at=PurePosixPath("models/abacus"),
        baseline=score_evaluation(wrong, "feedback"),
        child=child,
    )
    with Recorder.create(place / "runs", spec, lambda _: None) as recorder:
        (recorder.paths.workspace / "output").mkdir(parents=True)
        service = GradingService(setup, budget, recorder, threading.Event())
        service.meter.begin_episode()
        service.start()
        yield create_grading_app(service, "gsm8k-mini", has_world=True)


@contextmanager
def open_gateway(_: Path) -> Iterator[Any]:
    """A gateway before a provider that answers every request well."""
    with serve_provider(keep_alive_seconds=3600) as provider:  # or it hangs up on the gateway when idle

        def answer(heard: ProviderRequest) -> ProviderReply:
            provider.heard.clear()  # or they would fill the memory
            return answer_in_wire_format(heard)

        provider.answer = answer
        driver = drivers.parse_driver(f"{MODEL}@{provider.url}")
        gateway = Gateway(driver, Key(REAL_KEY), UsageCaps(), load_prices(), lambda _: None)
        with closing(gateway):
            yield gateway.application


def serve_target(target: str) -> None:
    """Serve until standard input ends, and print the socket first."""
    with tempfile.TemporaryDirectory(prefix="agent2rl-fuzz-") as place:
        opened = open_api(Path(place)) if target == "api" else open_gateway(Path(place))
        with opened as application, serve_on_socket(application) as path:
            schema = application.openapi() if target == "api" else {}
            print(json.dumps({"socket": str(path), "schema": schema}), flush=True)
            sys.stdin.read()


# The requests


@dataclass(frozen=True)
class FuzzRequest:
    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        fields = {"Host": "fuzz", "Content-Length": str(len(self.body)), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1", "replace") + self.body


NumberedRequest = tuple[int, FuzzRequest]

ODD_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**64), 10**40, 0.5, -0.0, 1e308, 1e-320)
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "../..",
    "/etc/passwd",
    "output",
    "a" * 2000,
    "é漢😀",
    "\u202e",
    "\ud800",
    "%2e%2e",
    "{{7*7}}",
)
RAW_VALUES = ("NaN", "Infinity", "-0", "1e999", "[" * 3000, '{"a":1,"a":2}', '"\\ud800"', "tru", "")


def draw_json(dice: random.Random, depth: int = 3) -> Any:
    """Return any JSON value."""
    kind = dice.randrange(7 if depth else 5)
    if kind == 0:
        return dice.choice((None, True, False))
    if kind in (1, 2):
        return dice.choice(ODD_NUMBERS) if dice.random() < 0.6 else dice.randrange(-1000, 1000)
    if kind in (3, 4):
        return dice.choice(ODD_TEXTS)
    if kind == 5:
        return [draw_json(dice, depth - 1) for _ in range(dice.randrange(4))]
    return {dice.choice(ODD_TEXTS[:8]): draw_json(dice, depth - 1) for _ in range(dice.randrange(4))}


def draw_from_schema(dice: random.Random, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Return a value that a schema allows, as far as types, lengths and limits go."""
    if "$ref" in schema:
        return draw_from_schema(dice, root["components"]["schemas"][schema["$ref"].rpartition("/")[2]], root)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return draw_from_schema(dice, dice.choice(options), root)
    if "enum" in schema or "const" in schema:
        return dice.choice(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "object":
            names = schema.get("properties", {})
            kept = [name for name in names if name in schema.get("required", ()) or dice.random() < 0.5]
            return {name: draw_from_schema(dice, names[name], root) for name in kept}
        case "array":
            many = dice.randrange(schema.get("minItems", 0), min(schema.get("maxItems", 4), 4) + 1)
            return [draw_from_schema(dice, schema.get("items", {}), root) for _ in range(many)]
        case "string":
            text = "".join(dice.choice("abc/._- 019é") for _ in range(dice.randrange(1, 30)))
            return text[: schema.get("maxLength", 30)]
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
            return dice.choice((low, low + 1, low + dice.randrange(100), schema.get("maximum", low)))
        case "boolean":
            return dice.random() < 0.5
    return draw_json(dice)


def damage_value(dice: random.Random, value: Any) -> Any:
    """Change one place of a JSON value: another type, a missing or an unknown key, an odd value."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        name = dice.choice(list(value))
        match dice.randrange(4):
            case 0:
                return {key: each for key, each in value.items() if key != name}
            case 1:
                return {**value, dice.choice(ODD_TEXTS): draw_json(dice)}
        return {**value, name: damage_value(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.8:
        place = dice.randrange(len(value))
        return [*value[:place], damage_value(dice, value[place]), *value[place + 1 :]]
    return draw_json(dice)


def encode_body(dice: random.Random, value: Any) -> bytes:
    """Encode a value as JSON, sometimes damaged as text or as bytes."""
    text = json.dumps(value)
    if dice.random() < 0.1:
        place = dice.randrange(len(text) + 1)
        text = text[:place] + dice.choice(RAW_VALUES) + text[place + dice.randrange(4) :]
    data = text.encode()
    if data and dice.random() < 0.05:
        place = dice.randrange(len(data))
        data = data[:place] + dice.randbytes(dice.randrange(1, 5)) + data[place + 1 :]
    return data


def draw_api_request(dice: random.Random, schema: dict[str, Any]) -> FuzzRequest:
    path, operations = dice.choice(sorted(schema["paths"].items()))
    method, operation = dice.choice(sorted(operations.items()))
    content = operation.get("requestBody", {}).get("content", {})
    value = draw_from_schema(dice, content.get("application/json", {}).get("schema", {}), schema)
    if dice.random() < 0.6:
        value = damage_value(dice, value)
    number = str(dice.choice((1, 2, SUBMISSIONS, 10**6, -1, "x", "1e3", "%00", 10**30)))
    query = dice.choice(("", "", "?wait=0", "?wait=0.01", "?wait=-1", "?wait=x", "?wait=nan", "?a=%ff"))
    body = encode_body(dice, value) if method != "get" or dice.random() < 0.1 else b""
    return _damage_head(dice, method.upper(), path.replace("{number}", number) + query, body)


def draw_gateway_request(dice: random.Random, _schema: dict[str, Any]) -> FuzzRequest:
    wire, streams = dice.choice(WIRES), dice.random() < 0.3
    model = MODEL if dice.random() < 0.9 else "other"
    value: Any = make_request(wire, streams, dice.choice(ODD_TEXTS[5:]), model)
    for _ in range(dice.choice((0, 1, 1, 1, 3))):
        value = damage_value(dice, value)
    return _damage_head(dice, "POST", get_request_path(wire, streams, model), encode_body(dice, value))


def _damage_head(dice: random.Random, method: str, path: str, body: bytes) -> FuzzRequest:
    headers = {"Content-Type": "application/json"}
    match dice.randrange(40):
        case 0:
            method = dice.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "FOO"))
        case 1:
            path = dice.choice(("/", "/openapi.json", "//", "/%2e%2e/submit", path + "/x", "/" + "a" * 500))
        case 2:
            headers["Content-Type"] = dice.choice(
                ("text/plain", "multipart/form-data", "x", "application/xml")
            )
        case 3:
            headers[dice.choice(("Content-Encoding", "Accept", "Expect", "Range", "Upgrade"))] = "gzip"
        case 4:
            headers["X-Long"] = "a" * dice.choice((100, 4000))
    return FuzzRequest(method, path, body, headers)


# Sending


class FuzzConnection:
    """One connection, opened again when the server closes it. Answers are read to their stated length.

    One request at a time: `send` it, do something else, then `read_status`. A server may close a connection
    that was idle for a while, so a request that got no answer on a used one is sent again on a new one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._line: socket.socket | None = None
        self._rest = b""
        self._request = b""
        self._headless = self._used = False

    def send(self, request: FuzzRequest) -> None:
        self._headless, self._request = request.method == "HEAD", request.encode()
        if self._line is None:
            self._connect()
        with suppress(ConnectionError):  # it may answer and close before it has read all
            self._send()

    def read_status(self) -> int:
        """Return the status of the answer; 0 if the server hung up without one."""
        try:
            return self._read_answer()
        except ConnectionError:
            again = self._used and not self._rest
            self.close()
        if not again:
            return 0
        self._connect()
        with suppress(ConnectionError):
            self._send()
        return self.read_status()

    def _connect(self) -> None:
        self._line = connect_to_socket(Path(self._path))
        self._line.settimeout(ANSWER_SECONDS)
        self._rest, self._used = b"", False

    def _send(self) -> None:
        assert self._line is not None
        self._line.sendall(self._request)

    def close(self) -> None:
        if self._line:
            self._line.close()
        self._line = None

    def _read_answer(self) -> int:
        data = self._read_until(b"\r\n\r\n")
        status = int(data[9:12])
        fields = dict(line.lower().split(b": ", 1) for line in data.split(b"\r\n")[1:] if b": " in line)
        if not self._headless and fields.get(b"transfer-encoding") == b"chunked":
            while size := int(self._read_until(b"\r\n"), 16):
                self._read_exactly(size + 2)
            self._read_until(b"\r\n")
        elif not self._headless:
            self._read_exactly(int(fields.get(b"content-length", b"0")))
        self._used = True
        if fields.get(b"connection") == b"close":
            self.close()
        return status

    def _read_until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            self._rest += self._receive()
        found, _, self._rest = self._rest.partition(mark)
        return found

    def _read_exactly(self, size: int) -> None:
        while len(self._rest) < size:
            self._rest += self._receive()
        self._rest = self._rest[size:]

    def _receive(self) -> bytes:
        assert self._line is not None
        if not (data := self._line.recv(1 << 16)):
            raise ConnectionError("the server hung up")
        return data


@dataclass
class FuzzOutcome:
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    seconds: float = 0.0
    server_seconds: float = 0.0
    """CPU time of the server."""

    @property
    def growth_mb(self) -> float:
        """Growth of the memory after the first fifth of the requests."""
        warm = self.memory_mb[len(self.memory_mb) // 5 :] or [0.0]
        return max(warm) - warm[0]


def fuzz_target(target: str, first: int, count: int, seed: int, connections: int) -> FuzzOutcome:
    draw = draw_api_request if target == "api" else draw_gateway_request
    command = [sys.executable, "-m", "benchmarks.fuzz", "--serve", target]
    outcome, began = FuzzOutcome(), time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        opened = json.loads(server.stdout.readline())
        requests = (
            (number, draw(random.Random(f"{seed}:{target}:{number}"), opened["schema"]))
            for number in range(first, first + count)
        )
        try:
            with closing(FuzzClient(target, opened["socket"], connections, outcome)) as client:
                done, every = 0, max(1, count // MEMORY_SAMPLES)
                for batch in batched(requests, connections):
                    client.send_batch(batch)
                    if client.finished // every > done:
                        done = client.finished // every
                        outcome.memory_mb.append(read_memory_mb(server.pid))
                        print(f"{target}: {client.finished:,} requests", file=sys.stderr, flush=True)
                    if server.poll() is not None or len(outcome.faults) > MOST_FAULTS:
                        break
                client.read_batch()
            outcome.memory_mb.append(read_memory_mb(server.pid))
            outcome.server_seconds = read_cpu_seconds(server.pid)
        finally:
            server.stdin.close()
            server.wait(60)
    outcome.seconds = time.monotonic() - began
    return outcome


def batched(requests: Iterator[NumberedRequest], size: int) -> Iterator[list[NumberedRequest]]:
    while batch := list(islice(requests, size)):
        yield batch


class FuzzClient:
    """Sends a batch at once, each request on a connection of its own, and draws the next one meanwhile."""

    def __init__(self, target: str, path: str, connections: int, outcome: FuzzOutcome) -> None:
        self._target, self._outcome = target, outcome
        self._lines = [FuzzConnection(path) for _ in range(connections)]
        self._batch: list[NumberedRequest] = []
        self.finished = 0

    def send_batch(self, batch: list[NumberedRequest]) -> None:
        """Read the answers to the batch before, then send this one."""
        self.read_batch()
        self._batch = batch
        for line, (_, request) in zip(self._lines, batch, strict=False):
            line.send(request)

    def read_batch(self) -> None:
        for line, (number, request) in zip(self._lines, self._batch, strict=False):
            try:
                status = line.read_status()
            except (OSError, ValueError) as error:
                status = -1
                self._outcome.faults.append(f"{self._target} {number}: {type(error).__name__}: {error}")
                line.close()
            self._outcome.statuses[status] += 1
            self.finished += 1
            if status == 0 or status >= 500:
                sent = request.encode()[:300]
                self._outcome.faults.append(f"{self._target} {number}: {status or 'hung up'} for {sent!r}")
        self._batch = []

    def close(self) -> None:
        for line in self._lines:
            line.close()


def read_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--requests", type=int, default=10_000, help="For each target.")
    asked.add_argument("--target", choices=TARGETS, action="append")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--connections", type=int, default=8, help="To each server.")
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--most-growth", type=float, default=30.0, help="In MB.")
    asked.add_argument("--serve", choices=TARGETS, help=argparse.SUPPRESS)
    told = asked.parse_args()
    if told.serve:
        serve_target(told.serve)
        return
    bad, targets = False, told.target or TARGETS
    with ProcessPoolExecutor(len(targets)) as pool:  # a client for each server, side by side
        outcomes = [
            pool.submit(fuzz_target, target, told.first, told.requests, told.seed, told.connections)
            for target in targets
        ]
    for target, future in zip(targets, outcomes, strict=True):
        outcome = future.result()
        counts = ", ".join(
            f"{status or 'hung up'}: {many:,}" for status, many in sorted(outcome.statuses.items())
        )
        memory = " ".join(f"{each:.0f}" for each in outcome.memory_mb)
        print(
            f"{target}: {outcome.statuses.total():,} requests in {outcome.seconds:.0f} s "
            f"({outcome.server_seconds:.0f} s of CPU time in the server); {counts}"
        )
        print(f"{target}: memory in MB: {memory}; grew by {outcome.growth_mb:.1f} after the first fifth")
        print("\n".join(outcome.faults[:20]), flush=True)
        bad = bad or bool(outcome.faults) or outcome.growth_mb > told.most_growth
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
