"""The timeline of a run: what the agent's processes did, seen from outside, whatever they try."""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from agent2rl import registry
from agent2rl.cli.terminal_output import describe_event
from agent2rl.core.events import MAX_EVENTS, EventKind, LedgerKind, TimelineEvent
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Budget, RunSpec
from agent2rl.core.sandbox import Process
from agent2rl.fake_llm.script_file import parse_script
from agent2rl.fake_llm.server import run_in_thread
from agent2rl.record import workspace_reader
from agent2rl.record.recorder import Recorder
from agent2rl.record.revisions import read_revision_files
from agent2rl.record.workspace_reader import WorkspaceWatcher
from agent2rl.run import agent_observer, agent_session
from agent2rl.run.agent_observer import AgentObserver, ProcessMonitor
from agent2rl.run.machine import GpuSampler
from agent2rl.run.process_commands import LONGEST_COMMAND, CommandLine
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.sandbox_runner import SandboxRunner, is_bubblewrap_allowed

ROOT = Path(__file__).resolve().parents[2]
SPEC = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60))
Data = dict[str, Any]


def timeline(path: Path) -> list[TimelineEvent]:
    return [TimelineEvent.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of(kind: EventKind, path: Path) -> list[Data]:
    return [dict(event.data) for event in timeline(path) if event.kind == kind]


WORKING = """
body = {"model": "scripted", "messages": [{"role": "user", "content": "Begin."}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
head = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)).read()

code = WORKSPACE / "code"
work = "import time\\nwhile time.process_time() < 1.5: sum(range(1000))\\nprint('done')"
(code / "train.py").write_text(work)
log = (code / "train.log").open("w")
busy = subprocess.Popen([sys.executable, "code/train.py", "--lr", "1e-4"], stdout=log)
hostile = "sleep 2; : '\\x1b[31mred\\nnext line\\x07' " + "x" * 100_000
loud = subprocess.Popen(["bash", "-c", hostile])
busy.wait(), loud.wait()
print("before the submission", flush=True)
submit(trained("v1"))
"""


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run with a driver that is asked once, a training that is busy, and a command line of 100 KB."""
    place = tmp_path_factory.mktemp("whole")
    (place / "home").mkdir()
    with run_in_thread(parse_script('[[step]]\nend = "Go."\n')) as url:
        asked = ("--driver", f"scripted@{url}", "--continues", "0")
        run = RunLauncher(place / "runs", cache, place / "home").run(WORKING, *asked)
    assert run.code == 0, run.errors
    return run


def test_processes_begin_and_end_with_their_command_lines(whole: FinishedRun) -> None:
    left = of("left", whole.paths.events)
    named = {(one["pid"], one["began"]): one for one in of("began", whole.paths.events)}
    began = list(named.values())
    commands = [one["command"] for one in began]
    assert commands.count("python /workspace/agent/agent.py") == 1
    (training,) = [one for one in began if one["command"].endswith("code/train.py --lr 1e-4")]
    (agent,) = [one for one in began if one["command"].endswith("agent/agent.py")]
    assert training["parent"] == agent["pid"]
    assert [*sorted(named)] == sorted((one["pid"], one["began"]) for one in left)
    (gone,) = [one for one in left if one["pid"] == training["pid"]]
    assert gone["cpu_seconds"] > 0.5
    assert gone["peak_bytes"] > 1 << 20
    assert not [command for command in commands if "bwrap" in command or "inside.py" in command]


def test_a_busy_process_is_seen_in_the_samples(whole: FinishedRun) -> None:
    samples = of("sample", whole.paths.events)
    assert len(samples) >= 2
    assert sum(one["cores"] * one["seconds"] for one in samples) > 1.2
    assert all(
        one["resident_bytes"] > 0 and one["processes"] > 0 for one in samples[:-1]
    )  # it may end before the last
    assert samples[-1]["disk_bytes"] > 0
    assert samples[-1]["log_bytes"] == whole.paths.agent_log.stat().st_size


def test_weights_and_logs_appear_once_they_are_there(whole: FinishedRun) -> None:
    seen = of("file", whole.paths.events)
    weights = [one for one in seen if one["what"] == "weights"]
    assert {one["path"] for one in weights} == {"output/v1"}
    model = whole.paths.workspace / "output" / "v1"
    assert weights[-1]["bytes"] == sum(path.stat().st_size for path in model.glob("*.safetensors"))
    logs = [one for one in seen if one["what"] == "log"]
    assert (logs[-1]["path"], logs[-1]["bytes"]) == ("code/train.log", len("done\n"))


def test_a_hostile_command_line_is_cut_and_clean(whole: FinishedRun) -> None:
    (loud,) = [one for one in of("began", whole.paths.events) if one["command"].startswith("bash -c")]
    assert len(loud["command"]) == LONGEST_COMMAND
    assert not loud["exact"]
    assert loud["command"].isprintable()
    assert "�[31mred next line�" in loud["command"]


def test_a_request_is_on_the_timeline_and_the_log_is_marked_at_the_submission(whole: FinishedRun) -> None:
    (asked,) = of("request", whole.paths.events)
    told = LlmExchange.model_validate_json(whole.paths.usage.read_bytes())
    assert told.tokens
    assert (asked["outcome"], asked["input"]) == ("answered", told.tokens.input)
    assert (asked["began"], asked["seconds"]) == (told.at, told.seconds)
    (at,) = of("revision_of", whole.paths.events)
    assert whole.log.encode()[: at["log_bytes"]].endswith(b"before the submission\n")
    brought = {
        b"/".join(found.path): found.content
        for found in read_revision_files(whole.paths.revisions, at["number"])
    }
    assert b"before the submission" in brought[b"agent/agent.py"]
    assert b"code/train.py" in brought


@pytest.mark.thorough
def test_what_an_agent_folder_brings_along_is_in_every_revision(launcher: RunLauncher) -> None:
    folder = launcher.home / "mine"
    (folder / "lib").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: mine\n")
    (folder / "start.sh").write_text("echo x > code/x.py; sleep 1\n")
    (folder / "lib" / "loss.py").write_text("loss = 1\n")
    (folder / ".env").write_text("KEY=secret\n")
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", f"folder:{folder}", "--json")
    run = launcher.ended(done.returncode, done.stdout, done.stderr)
    for number, more in ((1, set()), (2, {b"code/x.py"})):
        found = {b"/".join(one.path) for one in read_revision_files(run.paths.revisions, number)}
        assert found == {b"agent/config.yaml", b"agent/start.sh", b"agent/lib/loss.py"} | more


@dataclass(frozen=True)
class Watched:
    """A real sandbox that is observed, without the rest of a run."""

    cell: SandboxRunner
    recorder: Recorder
    observer: AgentObserver

    def shell(self, script: str) -> int | None:
        if not is_bubblewrap_allowed():
            pytest.skip("bubblewrap cannot run here")
        with self.observer.observe_agent():
            done = self.cell.shell(
                script,
                workspace=self.recorder.paths.workspace,
                process_observer=self.observer,
                wall_seconds=120,
            )
        return done.code

    def of(self, kind: EventKind) -> list[Data]:
        return of(kind, self.recorder.paths.events)


WAIT = "until [ -e go ]; do sleep 0.1; done; exit 3"
"""Until the test has seen what it waits for."""


@contextmanager
def watching(place: Path, until: EventKind = "closed") -> Iterator[Watched]:
    """What waits in the sandbox goes on when there is an event of this kind."""

    def tell(event: TimelineEvent) -> None:
        if event.kind == until:
            (recorder.paths.workspace / "go").touch()

    with Recorder.create(place / "runs", SPEC, tell) as recorder:
        recorder.paths.workspace.mkdir()
        yield Watched(
            SandboxRunner(registry.find_sandbox("bubblewrap"), place / "cell"),
            recorder,
            AgentObserver(recorder),
        )


def test_a_crowd_of_short_processes_does_not_flood_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_observer, "MOST_EVENTS", 20)
    with watching(tmp_path, until="began") as watched:
        assert watched.shell("for i in $(seq 300); do sleep 0.$((i % 9)) & done; wait\n" + WAIT) == 3
    assert 2 <= len(watched.of("began")) + len(watched.of("left")) <= 20


def test_when_the_record_of_processes_is_full_those_that_are_busy_for_long_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_observer, "MOST_EVENTS", 20)
    monkeypatch.setattr(agent_observer, "MOST_BRIEF", 3)
    nobody = range(10**7, 10**7 + 50)
    with watching(tmp_path) as watched:
        seen = ProcessMonitor(watched.recorder)
        seen.update_processes([process(pid, 0, 0.0) for pid in nobody[:10]], 1.0)
        seen.update_processes([process(pid, 0, 0.0) for pid in nobody[10:]], 2.0)
        assert (len(watched.of("began")), len(watched.of("left"))) == (3, 3)  # that one look saw
        seen.update_processes(
            [process(pid, 0, 6.0 if pid == nobody[-1] else 1.0) for pid in nobody[10:]], 3.0
        )
        seen.update_processes([], 4.0)
    began = [one["pid"] for one in watched.of("began")]
    assert len(began) == 10 + 1
    assert began[-1] == nobody[-1]
    assert {*began} == {one["pid"] for one in watched.of("left")}
    assert [one["text"] for one in watched.of("warning")] == [
        agent_observer.FEW,
        agent_observer.PROCESSES_FULL,
    ]


def test_a_broken_observer_is_noted_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_observer, "read_command_line", lambda _: 1 // 0)
    with watching(tmp_path, until="fault") as watched:
        assert watched.shell(WAIT) == 3
    (fault,) = watched.of("fault")
    assert "ZeroDivisionError" in fault["trace"]


def test_a_command_line_that_cannot_be_read_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(agent_observer, "PATIENCE_SECONDS", 0.1)
    with watching(tmp_path) as watched:

        def stuck(_: int) -> CommandLine:
            (watched.recorder.paths.workspace / "go").touch()
            return CommandLine(str(never.wait()))

        monkeypatch.setattr(agent_observer, "read_command_line", stuck)
        assert watched.shell(WAIT) == 3
        assert "did not finish in time" in watched.of("warning")[0]["text"]
        never.set()


def process(pid: int, parent: int, cpu: float, waited: float = 0.0) -> Process:
    return Process(pid, parent, "p", 1, float(pid), cpu, waited)


def test_the_time_of_a_child_counts_once_though_its_parent_is_told_it_too(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        seen = ProcessMonitor(watched.recorder)
        assert seen.update_processes([process(1, 0, 1.0), process(2, 1, 4.0)], 10.0) == 5.0
        assert seen.update_processes([process(1, 0, 1.0)], 11.0) == 0.0  # ended, and not yet waited for
        # It had used half a second more than was seen; and a child that was never seen took another.
        assert seen.update_processes([process(1, 0, 1.5, waited=5.5)], 12.0) == 2.0
        assert seen.update_processes([process(1, 0, 1.5, waited=6.5)], 13.0) == 1.0


def test_links_and_crowded_folders_of_an_agent_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_reader, "MOST_IN_FOLDER", 500)
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    for folder in (elsewhere, workspace / "data", workspace / "output" / "many", workspace / "output" / "v1"):
        folder.mkdir(parents=True)
    for number in range(1500):
        (workspace / "output" / "many" / f"{number}.pt").touch()
    for folder in (elsewhere, workspace / "data", workspace / "output" / "v1"):
        (folder / "model.safetensors").write_bytes(b"12345")
    (workspace / "linked").symlink_to(elsewhere)
    (workspace / "output" / "v2").symlink_to(elsewhere)
    (workspace / "model.bin").symlink_to(elsewhere / "model.safetensors")
    (workspace / "output" / "loop").symlink_to(workspace)
    looking = WorkspaceWatcher(workspace)
    found = {(one.path, one.what, one.bytes) for one in looking.find_changes()}
    assert found == {("output/v1", "weights", 5), ("output/many", "weights", 0)}
    assert looking.seen < 500 + 20
    assert looking.find_changes() == []
    shutil.rmtree(workspace / "output")
    (workspace / "output").symlink_to(elsewhere)
    assert looking.find_changes() == []


def test_a_file_that_grows_is_told_again_when_it_has_come_to_rest(tmp_path: Path) -> None:
    looking = WorkspaceWatcher(tmp_path)
    log = tmp_path / "train.log"
    log.write_text("1")
    (tmp_path / "metrics-0.jsonl").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}")
    assert {one.path for one in looking.find_changes()} == {"train.log", "metrics-0.jsonl"}
    told = []
    for size in (2, 3, 3, 3, 4):
        log.write_text("x" * size)
        os.utime(log, (size, size))
        told.append([one.bytes for one in looking.find_changes()])
    assert told == [[], [], [3], [], []]
    assert [one.bytes for one in looking.find_changes(last=True)] == [4]


def test_tool_calls_come_onto_the_timeline_when_the_transcript_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(tmp_path) as watched:
        shutil.copy(
            ROOT / "tests" / "agents" / "agent_logs" / "claude-code.jsonl", watched.recorder.paths.agent_log
        )
        agent_session.save_self_reports(registry.find_agent("claude-code"), tmp_path, watched.recorder)
        calls = watched.of("tool")
        assert [(one["name"], one["failed"]) for one in calls] == [("Bash", False)] * 3
        assert "echo hi > out.txt" in calls[0]["shown"]
        monkeypatch.setitem(MAX_EVENTS, "tool", 4)
        agent_session.save_self_reports(registry.find_agent("claude-code"), tmp_path, watched.recorder)
        assert len(watched.of("tool")) == 4
        assert len([one for one in watched.of("warning") if "Too many tool events" in one["text"]]) == 1


def test_where_there_is_no_gpu_there_are_no_readings_and_no_error() -> None:
    gpus = GpuSampler()
    gpus.read_gpus()
    readings = gpus.take_averages()
    assert len(readings) == len(list(Path("/dev").glob("nvidia[0-9]*")))
    assert all(reading.memory_bytes > 0 for reading in readings)


def test_whoever_watches_a_run_is_not_told_every_process(whole: FinishedRun) -> None:
    quiet = {"began", "left", "sample", "file", "request", "tool", "rollouts"}
    assert not [
        event for event in timeline(whole.paths.events) if event.kind in quiet and describe_event(event)
    ]


def test_the_page_on_the_run_directory_names_every_kind() -> None:
    page = re.sub(r"```.*?```", "", (ROOT / "docs" / "run-directory.md").read_text("utf-8"), flags=re.S)
    named = {word for span in re.findall(r"`([^`]+)`", page) for word in span.split()}
    kinds = [kind for part in get_args(EventKind) for kind in (get_args(part) or (part,))]
    assert {*get_args(LedgerKind)} < {*kinds}
    assert {*kinds} - named == set()
