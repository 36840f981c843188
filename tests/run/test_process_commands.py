"""What is recorded of a program's command line, directory and variables."""

import subprocess
import sys
from pathlib import Path

from agent2rl.run.process_commands import CommandLine, read_command_line, select_variables


def run_and_read(
    code: str, *arguments: str, directory: Path | None = None, environment: dict[str, str] | None = None
) -> CommandLine:
    """Read a program's command line once it runs."""
    program = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, cwd=directory, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        command = read_command_line(process.pid)
        process.communicate(b"\n")
    return command


def test_the_command_line_directory_and_variables_of_a_process_are_read(tmp_path: Path) -> None:
    code = "print(flush=True); input()"
    command = run_and_read(code, "two words", directory=tmp_path, environment={"RATE": "1e-4"})
    assert command.text.endswith(f"-c '{code}' 'two words'")
    assert (command.exact, command.directory) == (True, str(tmp_path))
    assert command.environment is not None
    assert command.environment["RATE"] == "1e-4"


def test_a_command_line_of_several_lines_is_not_exact() -> None:
    assert not run_and_read("print(flush=True)\ninput()").exact


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
