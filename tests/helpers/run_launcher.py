"""Whole runs for tests: a script as the agent, in the real sandbox, through the real command line."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent2rl.core.records import RunResult
from agent2rl.record.paths import RunPaths
from tests.helpers import forked_cli

RUN_SECONDS = 840
"""The longest that a command may take. It is long because a busy machine is slow."""

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "CUDA_VISIBLE_DEVICES")

SCRIPT_PREAMBLE = '''
import json, os, pathlib, shutil, signal, socket, subprocess, sys, time, urllib.error, urllib.request

WORKSPACE = pathlib.Path(os.environ["WORKSPACE"])
OUTPUT = pathlib.Path(os.environ["OUTPUT_DIR"])
MODEL = pathlib.Path(os.environ["MODEL_PATH"])
DATA = pathlib.Path(os.environ["DATA_PATH"])
URL = os.environ["GRADING_SERVER_URL"]

def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return {"http": response.status, **json.load(response)}
    except urllib.error.HTTPError as error:
        return {"http": error.code, **json.load(error)}

def submit(path):
    return call("POST", "/submit", {"model_path": str(path)})

def trained(name, problems=60, seed=0):
    """A model that passes every check."""
    from agent2rl.models.abacus import Abacus
    rows = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()][:problems]
    model = Abacus.load(MODEL)
    model.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=seed)
    (OUTPUT / name).mkdir(parents=True, exist_ok=True)
    model.save(OUTPUT / name)
    return OUTPUT / name

def say(**found):
    """Tell the test."""
    print("SAID " + json.dumps(found), flush=True)
'''


@dataclass(frozen=True)
class FinishedRun:
    code: int
    result: RunResult
    paths: RunPaths
    said: dict[str, Any]
    log: str
    errors: str


@dataclass(frozen=True)
class RunLauncher:
    """A runs directory and a cache that runs share."""

    runs: Path
    cache: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        return {**kept, "AGENT2RL_RUNS": str(self.runs), "AGENT2RL_CACHE": str(self.cache), **more}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agent2rl.cli.main", *arguments]

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Any agent2rl command."""
        return forked_cli.run_forked_cli(
            arguments, self.home, self.environment(**environment), self.home.parent, RUN_SECONDS
        )

    def script(self, code: str, name: str = "agent.py") -> Path:
        path = self.home / name
        path.write_text(SCRIPT_PREAMBLE + code, encoding="utf-8")
        return path

    def start(self, script: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
        """A run that the test does not wait for."""
        return subprocess.Popen(
            self.command(*self._asked(script, *options)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=self.environment(**environment),
        )

    def run(self, code: str, *options: str, **environment: str) -> FinishedRun:
        """A run from start to end; `code` is what the agent does."""
        done = self.cli(*self._asked(self.script(code), *options), **environment)
        return self.ended(done.returncode, done.stdout, done.stderr)

    def _asked(self, script: Path, *options: str) -> tuple[str, ...]:
        asked = ("run", "--task", "gsm8k-mini", "--agent", f"script:{script}", "--json", "--no-report")
        return (*asked, *options)

    def report(self, run: FinishedRun) -> str:
        """What its report.md says."""
        done = self.cli("report", str(run.paths.root))
        assert done.returncode == 0, done.stderr
        return run.paths.report_text.read_text(encoding="utf-8")

    def finish(self, process: subprocess.Popen[str]) -> FinishedRun:
        """Wait for a run that was started."""
        try:
            output, errors = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return self.ended(process.returncode, output, errors)

    def ended(self, code: int, output: str, errors: str) -> FinishedRun:
        """What came of a run."""
        assert output, errors
        result = RunResult.model_validate_json(output)
        paths = RunPaths(self.runs / result.run_id)
        log = paths.agent_log.read_text(errors="replace") if paths.agent_log.exists() else ""
        said: dict[str, Any] = {}
        for line in log.splitlines():
            if line.startswith("SAID "):
                said.update(json.loads(line.removeprefix("SAID ")))
        return FinishedRun(code, result, paths, said, log, errors)
