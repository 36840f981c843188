"""agent2rl judge"""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agent2rl.cli.options import as_json
from agent2rl.core.records import Calibration, Estimate
from agent2rl.runner.judge_calibration import measure_judge
from agent2rl.runner.settings import read_settings

JUDGE_DATA_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.group("judge")
def judge_command() -> None:
    """Measure a judge before it is trusted."""


@judge_command.command("calibrate")
@click.argument("judge")
@click.option("--task", default="alpacaeval", show_default=True, help="Whose preferences are the measure.")
@click.option("--data-dir", type=JUDGE_DATA_DIRECTORY, required=True, help="The official files and annotations.")
@click.option(
    "--comparisons",
    type=click.IntRange(2),
    default=200,
    show_default=True,
    help="How many; each is asked twice.",
)
@as_json
def calibrate(judge: str, task: str, data_dir: Path, comparisons: int, as_json: bool) -> None:
    """Hold JUDGE against the preferences of the benchmark's own judge.

    DIR/annotations/ has them, a file for each model in the official format. Every comparison is put in both
    orders. Printed are how often the two agree, how often the judge keeps to its word when the order is
    turned, how much it favours the first answer, and the longer one.

    \b
    agent2rl judge calibrate gpt-4o --data-dir DIR
    agent2rl judge calibrate model:smollm2-135m --data-dir DIR --comparisons 20
    """
    found = measure_judge(task, judge, data_dir, comparisons, read_settings())
    if as_json:
        click.echo(found.model_dump_json())
    else:
        _print_calibration(found)


def _print_calibration(found: Calibration) -> None:
    table = Table("", found.judge, "ideally")
    table.add_row("agrees with the benchmark's judge", _format_percent(found.agreement), "100")
    table.add_row("says the same in both orders", _format_percent(found.consistency), "100")
    table.add_row("share of the first answer", _format_percent(found.first), "50")
    known = f"{found.longer_known.value:.1f}" if found.longer_known else "?"
    table.add_row("share of the longer answer", _format_percent(found.longer), f"{known} (the benchmark's)")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"{found.n:,} comparisons, {found.missing:,} missing; "
        f"{found.by_probability:,} read from probabilities, the others from the choice"
    )


def _format_percent(found: Estimate | None) -> str:
    return f"{found.value:.1f} ± {found.error:.1f}" if found else "?"
