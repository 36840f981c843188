"""agent2rl demo"""

from pathlib import Path

import click

from agent2rl.cli.options import runs_dir
from agent2rl.cli.run import run_command
from agent2rl.cli.run_defaults import require_training_packages
from agent2rl.system.unix import require_linux

DEMO_RUN = ("--task", "alfworld-mini", "--agent", "recipe", "--model", "seedling")


@click.command("demo")
@click.option("--budget", default="9m", show_default=True, help="The agent's time budget: 90s, 10m.")
@click.option("--seed", default="0", show_default=True, help="The random seed.")
@click.option("--sandbox", help="The sandbox for the agent.  [default: as for `agent2rl run`]")
@runs_dir
def demo_command(budget: str, seed: str, sandbox: str | None, runs_dir: Path | None) -> None:
    """Train a small language model to play household games, in about ten minutes.

    The agent `recipe` needs no LLM, no API key and no GPU. It trains the shipped model `seedling`, first by
    imitation (SFT), then on games that the model plays itself (GRPO). The record and a report are in ./runs
    afterwards. This is short for:

    \b
    agent2rl run --task alfworld-mini --agent recipe --model seedling --budget 9m
    """
    require_linux("Runs")
    require_training_packages("The demo trains a language model")
    options = {"--budget": budget, "--seed": seed, "--sandbox": sandbox, "--runs-dir": runs_dir}
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    run_command.main([*DEMO_RUN, *given], prog_name="agent2rl run", standalone_mode=False)
