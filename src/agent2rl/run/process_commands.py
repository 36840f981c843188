"""Read what the agent's processes run: command line, working directory and environment."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from agent2rl.record.untrusted_files import sanitize_line

LONGEST_COMMAND, READ_BYTES = 2000, 8192
LONGEST_DIRECTORY = 1000
MOST_VARIABLES, MOST_CHARACTERS, ENVIRONMENT_BYTES = 40, 2000, 1 << 16
"""Limits of the variables that are recorded of one process, and of those that are read."""
GIVEN_VARIABLE = "GRADING_SERVER_URL"
"""Every agent is started with it, so an environment without it is not the agent's."""
SHELL_VARIABLES = {"PWD", "OLDPWD", "SHLVL", "_"}
"""What every shell sets by itself."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
SHORTEST_SECRET = 8
"""A variable that contains the value of a secret is left out too, unless that value is shorter."""


@dataclass(frozen=True)
class CommandLine:
    """What a process runs, and where."""

    text: str = ""
    """In shell syntax, shortened; empty if it could not be read."""
    exact: bool = False
    directory: str = ""
    environment: Mapping[str, str] | None = None
    """All variables; None if they could not be read."""


def read_command_line(pid: int) -> CommandLine:
    """Return what a process runs; its command line is in shell syntax and shortened."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            raw = file.read(READ_BYTES)
    except OSError:
        return CommandLine()
    words = raw.decode(errors="replace").rstrip("\0")
    whole = shlex.join(words.split("\0")) if words else ""
    text = sanitize_line(whole, LONGEST_COMMAND)
    exact = bool(text) and text == whole and "\ufffd" not in whole and len(raw) < READ_BYTES
    return CommandLine(text, exact, _read_directory(pid), _read_environment(pid))


def _read_directory(pid: int) -> str:
    """Return the working directory as the process sees it; empty if it cannot be read."""
    try:
        directory = os.fsencode(os.readlink(f"/proc/{pid}/cwd")).decode(errors="replace")  # noqa: PTH115
    except OSError:
        return ""
    is_plain = len(directory) <= LONGEST_DIRECTORY and directory.isprintable()
    return directory if is_plain else ""


def _read_environment(pid: int) -> Mapping[str, str] | None:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            raw = file.read(ENVIRONMENT_BYTES)
    except OSError:
        return None
    pairs = (line.partition("=") for line in raw.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def select_variables(
    given: Mapping[str, str] | None, environment: Mapping[str, str] | None
) -> dict[str, str]:
    """Return what a program was started with beyond what the agent was given, without likely secrets."""
    if given is None or environment is None or GIVEN_VARIABLE not in given:
        return {}
    secrets = [each for name, each in given.items() if SECRET.search(name) and len(each) >= SHORTEST_SECRET]
    selected: dict[str, str] = {}
    room = MOST_CHARACTERS
    # The short ones first, so that a long one does not displace many others.
    for name, value in sorted(environment.items(), key=lambda pair: (len(pair[0]) + len(pair[1]), pair)):
        is_secret = SECRET.search(name) or any(secret in value for secret in secrets)
        is_plain = name.isprintable() and value.isprintable()
        if given.get(name) == value or name in SHELL_VARIABLES or is_secret or not is_plain:
            continue
        room -= len(name) + len(value)
        if room < 0 or len(selected) >= MOST_VARIABLES:
            break
        selected[name] = value
    return selected
