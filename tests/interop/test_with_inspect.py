"""Exported logs, opened by Inspect itself: its Python reader, and the server of `inspect view`."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.run_launcher import FinishedRun, RunLauncher

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    return shared_launcher.run('submit(trained("a"))')


@pytest.fixture(scope="module")
def logs(run: FinishedRun, shared_launcher: RunLauncher) -> Path:
    folder = shared_launcher.home / "logs"
    done = shared_launcher.cli("export", "inspect", run.result.run_id, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_its_reader_lists_and_reads_every_log(run: FinishedRun, logs: Path) -> None:
    inspect_log = pytest.importorskip("inspect_ai.log")
    listed = inspect_log.list_eval_logs(str(logs))
    assert len(listed) == len(list(logs.iterdir())) == 5
    read = {log.eval.metadata["log"]: log for log in map(inspect_log.read_eval_log, listed)}
    assert read["agent"].samples[0].scores["score"].value == run.result.score
    heldout, score = read["baseline-heldout"], run.result.baseline_heldout
    assert score is not None
    assert heldout.results.scores[0].metrics["mean"].value == pytest.approx(score.value / 100)
    assert len(heldout.samples) == score.n
    summaries = inspect_log.read_eval_log_sample_summaries(heldout.location)
    assert [summary.id for summary in summaries] == [sample.id for sample in heldout.samples]


def test_what_it_reads_it_writes_in_its_own_format_and_reads_again(logs: Path, tmp_path: Path) -> None:
    inspect_log = pytest.importorskip("inspect_ai.log")
    for info in inspect_log.list_eval_logs(str(logs)):
        log = inspect_log.read_eval_log(info)
        copy = str(tmp_path / "copy.eval")
        inspect_log.write_eval_log(log, copy)
        again = inspect_log.read_eval_log(copy)
        assert (again.eval, again.results) == (log.eval, log.results)
        assert [sample.scores for sample in again.samples] == [sample.scores for sample in log.samples]


def test_the_server_of_inspect_view_lists_and_serves_the_logs(logs: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("inspect")), "view", "start", "--log-dir", str(logs)]
    server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)])
    try:
        listed = ask(f"http://127.0.0.1:{port}/api/logs", server)
        names = {file["name"].rpartition("/")[2] for file in listed["files"]}
        assert names == {path.name for path in logs.iterdir()}
        for file in listed["files"]:
            shown = ask(f"http://127.0.0.1:{port}/api/logs/{file['name']}", server)
            assert shown["eval"]["tags"] == ["agent2rl"]
    finally:
        server.terminate()
        server.wait()


def ask(url: str, server: subprocess.Popen[bytes]) -> Any:
    """Ask until the server is up."""
    while True:
        try:
            with urllib.request.urlopen(url.replace("+", "%2B"), timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None, "the server has ended"
            time.sleep(0.2)
