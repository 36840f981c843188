"""`agent2rl`: each command is a module of this package, imported when it is called."""

import importlib
import io
import os
import sys
from typing import NoReturn

import click

from agent2rl import __version__
from agent2rl.core.errors import Agent2RLError, UserError

COMMANDS = {
    "run": "Run an agent on a task and print the result.",
    "resume": "Go on with a run whose harness died.",
    "campaign": "Run a matrix of experiments from a file.",
    "view": "Look at runs in a browser, live.",
    "leaderboard": "Rank agents, drivers, models and modes over many runs.",
    "show": "Show a run: going, finished or crashed.",
    "report": "Analyse a run and write its report.",
    "export": "Write runs as rows: csv, jsonl, parquet or atif.",
    "track": "Mirror runs in W&B, MLflow, Trackio or a folder.",
    "transcript": "Show what a run's agent said and did.",
    "revisions": "List an agent's code revisions, or what changed between two.",
    "checkout": "Write a code revision into a folder.",
    "verify": "Check that a run's record still holds.",
    "check": "Check this machine, or a task.",
    "play": "Play a task's training games yourself.",
    "score": "Score the outputs of any model, without the model.",
    "judge": "Measure a judge before it is trusted.",
    "driver": "Be the LLM that drives an agent: play a script.",
    "agents": "List the agents that an LLM drives, or install them.",
    "init": "Write a campaign, a task and an agent to begin with.",
    "completion": "Let your shell complete commands and names.",
    "list": "List tasks, agents, models, engines, sandboxes or trackers.",
}

SHARED_MODULES = {
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
"""Commands whose module has another name than they."""


class LazyGroup(click.Group):
    """Knows its commands by name, so that --help loads none of them."""

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
def cli() -> None:
    """Can an LLM agent engineer the RL post-training of another model?

    An agent gets a sandboxed workspace with a base model, training data and a grading API, trains within a
    budget, and submits. agent2rl grades, records and reports.

    \b
    Start here:
      agent2rl check                                        is this machine ready?
      agent2rl run --task gsm8k-mini --agent script         a whole run in seconds
      agent2rl run --task gsm8k-mini --agent script:my.py   with your script as the agent
      agent2rl view                                         look at runs in a browser, live
      agent2rl init                                         a campaign, a task and an agent to begin with
      agent2rl score gsm8k-mini outputs.jsonl               score what any model said
      agent2rl play webshop-mini                            do yourself what a model is to learn
    """


def main() -> NoReturn:
    os.umask(0o022)  # sandboxes read as another user; what is private lies in directories of mode 0700
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a sign must not end a run
    try:
        cli(standalone_mode=True, prog_name="agent2rl")
    except BrokenPipeError:  # whoever read our output has gone: no fault, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Agent2RLError as error:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"       {error.hint}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
    sys.exit(0)


if __name__ == "__main__":
    main()
