"""An agent is a program that gets instructions and runs in a sandbox.

Most agents are third-party programs that call an LLM. They are installed from a package registry
(`AgentPackage`), send their requests to the run's gateway (`DriverLlm`) and leave a log that can be parsed
(`DrivenAgent`).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol, runtime_checkable

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.core.records import Budget, Mode
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript

UNTOUCHED_AGENT = "nop"
"""The agent that does nothing. Its runs measure the untouched model, also on the held-out split."""
SUBMITTING_AGENT = "submit"
"""The agent that submits a model which was trained elsewhere, where no budget was enforced."""
LONGEST_TIMER_MS = 2**31 - 1
"""Node's longest timer; a longer one fires at once."""


LITELLM: dict[Wire, tuple[str, str]] = {
    "openai-chat": ("openai", "/v1"),
    "anthropic": ("anthropic", ""),
    "gemini": ("gemini", "/v1beta"),
}
"""LiteLLM's provider name of a wire format, and the URL path that LiteLLM does not add itself."""


@dataclass(frozen=True)
class DriverLlm:
    """The driver LLM as an agent reaches it: at the gateway, with a key that is valid only there."""

    model: str
    wire: Wire
    url: str
    """Without the path that a wire format adds. A placeholder (`sandbox.url_placeholder`), because the URL is
    known only inside the sandbox."""
    key: str = "agent2rl"

    @property
    def litellm(self) -> tuple[str, str]:
        """The model's name and base URL in LiteLLM's notation."""
        provider, path = LITELLM[self.wire]
        return f"{provider}/{self.model}", self.url + path


@dataclass(frozen=True)
class Brief:
    """Everything that an agent gets at its start. Paths are as the agent sees them."""

    task: str
    mode: Mode
    budget: Budget
    workspace: PurePosixPath
    instructions: str
    """The full text of instructions.md."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The published variables: TASK BASE_MODEL WORKSPACE MODEL_PATH DATA_PATH OUTPUT_DIR …"""
    prompt: str = ""
    """First prompt of an agent that takes one: read the instructions and start, or continue."""
    llm: DriverLlm | None = None
    prefix: PurePosixPath | None = None
    """Install prefix of the agent's package."""
    python: str = sys.executable
    """The interpreter to train with: that of the agent's Python environment, by default the harness's own."""
    agent2rl_python: str = "python"
    """Starts a Python that has agent2rl, which the agent's own environment may lack."""
    resumed: bool = False
    """Whether the agent continues earlier work, with all that it left in HOME, because it exited early or its
    harness died."""

    @property
    def driver(self) -> DriverLlm:
        if self.llm is None:
            raise UserError("This agent needs a driver LLM.", "Name one with --driver MODEL.")
        return self.llm

    @property
    def timeout_ms(self) -> int:
        """Timeout for programs that have limits of their own: the whole budget, or the longest timer."""
        return min(int(1000 * self.budget.wall_seconds), LONGEST_TIMER_MS)

    def program_path(self, name: str) -> str:
        """Return the path of a program of the agent's package, as the agent sees it."""
        if self.prefix is None:
            raise UserError("The agent is not installed.", "Install it with `agent2rl agents install NAME`.")
        return str(self.prefix / "bin" / name)


@dataclass(frozen=True)
class AgentPackage:
    """The package that an agent is installed from, at the version that was tested."""

    registry: Literal["npm", "pypi"]
    name: str
    version: str
    program: str
    """The program to start: bin/PROGRAM below the prefix. For a Python package this is Python under another
    name, so that `pkill python` does not kill the agent."""
    probe: tuple[str, ...] = ("--version",)
    """Arguments with which it prints something and exits."""
    also: tuple[str, ...] = ()
    """Further requirements, as the registry writes them: NAME==VERSION, NAME@VERSION."""
    python: str = ""
    """The oldest Python version that it runs with, such as 3.12; empty if any will do."""


class Agent(Protocol):
    @property
    def secrets(self) -> tuple[str, ...]:
        """The only environment variables of the user that are passed to the agent."""
        ...

    def command(self, brief: Brief) -> Command:
        """Return the command to start, with its files and environment variables."""
        ...


@runtime_checkable
class DrivenAgent(Agent, Protocol):
    """An agent that is driven by the run's driver LLM."""

    @property
    def package(self) -> AgentPackage: ...

    @property
    def wires(self) -> tuple[Wire, ...]:
        """Supported wire formats, in order of preference."""
        ...

    def transcript(self, log: Path, home: Path) -> Transcript:
        """Parse its transcript from its log and the files it left in HOME. Both are untrusted."""
        ...


@runtime_checkable
class ModelCheckingAgent(Agent, Protocol):
    """An agent that cannot train every base model."""

    def require_model(self, model: str, engine: str) -> None:
        """Raise UserError if it cannot train this model. Called before the run begins."""
        ...


@dataclass(frozen=True)
class ProgramAgent:
    """A driven agent as a plain value; each module of `agents/` defines one."""

    package: AgentPackage
    wires: tuple[Wire, ...]
    start: Callable[[Brief], Command]
    read: Callable[[Path, Path], Transcript]
    secrets: tuple[str, ...] = ()
    installed_as: str = ""
    """Name of the agent whose installation it shares; empty if it has its own."""

    def command(self, brief: Brief) -> Command:
        if brief.driver.wire not in self.wires:
            raise UserError(
                f"{self.package.name} does not speak {brief.driver.wire}.",
                f"It speaks {', '.join(self.wires)}. Choose a driver with one of these wire formats.",
            )
        return self.start(brief)

    def transcript(self, log: Path, home: Path) -> Transcript:
        transcript = self.read(log, home)
        if transcript.version:
            return transcript
        return transcript.model_copy(update={"version": self.package.version})
