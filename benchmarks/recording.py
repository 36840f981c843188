"""What the record of a run costs: the processor's time and the disk. Wanted: under 1% of a core, under 50 MB.

    python -m benchmarks.recording [SECONDS]

    written   twelve hours' worth, one after the other as fast as it goes: 10,000 events, 4,320 samples on a
              machine with 8 GPUs, 500 revisions of 20 files of which a few change each time
    watched   a real sandbox in which 20 processes sleep, for SECONDS (60) with the record and for as long
              without it: the rival is the same sandbox, which its limits are kept of all the same

The time is that of this process, which is the harness; the sandbox's is not in it. Keeping limits takes more
than the record does, and as much more or less as the machine has other processes: so the record's own threads
are told apart, too, and the sum counts what is more, they or the difference. Of the disk, `bytes` are
what the files hold and `blocks` what they take.
"""

import random
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from agent2rl import registry
from agent2rl.core.events import (
    ClaimedToolCall,
    FileSeen,
    GpuSample,
    ProcessEnd,
    ProcessStart,
    ResourceSample,
)
from agent2rl.core.llm import LlmExchange, TokenCounts
from agent2rl.core.records import Budget, Limits, RunSpec
from agent2rl.core.sandbox import Command, Enclosure
from agent2rl.record.recorder import Recorder
from agent2rl.run.agent_observer import AgentObserver, RevisionWatcher

RUN_SECONDS = 12 * 3600
PROCESSES, REQUESTS, TOOLS, ROLLOUTS, FILES = 2_000, 2_000, 2_000, 1_500, 500
"""A process begins and ends: 10,000 events in all."""
SAMPLES, REVISIONS, SOURCES, GPUS = 4_320, 500, 20, 8
COMMAND = "python -m torch.distributed.run --nproc-per-node 8 /workspace/code/train_grpo.py --config {}.yaml"


def spec() -> RunSpec:
    budget = Budget(wall_seconds=RUN_SECONDS)
    return RunSpec(task="gsm8k-mini", agent="script", model="abacus", engine="scripted", budget=budget)


TURNS = 3
WITHOUT, WITH = "watched: without the record", "watched: with the record"
THREADS = "  of which in the record's threads"
SHARES: dict[str, list[float]] = defaultdict(list)


def say(name: str, used: float, seconds: float) -> None:
    """What share of a core that is, of so many seconds of a run."""
    SHARES[name].append(used / seconds)
    print(f"{name:34} {used:8.2f} s of CPU  {used / seconds:8.3%} of a core", flush=True)


@contextmanager
def cost(name: str, seconds: float) -> Iterator[None]:
    began = time.process_time()
    yield
    say(name, time.process_time() - began, seconds)


@dataclass(frozen=True)
class Disk:
    bytes: int
    blocks: int
    files: int

    @classmethod
    def of(cls, root: Path) -> "Disk":
        found = [path.lstat() for path in (root, *root.rglob("*"))]
        blocks = 512 * sum(about.st_blocks for about in found)
        return cls(sum(about.st_size for about in found), blocks, len(found))

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:6.2f} MB  {self.blocks / 1e6:6.2f} MB in blocks  {self.files:5} files"


def events(recorder: Recorder) -> None:
    """In the proportions of a long run, each as long as they are."""
    now = time.time()
    for number in range(PROCESSES):
        began = ProcessStart(pid=number, began=now, parent=1, name="python", command=COMMAND.format(number))
        recorder.record_event("began", **began.model_dump())
        gone = ProcessEnd(pid=number, began=now, seconds=100.5, cpu_seconds=98.25, peak_bytes=5 << 30)
        recorder.record_event("left", **gone.model_dump())
    for number in range(REQUESTS):
        tokens = TokenCounts(input=50_000 + number, cached=49_000, output=700)
        recorder.record_exchange(
            LlmExchange(
                at=now,
                wire="anthropic",
                model="claude-opus-4-6",
                path="/v1/messages",
                stream=True,
                status=200,
                outcome="answered",
                seconds=12.5,
                tokens=tokens,
                usd=0.25,
            )
        )
    for number in range(TOOLS):
        called = ClaimedToolCall(at=now, name="Bash", shown=COMMAND.format(number) * 3)
        recorder.record_event("tool", **called.model_dump())
    for number in range(ROLLOUTS):
        counts = {"episodes": 64, "steps": 900 + number, "successes": 20}
        recorder.record_event("rollouts", source="served", **counts)
    for number in range(FILES):
        seen = FileSeen(path=f"output/grpo/checkpoint-{number}", what="weights", bytes=10**9, changed=now)
        recorder.record_event("file", **seen.model_dump())


def samples(recorder: Recorder) -> None:
    gpus = tuple(GpuSample(index=index, busy=0.93, memory_bytes=70 << 30) for index in range(GPUS))
    for number in range(SAMPLES):
        sample = ResourceSample(
            seconds=10.0123,
            cores=12.345,
            resident_bytes=300 << 30,
            processes=40,
            disk_bytes=(200 << 30) + number,
            log_bytes=1000 * number,
            gpus=gpus,
        )
        recorder.record_event("sample", **sample.model_dump(mode="json"))


def revisions(recorder: Recorder) -> None:
    """Twenty files of a few KB; one to three of them change a few lines each time."""
    dice = random.Random(0)
    code = recorder.paths.workspace / "code"
    code.mkdir(parents=True)
    texts = [[f"value_{line} = {dice.random()}\n" for line in range(120)] for _ in range(SOURCES)]
    recording = RevisionWatcher(recorder, frozenset())
    for number in range(REVISIONS):
        for which in dice.sample(range(SOURCES), dice.randint(1, 3)):
            for line in dice.sample(range(120), 5):
                texts[which][line] = f"value_{line} = {dice.random()}\n"
            folder = code / ("rewards" if which % 4 == 0 else "")
            folder.mkdir(exist_ok=True)
            (folder / f"part_{which}.py").write_text("".join(texts[which]))
        assert recording.take_revision("changed").number == number + 1
    loose = Disk.of(recorder.paths.revisions)
    with cost("  of which packing at the end", RUN_SECONDS):
        recording.close()
    print(f"{'  before packing':34} {loose}\n{'  after':34} {Disk.of(recorder.paths.revisions)}")


def written(home: Path) -> None:
    with Recorder.create(home / "runs", spec(), lambda _: None) as recorder:
        with cost("written: 10,000 events", RUN_SECONDS):
            events(recorder)
        with cost(f"written: {SAMPLES:,} samples", RUN_SECONDS):
            samples(recorder)
        with cost(f"written: {REVISIONS} revisions", RUN_SECONDS):
            revisions(recorder)
        shutil.rmtree(recorder.paths.workspace)
        paths = recorder.paths
        for path in (paths.events, paths.usage, paths.revisions, paths.root):
            print(f"  {path.name if path != paths.root else 'all':32} {Disk.of(path)}")


def watched(home: Path, seconds: float) -> None:
    turn = seconds / TURNS
    sleep = Command(("bash", "-c", f"for i in $(seq 19); do sleep {turn} & done; sleep {turn}"))
    with Recorder.create(home / "more", spec(), lambda _: None) as recorder:
        paths = recorder.paths
        (paths.workspace / "code").mkdir(parents=True)
        plain = Enclosure(
            role="agent",
            workspace=paths.workspace,
            scratch=paths.scratch / "agent",
            log=paths.agent_log,
            wall_seconds=2 * seconds,
            limits=Limits(memory_bytes=1 << 32, disk_bytes=1 << 34, processes=100),
        )
        sandbox, never = registry.find_sandbox("bubblewrap"), threading.Event()
        for _ in range(TURNS):
            with cost(WITHOUT, turn):
                sandbox.run(sleep, plain, never)
            observer = AgentObserver(recorder)
            with cost(WITH, turn), ExitStack() as stack:
                stack.enter_context(RevisionWatcher(recorder, frozenset()).watch_workspace())
                stack.enter_context(observer.observe_agent())
                sandbox.run(sleep, replace(plain, process_observer=observer), never)
                threads = own_threads()
            say(THREADS, threads, turn)


def own_threads() -> float:
    """Seconds of CPU, of those that only the record has."""
    ours = [thread for thread in threading.enumerate() if thread.name in ("timeline", "revisions")]
    assert len(ours) == 2
    return sum(
        int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
        for thread in ours
    )


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        written(Path(directory))
        watched(Path(directory), seconds)
    more = median(SHARES[WITH]) - median(SHARES[WITHOUT])
    written_down = sum(median(parts) for name, parts in SHARES.items() if name.startswith("written"))
    share = max(more, median(SHARES[THREADS])) + written_down
    print(f"{'the record in all':34} {share * RUN_SECONDS:8.2f} s of CPU  {share:8.3%} of a core in 12 hours")


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 60.0)
