"""An agent is a program that is told what to do and is run in a sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

from agent2rl.core.records import Budget, Mode
from agent2rl.core.sandbox import Command


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


class Agent(Protocol):
    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables of the user's environment that the agent is given; it gets no others."""
        ...

    def command(self, brief: Brief) -> Command:
        """What to start, with which files and variables."""
        ...
