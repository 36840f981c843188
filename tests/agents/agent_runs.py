"""Whole runs of real agents: installed from their registry, in the real sandbox, driven by a script."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.agent import AgentPackage, DrivenAgent
from agent2rl.core.errors import Agent2RLError
from agent2rl.core.llm import LlmExchange, TokenCounts
from agent2rl.core.self_reports import Transcript
from agent2rl.run.agent_install import install_agent_package
from tests.helpers.run_launcher import FinishedRun, RunLauncher

AGENT_CACHE = Path(sys.prefix) / "cache"
"""Kept with the environment, so that agents are installed once."""
DRIVER_KEY = "sk-0123456789abcdefghijklmnop"
DRIVER_MODEL = "scripted-1"


def install_agent_or_skip(name: str) -> None:
    """Install an agent, or skip and say why."""
    agent = registry.find_agent(name)
    assert isinstance(agent, DrivenAgent)
    install_package_or_skip(name, agent.package)


def install_package_or_skip(name: str, package: AgentPackage) -> None:
    try:
        install_agent_package(name, package, AGENT_CACHE, print)
    except Agent2RLError as error:
        pytest.skip(f"{name} cannot be installed here: {error}")


@dataclass(frozen=True)
class HttpDriver:
    """A scripted driver LLM."""

    url: str
    record: Path

    @property
    def said(self) -> TokenCounts:
        """What it said that all its answers used."""
        lines = [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]
        found = [TokenCounts.model_validate(line["tokens"]) for line in lines if line.get("tokens")]
        return sum(found[1:], found[0]) if found else TokenCounts()


@contextmanager
def serve_http_driver(script: str, place: Path, key: str = DRIVER_KEY) -> Iterator[HttpDriver]:
    file, record = place / "script.toml", place / "said.jsonl"
    file.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "agent2rl.cli.main", "driver", "scripted", str(file)]
    command += ["--record", str(record), "--key", key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield HttpDriver(process.stdout.readline().strip(), record)
        finally:
            process.terminate()


@dataclass(frozen=True)
class AgentRun:
    """What came of a run, and what its driver says of it."""

    run: FinishedRun
    driver: HttpDriver
    launcher: RunLauncher

    @property
    def exchanges(self) -> list[LlmExchange]:
        text = self.run.paths.usage.read_text(encoding="utf-8")
        return [LlmExchange.model_validate_json(line) for line in text.splitlines()]

    @property
    def transcript(self) -> Transcript:
        return Transcript.model_validate_json(self.run.paths.transcript.read_bytes())


def run_agent(agent: str, script: str, place: Path, *options: str, key: str = DRIVER_KEY) -> AgentRun:
    """A whole run of an agent on gsm8k-mini with the abacus."""
    install_agent_or_skip(agent)
    home = place / "home"
    home.mkdir()
    launcher = RunLauncher(place / "runs", AGENT_CACHE, home)
    with serve_http_driver(script, place) as at:
        asked = ("--agent", agent, "--driver", f"{DRIVER_MODEL}@{at.url}", *options)
        command = launcher.command("run", "--task", "gsm8k-mini", "--json", *asked)
        environment = launcher.environment(AGENT2RL_DRIVER_KEY=key)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=home, env=environment)
        return AgentRun(launcher.finish(process), at, launcher)


def find_files_containing(folder: Path, needle: bytes) -> list[str]:
    """The files below a folder that hold these bytes."""
    found = []
    for directory, _, files in os.walk(folder):
        for name in files:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink() and needle in path.read_bytes():
                found.append(str(path))
    return found
