"""The `agent2rl` command group. The module of a command is imported only when that command is called."""

import importlib
import io
import logging
import os
import platform
import sys
import textwrap
from typing import NoReturn, TextIO

import click

from agent2rl import __version__
from agent2rl.cli.elapsed_clock import format_elapsed_time
from agent2rl.core.errors import Agent2RLError, UserError, explain_full_disk

logger = logging.getLogger("agent2rl.cli.main")  # `__name__` is "__main__" under `python -m`

COMMANDS = {
    "demo": "Train a small model to play games, in about ten minutes.",
    "run": "Run an agent on a task and print the result.",
    "resume": "Continue a run after a crash.",
    "campaign": "Run a matrix of experiments from a file.",
    "view": "Watch runs in a browser.",
    "leaderboard": "Rank agents, drivers, models and modes across many runs.",
    "site": "Write a public leaderboard of runs as a static site.",
    "show": "Show a run, whether it is running, finished or crashed.",
    "report": "Analyse a run and write its report.",
    "export": "Export runs or tasks for other programs.",
    "import": "Run a task of another framework here.",
    "track": "Mirror runs in W&B, MLflow, Trackio or a folder.",
    "transcript": "Show what a run's agent said and did.",
    "revisions": "List the revisions of an agent's code, or diff two of them.",
    "checkout": "Write a code revision into a folder.",
    "reproduce": "Train a submission again from its recorded code.",
    "audit": "Let LLM judges look for cheating in a run.",
    "verify": "Check that a run's record is unchanged.",
    "bundle": "Write a run into one file that others can check.",
    "rejudge": "Grade a run's kept outputs again, with another judge or rule.",
    "check": "Check this machine, or a task.",
    "play": "Play a task's training games yourself.",
    "score": "Score outputs that a model has already produced.",
    "judge": "Measure how reliable an LLM judge is.",
    "driver": "Serve a script in place of the LLM that drives an agent.",
    "fingerprint": "Make a small file by which a model can be recognised.",
    "agents": "List or install the LLM-driven agents.",
    "init": "Create an example campaign, task and agent.",
    "completion": "Print a shell completion script.",
    "list": "List tasks, agents, models, engines, sandboxes or trackers.",
}

SHARED_MODULES = {
    "import": "export",
    "resume": "run",
    "transcript": "inspect_record",
    "revisions": "inspect_record",
    "checkout": "inspect_record",
    "verify": "inspect_record",
    "track": "export",
    "init": "getting_started",
    "list": "getting_started",
    "agents": "getting_started",
    "completion": "getting_started",
    "judge": "score",
}
"""Commands whose module has another name: command name -> module name."""


class LazyGroup(click.Group):
    """Command group that knows its commands by name, so that `--help` imports none of them."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"agent2rl.cli.{SHARED_MODULES.get(name, name)}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agent2rl")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log what happens to stderr, with the elapsed time: -v for the main steps, -vv for debugging. "
    "Goes before the command.",
)
def cli(verbose: int) -> None:
    """Can an LLM agent engineer the RL post-training of another model?

    The agent gets a sandboxed workspace with a base model, training data and a grading API. It trains the
    model within a budget and submits the result. agent2rl grades the submissions, records the run and writes
    a report.

    \b
    Start here:
      agent2rl check                                        is this machine ready?
      agent2rl demo                                         train a small language model, in ten minutes
      agent2rl run --task gsm8k-mini                        a complete run in seconds
      agent2rl run --task gsm8k-mini --agent script:my.py   your own script as the agent
      agent2rl view                                         watch runs in a browser
      agent2rl init                                         create an example campaign, task and agent
      agent2rl score gsm8k-mini outputs.jsonl               score the outputs of any model
      agent2rl play webshop-mini                            try a task yourself
    """
    configure_logging(verbose)
    logger.info("agent2rl %s, Python %s, %s", __version__, platform.python_version(), platform.platform())


def configure_logging(verbosity: int) -> None:
    """Log the package to stderr: warnings by default, INFO at verbosity 1, DEBUG from 2 on."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    handler = StderrHandler(level)
    handler.setFormatter(PrintableFormatter("%(asctime)s  %(levelname)s %(name)s: %(message)s"))
    package_logger = logging.getLogger("agent2rl")
    package_logger.handlers[:] = [handler]  # replaces, so that a second call does not log each line twice
    package_logger.setLevel(level if verbosity else logging.NOTSET)


class PrintableFormatter(logging.Formatter):
    """Replace control characters, because a log line may quote what an agent wrote.

    Lines begin with the elapsed time, as the progress lines of a run do.
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        return format_elapsed_time()

    def format(self, record: logging.LogRecord) -> str:
        return _make_printable(super().format(record))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Log handler that writes to whatever sys.stderr is at the time, so that it can be redirected."""

    def __init__(self, level: int) -> None:
        super().__init__(sys.stderr)
        self.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main() -> NoReturn:
    """Run the command line and turn errors of the package into a message and an exit code."""
    os.umask(0o022)  # sandboxes read files as another user; private files are in directories of mode 0700
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character the terminal lacks must not end a run
    try:
        cli(standalone_mode=True, prog_name="agent2rl")
    except BrokenPipeError:  # the reader of our output has gone (`agent2rl ... | head`): not an error
        # Or else Python, which flushes stdout when it exits, would fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Agent2RLError as error:
        _exit_with_error(error)
    except OSError as error:
        if full := explain_full_disk(error):
            _exit_with_error(full)
        raise
    sys.exit(0)


def _exit_with_error(error: Agent2RLError) -> NoReturn:
    logger.debug("The command failed", exc_info=True)
    click.echo(f"error: {_make_printable(error.message)}", err=True)
    if error.hint:
        click.echo(textwrap.indent(_make_printable(error.hint), "       "), err=True)
    sys.exit(2 if isinstance(error, UserError) else 1)


def _make_printable(text: str) -> str:
    """Replace control characters: an error may quote a record or a file name of somebody else."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)


if __name__ == "__main__":
    main()
