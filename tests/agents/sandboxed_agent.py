"""Real agents in the real sandbox, driven by a script: each alone, without the rest of a run."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent2rl import registry
from agent2rl.core.agent import Brief, DrivenAgent, DriverLlm
from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.core.records import Budget
from agent2rl.core.sandbox import Exit, Mount, ServiceSocket, url_placeholder
from agent2rl.core.self_reports import Transcript
from agent2rl.run.agent_install import get_install_path
from tests.agents.agent_runs import AGENT_CACHE, install_agent_or_skip
from tests.helpers.sandbox_runner import SandboxRunner
from tests.helpers.waiting import wait_until

URL_VARIABLE = "LLM_URL"
INSTALL_PREFIX = PurePosixPath("/opt/agent")
DRIVER_KEY = "a key that opens nothing"


@dataclass(frozen=True)
class SocketDriver:
    """A scripted driver LLM at a socket."""

    socket: Path
    record: Path

    @property
    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]

    @property
    def models(self) -> set[str]:
        """Which models were asked for."""
        return {line["model"] for line in self._lines if line["wire"]}

    @property
    def tools(self) -> set[str]:
        """What the agent offered it to use."""
        return {tool for line in self._lines for tool in line["tools"]}

    @property
    def counted(self) -> TokenCounts:
        """What it has told that the agent's own work took, without titles and the like."""
        main = [line["tokens"] for line in self._lines if line["kind"] == "main" and line["tokens"]]
        return sum((TokenCounts.model_validate(tokens) for tokens in main), TokenCounts())


@contextmanager
def serve_socket_driver(script: str, folder: Path) -> Iterator[SocketDriver]:
    file, socket, record = folder / "script.toml", folder / "llm.sock", folder / "said.jsonl"
    file.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "agent2rl.cli.main", "driver", "scripted", str(file)]
    process = subprocess.Popen([*command, "--socket", str(socket), "--record", str(record)])
    try:
        wait_until(socket.exists)
        yield SocketDriver(socket, record)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class SandboxedAgent:
    """One agent at one driver."""

    name: str
    wire: Wire
    cell: SandboxRunner

    @property
    def agent(self) -> DrivenAgent:
        found = registry.find_agent(self.name)
        assert isinstance(found, DrivenAgent)
        return found

    @property
    def prefix(self) -> Path:
        install_agent_or_skip(self.name)
        return get_install_path(self.name, self.agent.package, AGENT_CACHE)

    def run(
        self, at: SocketDriver, prompt: str, resumed: bool = False, seconds: float = 120, grace: float = 5
    ) -> Exit:
        brief = Brief(
            task="none",
            mode="free",
            budget=Budget(wall_seconds=seconds),
            workspace=PurePosixPath("/workspace"),
            instructions="",
            environment={"ROLLOUT_KEY": "needed"},
            prompt=prompt,
            llm=DriverLlm("driver-model", self.wire, url_placeholder(URL_VARIABLE), DRIVER_KEY),
            prefix=INSTALL_PREFIX,
            resumed=resumed,
        )
        enclosure = self.cell.enclosure(
            wall_seconds=seconds,
            grace_seconds=grace,
            memory=8 << 30,
            processes=512,
            mounts=(Mount(self.prefix, str(INSTALL_PREFIX)),),
            sockets=(ServiceSocket(URL_VARIABLE, at.socket),),
        )
        return self.cell.sandbox.run(self.agent.command(brief), enclosure, threading.Event())

    @property
    def transcript(self) -> Transcript:
        return self.agent.transcript(self.cell.root / "log", self.cell.root / "scratch" / "home")
