"""Runs a script as the agent: `script:PATH` for yours (.py, .sh, executable), else the shipped one."""

from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Mount

INTERPRETERS = {".py": ("python",), ".sh": ("bash",)}


@dataclass(frozen=True)
class ScriptAgent:
    path: Path
    secrets: tuple[str, ...] = ()
    uses_agent2rl: bool = False
    """Whether the script needs a Python that has this package."""

    def command(self, brief: Brief) -> Command:
        """Mount the script read-only in `agent/` of the workspace, and run it."""
        target = f"agent/{self.path.name}"
        program = (brief.agent2rl_python,) if self.uses_agent2rl else INTERPRETERS.get(self.path.suffix, ())
        return Command(
            (*program, str(brief.workspace / target)), brief.environment, (Mount(self.path, target),)
        )


def parse(argument: str) -> ScriptAgent:
    path = Path(argument).resolve()
    if not path.is_file():
        raise UserError(
            f"There is no script {argument!r}.", "Give the path of a .py, .sh or executable file."
        )
    if path.suffix not in INTERPRETERS and not path.stat().st_mode & 0o111:
        raise UserError(f"{argument!r} is neither .py nor .sh nor executable.", f"Run `chmod +x {argument}`.")
    return ScriptAgent(path)


AGENT: Agent = ScriptAgent(Path(__file__).with_name("train.py"), uses_agent2rl=True)
