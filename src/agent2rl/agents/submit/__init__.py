"""Submits a model directory that was trained elsewhere: `submit:PATH`."""

from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Mount

PROGRAM = Path(__file__).with_name("submit_model.py")
TARGET = "agent/submission"


@dataclass(frozen=True)
class SubmitAgent:
    path: Path
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        """Mount the model read-only in `agent/` of the workspace, and submit a copy of it."""
        program = f"agent/{PROGRAM.name}"
        return Command(
            ("python", str(brief.workspace / program), str(brief.workspace / TARGET)),
            brief.environment,
            (Mount(PROGRAM, program), Mount(self.path, TARGET)),
        )


def parse(argument: str) -> SubmitAgent:
    path = Path(argument).resolve()
    if not path.is_dir():
        raise UserError(f"There is no model directory {argument!r}.", "Give the path of a directory.")
    return SubmitAgent(path)
