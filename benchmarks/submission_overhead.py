"""What a submission costs beside its grading: random weights of any size through the real service.

    python -m benchmarks.submission_overhead [--gigabytes 0.5] [--shards 4] [--directory DIR]

Prints the seconds of each step beside what `cp`, the disk and one core's SHA-256 need for as many bytes. The
model has the shape of a 7B model from 8 GB on, with as many layers as the size asks for. A submission is the
base model with noise, so its lineage is `derived`. The grading itself does nothing: its time is that of the
child's start. Figures: docs/design/submission-overhead.md.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from agent2rl import registry
from agent2rl.analysis.statistics import score_evaluation
from agent2rl.core.engine import Chat
from agent2rl.core.events import TimelineEvent
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult
from agent2rl.core.records import Budget, Limits, RunSpec
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.lineage import trace_lineage
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.grading.verdict_maker import GradingSetup
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.record.recorder import Recorder
from agent2rl.run.assets import write_split_file

Bits = npt.NDArray[np.uint16]
POOL_VALUES = 1 << 24
"""Random values that tensors are cut out of; making 7.6 billion takes longer than everything measured."""
PROBE_BYTES = 1 << 30
NOISE = 0.05
"""In units of the weights."""


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    hidden: int
    inner: int

    def list_tensors(self, size: int) -> dict[str, tuple[int, int]]:
        """Return tensors of about `size` bytes in bfloat16, by name."""
        tensors = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        layer = {
            **dict.fromkeys(("self_attn.q_proj", "self_attn.o_proj"), (self.hidden, self.hidden)),
            **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (self.hidden // 7, self.hidden)),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (self.inner, self.hidden)),
            "mlp.down_proj": (self.hidden, self.inner),
        }
        layer_bytes = 2 * sum(rows * columns for rows, columns in layer.values())
        outer_bytes = 2 * 2 * self.vocabulary * self.hidden
        for number in range(max(1, round((size - outer_bytes) / layer_bytes))):
            tensors |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        return {**tensors, "lm_head.weight": (self.vocabulary, self.hidden)}


TINY, SMALL, SEVEN_B = Shape(2048, 448, 1024), Shape(8192, 896, 4096), Shape(152_064, 3584, 18_944)


def choose_shape(gigabytes: float) -> Shape:
    return SEVEN_B if gigabytes >= 8 else SMALL if gigabytes >= 0.04 else TINY


def answer_nothing(_: Path) -> Callable[[Chat], str]:
    """A model that answers at once, for the engine `scripted`."""
    return lambda _: "#### 0"


# Models.


def make_pool(seed: int, noise_seed: int | None = None) -> Bits:
    """Return random bfloat16 values, with noise if it is to be a child of the same seed without."""
    values = 0.02 * np.random.default_rng(seed).standard_normal(POOL_VALUES, dtype=np.float32)
    if noise_seed is not None:
        noise = np.random.default_rng(noise_seed).standard_normal(POOL_VALUES, dtype=np.float32)
        values += np.float32(0.02 * NOISE) * noise
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_model(directory: Path, tensors: dict[str, tuple[int, int]], shards: int, pool: Bits) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1}))
    by_shard: list[dict[str, tuple[int, int]]] = [{} for _ in range(shards)]
    for name, shape in sorted(tensors.items(), key=lambda item: -item[1][0] * item[1][1]):
        smallest = min(by_shard, key=lambda shard: sum(rows * columns for rows, columns in shard.values()))
        smallest[name] = shape
    files = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    with ThreadPoolExecutor(shards) as writers:
        for file, shard in zip(files, by_shard, strict=True):
            writers.submit(_write_shard, directory / file, shard, pool)
    placed = {name: file for file, shard in zip(files, by_shard, strict=True) for name in shard}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def _write_shard(path: Path, tensors: dict[str, tuple[int, int]], pool: Bits) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, (rows, columns) in tensors.items():
        begin, end = end, end + 2 * rows * columns
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (rows, columns) in tensors.items():
            for piece in _cut_values(pool, name, rows * columns):
                file.write(piece)


def _cut_values(pool: Bits, name: str, count: int) -> Iterator[memoryview]:
    """Yield so many values of the pool, from a place that depends on the name."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % len(pool)
    while count:
        piece = pool[place : place + count]
        yield piece.data
        count, place = count - len(piece), 0


# Measuring.


def measure(name: str, action: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = action()
    show(name, time.perf_counter() - began)
    return result


def show(name: str, seconds: float) -> None:
    print(f"{name:<58} {seconds:8.2f} s", flush=True)


def probe_machine(base: Path, home: Path, size: int) -> None:
    """Print what the tools of the machine need for as many bytes."""
    data = os.urandom(PROBE_BYTES >> 4) * 16
    began = time.perf_counter()
    hashlib.sha256(data).digest()
    show("SHA-256 of as many bytes on one core", (time.perf_counter() - began) * size / len(data))
    began = time.perf_counter()
    with (home / "probe").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    show("writing as many bytes to the disk (from 1 GiB)", (time.perf_counter() - began) * size / len(data))
    (home / "probe").unlink()
    copy = home / "cp"
    measure("cp -r", lambda: subprocess.run(["cp", "-r", base, copy], check=True))
    measure("sync after cp", lambda: subprocess.run(["sync", "-f", copy], check=True))
    shutil.rmtree(copy)


class Watcher:
    """Remembers when each step of the service was recorded."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.graded = threading.Event()

    def __call__(self, event: TimelineEvent) -> None:
        self.times.setdefault(event.kind, time.time())
        if event.kind == "graded":
            self.graded.set()


def make_service(recorder: Recorder, base: BaseModel, home: Path) -> GradingService:
    examples = registry.find_task("gsm8k-mini").load(None).feedback
    child = GradingChild(
        sandbox=registry.find_sandbox("local"),
        task="gsm8k-mini",
        engine="scripted:benchmarks.submission_overhead:answer_nothing",
        settings=EvalSettings(),
        splits={"feedback": write_split_file(examples, home / "splits")},
        limits=Limits(memory_bytes=64 << 30, disk_bytes=1 << 40, processes=1000),
        seconds=600,
        python_path=(Path(__file__).resolve().parents[1],),
    )
    wrong = EvalResult(results=(ExampleResult(id="1", output="", score=0.0),))
    setup = GradingSetup(
        seen_at=PurePosixPath("/workspace"),
        base=base,
        base_seen_at=PurePosixPath("models/base"),
        baseline=score_evaluation(wrong, "feedback"),
        child=child,
    )
    return GradingService(setup, Budget(wall_seconds=86400), recorder, threading.Event())


def measure_submission(home: Path, base: BaseModel, write: Callable[[Path], None]) -> None:
    watcher = Watcher()
    spec = RunSpec(
        task="gsm8k-mini",
        agent="nop",
        model="base",
        engine="scripted",
        budget=Budget(wall_seconds=86400),
    )
    with Recorder.create(home / "runs", spec, watcher) as recorder:
        write(recorder.paths.workspace / "output" / "model")
        subprocess.run(["sync", "-f", recorder.paths.workspace], check=True)
        service = make_service(recorder, base, home)
        service.start()
        with serve_on_socket(create_grading_app(service, "gsm8k-mini", False)) as socket:
            transport = KeyedTransport(socket)
            with httpx.Client(transport=transport, base_url="http://grading", timeout=3600) as client:
                began = time.time()
                answer = client.post("/submit", json={"model_path": "output/model"}).json()
                ended = time.time()
        service.finish_gradings()
        times = watcher.times
        show("freeze: copy, hash and sync", times["submitted"] - began)
        show("checks, and a sample of the weights", times["grading"] - times["submitted"])
        show("POST /submit to the start of grading", times["grading"] - began)
        show("grading: the child's start", times["results"] - times["grading"])
        show("waiting for the lineage after the grading", times["lineage"] - times["results"])
        show("POST /submit to the verdict", ended - began)
        print(f"verdict: {answer['verdict']}, {answer['lineage']} {answer['message']}")
        model = recorder.paths.workspace / "output" / "model"
        measure("lineage, nothing beside it", lambda: trace_lineage(model, base))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.5)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    shape = choose_shape(options.gigabytes)
    tensors = shape.list_tensors(round(options.gigabytes * 1e9))
    size = 2 * sum(rows * columns for rows, columns in tensors.values())
    with tempfile.TemporaryDirectory(prefix="overhead-", dir=options.directory) as folder:
        home = Path(folder)
        print(f"{size / 1e9:.2f} GB, {len(tensors)} tensors, {options.shards} shards, {os.cpu_count()} cores")
        write_model(home / "base", tensors, options.shards, make_pool(0))
        subprocess.run(["sync", "-f", home], check=True)
        probe_machine(home / "base", home, size)
        hashes = FileHashCache(home / "hashes", settled_seconds=0)
        measure("base model, read and hashed", lambda: read_base_model(home / "base", hashes))
        base: BaseModel = measure("base model, the next time", lambda: read_base_model(home / "base", hashes))
        child = make_pool(0, noise_seed=1)
        measure_submission(home, base, lambda place: write_model(place, tensors, options.shards, child))


if __name__ == "__main__":
    main()
