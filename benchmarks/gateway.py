"""What the gateway adds to a request: against a direct connection to the same local server, in the same run.

    python -m benchmarks.gateway

The server, the gateway and the asker are processes of their own. The server answers after 100 ms (where 32
ask at once, after a second: some 30 requests a second), in one piece or as a stream of 20 events, one every
10 ms, each with the time at which it was sent. Requests go to it directly (loopback TCP) and through the
gateway (a unix socket, as a run has it), in turns of a few each, on connections that stay open during a turn.
Both are timed in the same way:

    whole      from the request's first byte to the answer's last
    first      to the first chunk of a stream
    held       how long an event of a stream was on its way

`+ms` is what the gateway adds at the median and at the 99th percentile, `x` the ratio of the medians, and
`cpu` the processor's time in ms that the gateway took for a request, a stream's events included. A body of
120 KB is what Claude Code sends first, for one sentence and 24 tools.

Measured, one run, two x86-64 cores that others used too:

MEASURED
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from agent2rl.gateway import drivers
from agent2rl.gateway.gateway import Gateway, UsageCaps
from agent2rl.gateway.keys import Key
from agent2rl.gateway.prices import load_prices
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.socket_keys import connect_to_socket

MODEL = "claude-opus-4-6"
THINK = {1: 0.1, 32: 1.0}
"""Seconds until an answer begins, by how many ask at once."""
GAP, EVENTS = 0.01, 20
TURN = 8
"""Requests of each connection before it is the other way's turn."""
USAGE = {"input_tokens": 1000, "output_tokens": 20}


async def upstream(_: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    streams = b'"stream":true' in body
    await asyncio.sleep(float(body.partition(b'"user_id":"')[2].partition(b'"')[0]))
    kind = b"text/event-stream" if streams else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    for number in range(EVENTS if streams else 0):
        await asyncio.sleep(GAP)
        delta = {"type": "content_block_delta", "delta": {"text": f"word{number}"}, "sent": time.monotonic()}
        await send({"type": "http.response.body", "body": _event(delta), "more_body": True})
    end = _event({"type": "message_delta", "usage": USAGE}) + _event({"type": "message_stop"})
    last = end if streams else json.dumps({"type": "message", "usage": USAGE}).encode()
    await send({"type": "http.response.body", "body": last})


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def run_upstream(told: Any) -> None:
    config = uvicorn.Config(upstream, host="127.0.0.1", port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)

    async def main() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        told.put(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(main())


def run_gateway(port: int, told: Any) -> None:
    driver = drivers.parse_driver(f"{MODEL}@http://127.0.0.1:{port}")
    gateway = Gateway(
        driver, Key("sk-benchmark-key"), UsageCaps(tokens=10**12), load_prices(), lambda _: None
    )
    with serve_on_socket(gateway.application) as socket, closing(gateway):
        told.put(str(socket))
        time.sleep(3600)


@contextmanager
def processes() -> Iterator[tuple[int, Path, int]]:
    """The server's port, the gateway's socket, and its process."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    server = context.Process(target=run_upstream, args=(told,), daemon=True)
    server.start()
    port = told.get(timeout=60)
    gateway = context.Process(target=run_gateway, args=(port, told), daemon=True)
    gateway.start()
    try:
        yield port, Path(told.get(timeout=60)), gateway.pid or 0
    finally:
        for process in (gateway, server):
            process.kill()
            process.join()


@dataclass(frozen=True)
class Timed:
    whole: float
    first: float
    held: tuple[float, ...]


class Line:
    """One connection, over which requests go one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, place: int | Path) -> "Line":
        if isinstance(place, int):
            return cls(*await asyncio.open_connection("127.0.0.1", place))
        return cls(*await asyncio.open_unix_connection(sock=connect_to_socket(place)))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, body: bytes) -> Timed:
        begin = time.monotonic()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        first, held = 0.0, []
        while size := int(await self._reader.readline(), 16):
            chunk = await self._reader.readexactly(size + 2)
            now = time.monotonic()
            first = first or now - begin
            if b'"sent": ' in chunk:
                held.append(now - float(chunk.rpartition(b'"sent": ')[2].split(b"}")[0]))
        await self._reader.readline()
        return Timed(time.monotonic() - begin, first, tuple(held))


def request(size: int, stream: bool, think: float) -> bytes:
    """Texts of many messages, to which no bracket or quote is foreign."""
    text = 'def f(x): return {"a": [x, 1.5]}\n' * 30
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}] * max(1, size // 1300)
    body = {
        "model": MODEL,
        "metadata": {"user_id": str(think)},
        "max_tokens": 1000,
        "stream": stream,
        "messages": messages,
    }
    return json.dumps(body, separators=(",", ":")).encode()


async def measure(places: Sequence[int | Path], body: bytes, lines: int, turns: int) -> list[list[Timed]]:
    """Of each place, all that was timed; the first request of each turn is to warm up."""
    found: list[list[Timed]] = [[] for _ in places]

    async def several(place: int | Path, number: int) -> list[Timed]:
        await asyncio.sleep(THINK[lines] * number / lines)  # not all in the same moment
        line = await Line.to(place)
        timed = [await line.ask(body) for _ in range(TURN + 1)]
        await line.close()
        return timed[1:]

    for _ in range(turns):
        for timed, place in zip(found, places, strict=True):
            for new in await asyncio.gather(*(several(place, number) for number in range(lines))):
                timed += new
    return found


def cpu_seconds(process: int) -> float:
    """Used up by a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(name: str, seconds: Sequence[Sequence[float]], cpu: float) -> str:
    def at(values: Sequence[float], percent: int) -> float:
        return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] * 1000

    (a, b), (c, d) = ((at(values, 50), at(values, 99)) for values in seconds)
    times = f"{a:8.2f} {c:8.2f} {c - a:+8.2f} {c / a:6.2f}x {d - b:+9.2f}"
    return f"{name:34s} {times} {cpu * 1000:6.1f}   {len(seconds[1])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=6, help=f"of {TURN} requests a connection, each way")
    turns = parser.parse_args().turns
    print(f"{'':34s} {'direct':>8s} {'gateway':>8s} {'+ms':>8s} {'x':>7s} {'+ms p99':>9s} {'cpu':>6s}   n")
    with processes() as (port, socket, process):
        for lines, think in THINK.items():
            for size in (2_000, 120_000):
                for stream in (False, True):
                    body = request(size, stream, think)
                    rounds = turns if lines == 1 else max(1, turns // 3)
                    before = cpu_seconds(process)
                    direct, through = asyncio.run(measure((port, socket), body, lines, rounds))
                    cpu = (cpu_seconds(process) - before) / (lines * rounds * (TURN + 1))
                    name = f"{lines:2d} at once, {size // 1000:3d} KB, {'stream' if stream else 'whole'}"
                    ways = (direct, through)
                    if stream:
                        print(line(f"{name}: first", [[one.first for one in way] for way in ways], cpu))
                        held = [[held for one in way for held in one.held] for way in ways]
                        print(line(f"{name}: held", held, cpu))
                    else:
                        print(line(name, [[one.whole for one in way] for way in ways], cpu))


if __name__ == "__main__":
    main()
