"""The trackers of others, as they really are: an MLflow server, Trackio's store, W&B without a server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.run_launcher import FinishedRun, RunLauncher

pytestmark = pytest.mark.trackers
AGENT = """
for step in range(5):
    print(json.dumps({"step": step, "loss": 2.0 / (step + 1)}), flush=True)
submit(trained("a", problems=20))
submit(OUTPUT / "nothing")
submit(trained("b", problems=100))
"""
FILES = {"ledger.jsonl", "result.json", "spec.json", "report/report.html", "report/figures/scores.svg"}


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    done = shared_launcher.run(AGENT)
    shared_launcher.report(done)
    return done


def send(launcher: RunLauncher, run: FinishedRun, tracker: str, *options: str, **environment: str) -> str:
    done = launcher.cli("track", run.result.run_id, "--to", tracker, *options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def scores(run: FinishedRun) -> list[float]:
    found = (run.paths.submission_paths(number).record.read_text() for number in (1, 3))
    return [json.loads(text)["score"]["value"] for text in found]


class Mlflow:
    """What the server's own interface says."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, what: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.address}/api/2.0/mlflow/{what}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def runs(self) -> list[dict[str, Any]]:
        places = self.ask("experiments/search", max_results=100)["experiments"]
        ids = [each["experiment_id"] for each in places]
        return list(self.ask("runs/search", experiment_ids=ids).get("runs", []))

    def points(self, run: str, name: str) -> list[tuple[int, float]]:
        found = self.ask(f"metrics/get-history?run_id={run}&metric_key={name}").get("metrics", [])
        return [(each["step"], each["value"]) for each in found]

    def files(self, run: str, folder: str = "") -> set[str]:
        listed = self.ask(f"artifacts/list?run_id={run}&path={folder}").get("files", [])
        below = [self.files(run, each["path"]) for each in listed if each["is_dir"]]
        return {each["path"] for each in listed if not each["is_dir"]}.union(*below)


@contextmanager
def mlflow_server(place: Path, port: int) -> Iterator[Mlflow]:
    program = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    program += ["--backend-store-uri", f"sqlite:///{place}/runs.db", "--workers", "1"]
    program += ["--artifacts-destination", str(place / "files")]
    alone = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (place / "server.log").open("ab") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log, cwd=place, env=alone)
    try:
        server = Mlflow(f"http://127.0.0.1:{port}")
        end = time.monotonic() + 120
        while True:
            assert process.poll() is None, (place / "server.log").read_text()
            assert time.monotonic() < end
            try:
                urllib.request.urlopen(f"{server.address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_an_mlflow_server_holds_a_run_once_however_often_it_is_sent(
    shared_launcher: RunLauncher, run: FinishedRun, tmp_path: Path, port: int
) -> None:
    address = f"http://127.0.0.1:{port}"
    down = shared_launcher.cli("track", run.result.run_id, "--to", "mlflow", MLFLOW_TRACKING_URI=address)
    assert down.returncode == 1
    with mlflow_server(tmp_path, port) as server:
        send(shared_launcher, run, "mlflow", "--track-group", "smoke", MLFLOW_TRACKING_URI=address)
        where = send(shared_launcher, run, "mlflow", MLFLOW_TRACKING_URI=address)
        (found,) = server.runs()
        info, data = found["info"], found["data"]
        assert info["run_id"] in where
        assert (info["run_name"], info["status"]) == (run.result.run_id, "FINISHED")
        place = server.ask(f"experiments/get?experiment_id={info['experiment_id']}")["experiment"]
        assert place["name"] == "smoke"
        tags = {each["key"]: each["value"] for each in data["tags"]}
        assert {"task": "gsm8k-mini", "ending": "completed", "level": "1"}.items() <= tags.items()
        params = {each["key"]: each["value"] for each in data["params"]}
        assert params["budget.wall_seconds"] == "600.0"
        first, second = scores(run)
        assert server.points(info["run_id"], "feedback/score") == [(1, first), (3, second)]
        assert [step for step, _ in server.points(info["run_id"], "attempt-1/loss")] == [0, 1, 2, 3, 4]
        assert server.points(info["run_id"], "final/score") == [(0, run.result.score)]
        assert server.files(info["run_id"]) >= FILES


def test_an_mlflow_server_hears_of_a_run_while_it_goes(
    launcher: RunLauncher, tmp_path: Path, port: int
) -> None:
    waits = 'submit(trained("a", problems=20))\nwhile not (WORKSPACE / "go").exists():\n    time.sleep(0.1)\n'
    with mlflow_server(tmp_path, port) as server:
        process = launcher.start(
            launcher.script(waits), "--track", "mlflow", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{port}"
        )
        end = time.monotonic() + 120
        while not (found := server.runs()) or not server.points(found[0]["info"]["run_id"], "feedback/score"):
            assert time.monotonic() < end
            time.sleep(0.5)
        assert found[0]["info"]["status"] == "RUNNING"
        (spec,) = launcher.runs.glob("*/spec.json")
        (spec.parent / "workspace" / "go").touch()
        done = launcher.finish(process)
        assert done.code == 0, done.errors
        (ended,) = server.runs()
        assert ended["info"]["status"] == "FINISHED"
        assert server.points(ended["info"]["run_id"], "final/score") == [(0, done.result.score)]


def test_trackios_store_holds_a_run_once_however_often_it_is_sent(
    shared_launcher: RunLauncher, run: FinishedRun, tmp_path: Path
) -> None:
    for _ in range(2):
        send(shared_launcher, run, "trackio", TRACKIO_DIR=str(tmp_path))
    look = """if True:
    import json, trackio
    from trackio import SQLiteStorage
    (run,) = trackio.Api().runs("agent2rl")
    logs = SQLiteStorage.get_logs("agent2rl", run.name)
    for each in logs: each.pop("timestamp", None)
    trackio.init("agent2rl", name="looking", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    folder = trackio.use_artifact(f"{run.name}:latest").download("files")
    print(json.dumps({"name": run.name, "config": run.config, "logs": logs}))
    """
    seen = subprocess.run(
        [sys.executable, "-c", look],
        env=shared_launcher.environment(TRACKIO_DIR=str(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr
    found = json.loads(next(line for line in seen.stdout.splitlines() if line.startswith("{")))
    assert found["name"] == run.result.run_id
    assert found["config"]["_Group"] == "gsm8k-mini"
    assert found["config"]["tag/ending"] == "completed"
    points = {
        name: [(row["step"], row[name]) for row in found["logs"] if name in row]
        for name in ("feedback/score", "attempt-1/loss", "final/score")
    }
    first, second = scores(run)
    assert points["feedback/score"] == [(1, first), (3, second)]
    assert sorted(step for step, _ in points["attempt-1/loss"]) == [0, 1, 2, 3, 4]
    assert points["final/score"] == [(0, run.result.score)]
    kept = {path.relative_to(tmp_path / "files").as_posix() for path in (tmp_path / "files").rglob("*")}
    assert kept >= FILES


def wandb_records(path: Path) -> list[Any]:
    """A .wandb file: a log of records in blocks, as LevelDB has it, each a message of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    found = []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_wandb_without_a_server_holds_a_run_once_however_often_it_is_sent(
    shared_launcher: RunLauncher, run: FinishedRun
) -> None:
    for _ in range(2):
        send(shared_launcher, run, "wandb", WANDB_MODE="offline")
    (file,) = shared_launcher.home.glob("wandb/offline-run-*/*.wandb")
    records = wandb_records(file)
    (begun,) = [each.run for each in records if each.WhichOneof("record_type") == "run"]
    assert (begun.run_id, begun.run_group, begun.project) == (run.result.run_id, "gsm8k-mini", "agent2rl")
    history = []
    for each in records:
        if each.WhichOneof("record_type") == "history":
            items = each.history.item
            history.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    first, second = scores(run)
    points = [(row["submission"], row["feedback/score"]) for row in history if "feedback/score" in row]
    assert points == [(1, first), (3, second)]
    assert [row["attempt-1/loss_step"] for row in history if "attempt-1/loss" in row] == [0, 1, 2, 3, 4]
    updates = (each.summary.update for each in records if each.WhichOneof("record_type") == "summary")
    summary = {name: value for each in updates for name, value in values(each).items()}
    assert summary["final/score"] == run.result.score
    (artifact,) = [
        each.request.log_artifact.artifact if each.WhichOneof("record_type") == "request" else each.artifact
        for each in records
        if "artifact" in (each.WhichOneof("record_type") or "")
    ]
    assert {entry.path for entry in artifact.manifest.contents} >= FILES
    assert b"WANDB_API_KEY" not in file.read_bytes()


def test_wandb_without_a_login_says_so_and_the_run_is_whole(launcher: RunLauncher) -> None:
    done = launcher.run("pass", "--track", "wandb", HOME=str(launcher.home), WANDB_API_KEY="")
    assert done.code == 0
    assert "wandb: tracking failed, the run continues: UsageError" in done.errors
    assert f"agent2rl track {done.result.run_id} --to wandb" in done.errors
