"""Runs a published-format agent folder, `folder:PATH` or by name below --agents-dir: config.yaml + start.sh.

`config.yaml` has `name`, `start` (default start.sh) and `env_vars`. agent2rl adds two keys. `secrets` lists
your environment variables that are passed to the agent; the published format passes all of them. `program`
names the program that the start script runs, if agent2rl does not recognize it, or `none`.

A folder whose start script runs one of the known programs (programs.py) is driven by the run's driver LLM.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from agent2rl.agents.folder.programs import (
    BIN,
    FolderProgram,
    find_program,
    get_program,
    render_start_script,
)
from agent2rl.core.agent import Agent, Brief, ProgramAgent
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Mount

LAYOUTS = """\
An agent folder has
    config.yaml    name: "My agent", start: "start.sh", env_vars: {NAME: "value"}
    start.sh       starts the agent
A single file needs no folder: --agent script:FILE, with FILE a .py, .sh or executable file."""
START_SCRIPT = ".config/agent2rl/start.sh"


@dataclass(frozen=True)
class FolderAgent:
    path: Path
    start: str
    variables: Mapping[str, str]
    secrets: tuple[str, ...]

    def command(self, brief: Brief) -> Command:
        """Mount the folder read-only as `agent/` in the workspace, and run its start script."""
        environment = {**self.variables, **brief.environment}
        return Command(("bash", self.start_path(brief)), environment, (Mount(self.path, "agent"),))

    def start_path(self, brief: Brief) -> str:
        return str(brief.workspace / "agent" / self.start)


def parse(argument: str) -> Agent:
    path = Path(argument).resolve()
    fields = _read_config(path)
    config, start = path / "config.yaml", str(fields.get("start", "start.sh"))
    if not (path / start).resolve().is_relative_to(path) or not (path / start).is_file():
        raise UserError(f"The agent folder {path} has no {start}, which its config.yaml names.", LAYOUTS)
    folder = FolderAgent(path, start, _read_variables(config, fields), _read_secrets(config, fields))
    program = _choose_program(path / start, fields)
    return _make_driven_agent(folder, program) if program else folder


def _make_driven_agent(folder: FolderAgent, program: FolderProgram) -> ProgramAgent:
    """Return the agent that runs the folder's program with the run's driver."""
    checkout = _find_checkout(folder, program)

    def build_command(brief: Brief) -> Command:
        setup = program.set_up(brief, program.agent.command(brief))
        script = render_start_script(program, setup, brief, folder.start_path(brief), checkout)
        wrappers = {f"{BIN}/{name}": text for name, text in setup.wrappers.items()}
        return Command(
            argv=("sh", "-c", f"exec sh ~/{START_SCRIPT}"),
            environment={**folder.variables, **setup.environment},
            mounts=(
                Mount(folder.path, "agent"),
                *((Mount(checkout, str(checkout)),) if checkout else ()),
            ),
            files={**setup.files, **wrappers, START_SCRIPT: script},
        )

    return ProgramAgent(
        package=program.package,
        wires=program.wires,
        start=build_command,
        read=program.agent.transcript,
        secrets=folder.secrets,
        installed_as=program.installed_as,
    )


def _choose_program(start: Path, fields: Mapping[str, object]) -> FolderProgram | None:
    name = fields.get("program")
    if name is None:
        return find_program(start)
    return None if name == "none" else get_program(str(name))


def _find_checkout(folder: FolderAgent, program: FolderProgram) -> Path | None:
    """Return the user's copy of the code that the start script runs beside its program."""
    if not program.checkout:
        return None
    value = os.environ.get(program.checkout) or folder.variables.get(program.checkout)
    if value and (Path(value) / "main.py").is_file():
        return Path(value).resolve()
    problem = f"{value} has no main.py" if value else f"{program.checkout} is not set"
    raise UserError(
        f"The start script of {folder.path} runs code that is not in the folder, and {problem}.",
        f"Clone {program.checkout_source}, and set {program.checkout} to that directory.",
    )


def _read_config(path: Path) -> dict[str, object]:
    config = path / "config.yaml"
    try:
        fields = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is not an agent folder: it has no config.yaml.", LAYOUTS) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{config} cannot be read: {error}.") from error
    if not isinstance(fields, dict):
        raise UserError(f"{config} must be a mapping with `name`, `start` and `env_vars`.", LAYOUTS)
    return fields


def _read_variables(config: Path, fields: Mapping[str, object]) -> dict[str, str]:
    variables = fields.get("env_vars") or {}
    if not isinstance(variables, dict):
        raise UserError(f"`env_vars` in {config} must map names to values.")
    return {str(name): str(value) for name, value in variables.items()}


def _read_secrets(config: Path, fields: Mapping[str, object]) -> tuple[str, ...]:
    secrets = fields.get("secrets") or []
    if not isinstance(secrets, list):
        raise UserError(f"`secrets` in {config} must be a list of variable names.")
    return tuple(str(name) for name in secrets)
