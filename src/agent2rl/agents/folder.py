"""Runs a published-format agent folder, `folder:PATH` or by name below --agents-dir: config.yaml + start.sh.

`config.yaml` has `name`, `start` (default start.sh) and `env_vars`. agent2rl adds one key, `secrets`: a list
of your environment variables that are passed to the agent. The published format passes all of them.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Mount


@dataclass(frozen=True)
class FolderAgent:
    path: Path
    start: str
    variables: dict[str, str]
    secrets: tuple[str, ...]

    def command(self, brief: Brief) -> Command:
        """Mount the folder read-only as `agent/` in the workspace, and run its start script."""
        environment = {**self.variables, **brief.environment}
        return Command(
            ("bash", str(brief.workspace / "agent" / self.start)), environment, (Mount(self.path, "agent"),)
        )


def parse(argument: str) -> FolderAgent:
    path = Path(argument).resolve()
    config = path / "config.yaml"
    try:
        fields = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise UserError(f"{argument!r} is not an agent folder: it has no config.yaml.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{config} cannot be read: {error}.") from error
    if not isinstance(fields, dict):
        raise UserError(f"{config} must be a mapping with `name`, `start` and `env_vars`.")
    start = str(fields.get("start", "start.sh"))
    if not (path / start).resolve().is_relative_to(path) or not (path / start).is_file():
        raise UserError(f"{config} names the start script {start!r}, which is not in the folder.")
    return FolderAgent(path, start, _read_variables(config, fields), _read_secrets(config, fields))


def _read_variables(config: Path, fields: dict[str, object]) -> dict[str, str]:
    variables = fields.get("env_vars") or {}
    if not isinstance(variables, dict):
        raise UserError(f"`env_vars` in {config} must map names to values.")
    return {str(name): str(value) for name, value in variables.items()}


def _read_secrets(config: Path, fields: dict[str, object]) -> tuple[str, ...]:
    secrets = fields.get("secrets") or []
    if not isinstance(secrets, list):
        raise UserError(f"`secrets` in {config} must be a list of variable names.")
    return tuple(str(name) for name in secrets)
