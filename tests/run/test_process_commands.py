"""What is recorded of a program's command line, directory and variables."""

import subprocess
import sys
from pathlib import Path

from agent2rl.run.process_commands import read_command_line, select_variables


def test_the_command_line_directory_and_variables_of_a_process_are_read(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "input()", "two words"]
    with subprocess.Popen(program, cwd=tmp_path, env={"RATE": "1e-4"}, stdin=subprocess.PIPE) as process:
        command = read_command_line(process.pid)
        process.communicate(b"\n")
    assert command.text.endswith("-c 'input()' 'two words'")
    assert (command.exact, command.directory) == (True, str(tmp_path))
    assert command.environment is not None
    assert command.environment["RATE"] == "1e-4"


def test_a_command_line_of_several_lines_is_not_exact() -> None:
    program = [sys.executable, "-c", "input(\n)"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        command = read_command_line(process.pid)
        process.communicate(b"\n")
    assert not command.exact


def test_variables_that_the_agent_was_given_and_likely_secrets_are_left_out() -> None:
    given = {"GRADING_SERVER_URL": "http://127.0.0.1:1", "SOME_API_KEY": "a-secret-value"}
    environment = {
        **given,
        "RATE": "1e-4",
        "HF_TOKEN": "hf_abc",
        "COPY": "x-a-secret-value",
        "PWD": "/workspace",
        "LONG": "x" * 5000,
    }
    assert select_variables(given, environment) == {"RATE": "1e-4"}
    assert select_variables(None, environment) == {}
    assert select_variables({"HOME": "/"}, environment) == {}, "the agent's own environment is not known"
