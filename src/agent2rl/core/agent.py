"""An agent is a program that is told what to do and is run in a sandbox.

Most are somebody else's program that asks an LLM: those are installed from a registry (`AgentPackage`), speak
to the run's gateway (`DriverLlm`) and leave a log that can be read (`DrivenAgent`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol, runtime_checkable

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.core.records import Budget, Mode
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript

LONGEST_TIMER_MS = 2**31 - 1
"""Node's; a longer one goes off at once."""


LITELLM: dict[Wire, tuple[str, str]] = {
    "openai-chat": ("openai", "/v1"),
    "anthropic": ("anthropic", ""),
    "gemini": ("gemini", "/v1beta"),
}
"""What LiteLLM calls a wire format, and what it leaves to us of the path."""


@dataclass(frozen=True)
class DriverLlm:
    """The driver LLM, as an agent reaches it: at the gateway, with a key that opens nothing else."""

    model: str
    wire: Wire
    url: str
    """Without the path that a wire format adds; a mark (`sandbox.mark`), since it is known only inside."""
    key: str = "agent2rl"

    @property
    def litellm(self) -> tuple[str, str]:
        """The model's name and the address, as programs that ask through LiteLLM are told them."""
        provider, path = LITELLM[self.wire]
        return f"{provider}/{self.model}", self.url + path


@dataclass(frozen=True)
class Brief:
    """All that an agent is told. Paths are as the agent sees them."""

    task: str
    mode: Mode
    budget: Budget
    workspace: PurePosixPath
    instructions: str
    """The whole text of instructions.md."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The published variables: TASK BASE_MODEL WORKSPACE MODEL_PATH DATA_PATH OUTPUT_DIR …"""
    prompt: str = ""
    """What an agent that reads a prompt is told: to read the instructions and begin, or to go on."""
    llm: DriverLlm | None = None
    prefix: PurePosixPath | None = None
    """Where the agent's package is seen."""
    resumed: bool = False
    """Whether the agent has worked before and is to go on, with all that it left in HOME: it ended early, or
    its harness died."""

    @property
    def driver(self) -> DriverLlm:
        if self.llm is None:
            raise UserError("This agent asks an LLM, and none is named.", "Name one: --driver MODEL.")
        return self.llm

    @property
    def timeout_ms(self) -> int:
        """For the limits that programs have of their own: all the time there is, or as long as timers go."""
        return min(int(1000 * self.budget.wall_seconds), LONGEST_TIMER_MS)

    def program_path(self, name: str) -> str:
        """A program of the agent's package, as the agent sees it."""
        if self.prefix is None:
            raise UserError("The agent is not installed.", "Install it: agent2rl agents install NAME.")
        return str(self.prefix / "bin" / name)


@dataclass(frozen=True)
class AgentPackage:
    """What an agent is installed from, at the version that it was tried with."""

    registry: Literal["npm", "pypi"]
    name: str
    version: str
    program: str
    """What it is started by: bin/PROGRAM below the prefix. Of a Python package, Python by another name, so
    that whoever ends all `python`s does not end the agent."""
    probe: tuple[str, ...] = ("--version",)
    """Arguments with which it says something and ends."""
    also: tuple[str, ...] = ()
    """Further requirements, as the registry writes them: NAME==VERSION, NAME@VERSION."""
    python: str = ""
    """The oldest Python that it runs with, where that is not any: 3.12."""


class Agent(Protocol):
    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables of the user's environment that the agent is given; it gets no others."""
        ...

    def command(self, brief: Brief) -> Command:
        """What to start, with which files and variables."""
        ...


@runtime_checkable
class DrivenAgent(Agent, Protocol):
    """An agent whose thinking is done by the run's driver LLM."""

    @property
    def package(self) -> AgentPackage: ...

    @property
    def wires(self) -> tuple[Wire, ...]:
        """The wire formats that it can be told to speak, the best first."""
        ...

    def transcript(self, log: Path, home: Path) -> Transcript:
        """What it said and did, from its output and what it left in HOME: its own, and maybe anything."""
        ...


@dataclass(frozen=True)
class ProgramAgent:
    """A driven agent, said as a value: one each in `agents/`."""

    package: AgentPackage
    wires: tuple[Wire, ...]
    start: Callable[[Brief], Command]
    read: Callable[[Path, Path], Transcript]
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        if brief.driver.wire not in self.wires:
            raise UserError(
                f"{self.package.name} does not speak {brief.driver.wire}.",
                f"It speaks {', '.join(self.wires)}: name a driver that is spoken to so.",
            )
        return self.start(brief)

    def transcript(self, log: Path, home: Path) -> Transcript:
        read = self.read(log, home)
        return read if read.version else read.model_copy(update={"version": self.package.version})
