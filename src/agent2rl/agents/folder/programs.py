"""The programs that the published agent folders start, and what each of their start scripts expects.

The published harness gives an agent its whole environment: API keys, base URLs, configuration files in HOME,
programs on the PATH. Here the same names lead to the run's gateway: the keys are the gateway's own token and
the programs are those that agent2rl installs for its own agents.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.agents import claude_code, codex, gemini_cli, opencode, openhands, rdagent
from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent
from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.core.sandbox import Command

BIN = ".local/bin"
"""Folder below HOME that comes first on the PATH."""


@dataclass(frozen=True)
class ProgramSetup:
    """What a start script finds: its environment, files below HOME, and programs first on the PATH."""

    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    wrappers: Mapping[str, str] = field(default_factory=dict)
    """Name -> shell script: programs that replace others of the same name."""


@dataclass(frozen=True)
class FolderProgram:
    """A program that a start script runs."""

    name: str
    """Name of the agent that uses the same program, and whose package is installed unless it has its own."""
    agent: DrivenAgent
    mention: re.Pattern[str]
    """Matches a line of a start script that runs the program."""
    wires: tuple[Wire, ...]
    """Wire formats that the published start script uses."""
    set_up: Callable[[Brief, Command], ProgramSetup]
    """Takes the brief, and the command with which agent2rl's own agent starts the program."""
    checkout: str = ""
    """Variable that names the user's copy of further code that the start script runs."""
    checkout_source: str = ""
    own_package: AgentPackage | None = None

    @property
    def package(self) -> AgentPackage:
        return self.own_package or self.agent.package

    @property
    def installed_as(self) -> str:
        return self.own_package.name if self.own_package else self.name


def _set_up_claude(brief: Brief, own: Command) -> ProgramSetup:
    return ProgramSetup({**own.environment, "CLAUDE_MODEL": brief.driver.model}, own.files)


CODEX_PROVIDER = """
[model_providers.litellm]
name = "litellm"
base_url = "{url}/v1"
env_key = "LITELLM_API_KEY"
wire_api = "responses"
"""
CODEX_WRAPPER = """\
#!/bin/sh
# Drops --search: it makes the provider search the web, and the gateway refuses such requests.
for argument; do
    shift
    [ "$argument" = --search ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


def _set_up_codex(brief: Brief, own: Command) -> ProgramSetup:
    config = ".codex/config.toml"
    provider = CODEX_PROVIDER.format(url=brief.driver.url)
    keys = {
        "LITELLM_API_KEY": brief.driver.key,
        "CODEX_MODEL": brief.driver.model,
        "CODEX_PROVIDER": "litellm",
    }
    return ProgramSetup(
        {**own.environment, **keys},
        {**own.files, config: own.files[config] + provider},
        {"codex": CODEX_WRAPPER.format(program=shlex.quote(brief.program_path("codex")))},
    )


def _set_up_gemini(brief: Brief, own: Command) -> ProgramSetup:
    return ProgramSetup({**own.environment, "GEMINI_MODEL": brief.driver.model}, own.files)


def _set_up_opencode(brief: Brief, own: Command) -> ProgramSetup:
    """Set up OpenCode. The start script writes its configuration; this adds what it leaves to the user."""
    model = f"openai/{brief.driver.model}"
    config = {"model": model, "small_model": model, "share": "disabled", "permission": {"*": "allow"}}
    return ProgramSetup(
        {
            **own.environment,
            **_make_openai_variables(brief),
            "OPENCODE_MODEL": brief.driver.model,
            "CHAT_MODEL": brief.driver.model,
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_PYTHON": brief.python,
            "TRAINING_PYTHON": brief.python,
        }
    )


OPENHANDS_SDK = AgentPackage(
    "pypi",
    "openhands-sdk",
    "1.8.2",
    program="agent",
    probe=("-c", "import openhands.sdk, openhands.tools, requests"),
    also=("openhands-tools==1.8.2", "litellm==1.80.16", "requests==2.34.2"),
    python="3.12",
)
"""The versions that openhands-rl pins. It does not run with the newer ones of the agent `openhands`."""


def _set_up_openhands(brief: Brief, own: Command) -> ProgramSetup:
    return ProgramSetup(
        {
            **own.environment,
            **_make_openai_variables(brief),
            "OPENHANDS_PYTHON": brief.program_path("agent"),
            "TRAINING_PYTHON": brief.python,
            "ALLOW_SHORT_CONTEXT_WINDOWS": "true",  # the published pipeline declares every model a gpt-4
        }
    )


PYTHON_WRAPPER = """\
#!/bin/sh
# RD-Agent has a Python of its own, and a launcher that adds two methods which version 1.0.0 lacks.
if [ "$1 $2" = "-m rdagent.app.rl.loop" ]; then
    shift 2
    cd && exec {own} ~/{launcher} "$@"
fi
exec {python} "$@"
"""


def _set_up_rdagent(brief: Brief, own: Command) -> ProgramSetup:
    wrapper = PYTHON_WRAPPER.format(
        own=shlex.quote(brief.program_path("agent")),
        launcher=rdagent.LAUNCHER,
        python=shlex.quote(brief.python),
    )
    return ProgramSetup(own.environment, own.files, {"python": wrapper})


def _make_openai_variables(brief: Brief) -> dict[str, str]:
    return {"OPENAI_API_KEY": brief.driver.key, "OPENAI_API_BASE": f"{brief.driver.url}/v1"}


PROGRAMS = (
    FolderProgram(
        "claude-code", claude_code.AGENT, re.compile(r"\bclaude\b"), ("anthropic",), _set_up_claude
    ),
    FolderProgram("codex", codex.AGENT, re.compile(r"\bcodex\b"), ("openai-responses",), _set_up_codex),
    FolderProgram("gemini-cli", gemini_cli.AGENT, re.compile(r"\bgemini\b"), ("gemini",), _set_up_gemini),
    FolderProgram(
        "opencode",
        opencode.AGENT,
        re.compile(r"\bopencode\b"),
        ("openai-responses",),
        _set_up_opencode,
        "OPENCODE_RL_ROOT",
        "github.com/shatianming5/opencode-rl",
    ),
    FolderProgram(
        "openhands",
        openhands.AGENT,
        re.compile(r"\bopenhands\b"),
        ("openai-chat",),
        _set_up_openhands,
        "OPENHANDS_RL_ROOT",
        "github.com/couragec/openhands-rl",
        OPENHANDS_SDK,
    ),
    FolderProgram("rdagent", rdagent.AGENT, re.compile(r"\brdagent\b"), ("openai-chat",), _set_up_rdagent),
)


def find_program(start: Path) -> FolderProgram | None:
    """Return the program that a start script runs: the first one that its commands mention."""
    lines = start.read_text(encoding="utf-8", errors="replace").splitlines()
    # To print the name of a program is not to run it.
    commands = [line for line in map(str.strip, lines) if not line.startswith(("#", "echo "))]
    for line in commands:
        for program in PROGRAMS:
            if program.mention.search(line):
                return program
    return None


def get_program(name: str) -> FolderProgram:
    for program in PROGRAMS:
        if program.name == name:
            return program
    names = ", ".join(program.name for program in PROGRAMS)
    raise UserError(
        f"No agent folder can start {name!r}.", f"`program` in its config.yaml is one of: {names}, none."
    )


def render_start_script(
    program: FolderProgram, setup: ProgramSetup, brief: Brief, start: str, checkout: Path | None
) -> str:
    """Return the script that prepares HOME and the PATH, and then becomes the folder's own start script."""
    path = [f'"$HOME/{BIN}"', '"$PATH"']
    if program.package.registry == "npm":
        path[1:1] = [shlex.quote(str(Path(brief.program_path(program.package.program)).parent))]
    lines = ["# Prepares what the agent folder expects, then starts it.", "set -e"]
    lines += [f'chmod +x "$HOME/{BIN}/{name}"' for name in setup.wrappers]
    lines += [f"export PATH={':'.join(path)}"]
    if checkout:
        copy = f'"$HOME/{checkout.name}"'
        lines += [f"export {program.checkout}={copy}"]
        lines += [f"[ -e {copy} ] || cp -r -- {shlex.quote(str(checkout))} {copy}"]
    return "\n".join([*lines, f"exec bash {shlex.quote(start)}", ""])
