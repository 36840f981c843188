"""`agent2rl score` scores given outputs; `agent2rl judge` measures a judge."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agent2rl import registry
from agent2rl.cli.options import as_json, judge, search
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import Calibration, Estimate, WinRates
from agent2rl.record.files import write_atomically
from agent2rl.report.tables import format_interval
from agent2rl.run.grading_proxy_setup import GradingProxyOptions
from agent2rl.run.judges import measure_judge
from agent2rl.run.output_scoring import OutputScores, PartScore, compute_win_rates, score_outputs
from agent2rl.run.settings import read_settings

DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("score")
@click.argument("task")
@click.argument("outputs", type=FILE)
@click.option("--data-dir", type=DIRECTORY, help="The task's official files, where the hub is out of reach.")
@click.option("--tasks-dir", type=DIRECTORY, multiple=True, help="Look for task folders here too.")
@click.option("--sandbox", default="bubblewrap", show_default=True, help="Where the outputs are graded.")
@click.option("--results", type=FILE, help="Write each example's result here, as JSON lines.")
@search
@judge
@as_json
def score_command(
    task: str,
    outputs: Path,
    data_dir: Path | None,
    tasks_dir: tuple[Path, ...],
    sandbox: str,
    results: Path | None,
    search: str | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Score the outputs of any model, without the model.

    OUTPUTS is a file of JSON lines, each with the id of an example and what a model said to it:

    \b
    {"id": "gsm8k-test-0000", "output": "Two dozen are 2 * 12 = 24. #### 24"}

    The names task_id and completion do as well. Several lines with one id are several samples, which give
    pass@k and majority votes. Ids are those of a run's records: for gsm8k the split and the number of the
    row in the official file, from 0.

    \b
    agent2rl score gsm8k outputs.jsonl --data-dir DIR
    agent2rl score gsm8k-mini outputs.jsonl --results results.jsonl

    For alpacaeval, OUTPUTS may be a file of a judge's preferences in the official format instead (a JSON
    list, packed with xz or gzip or not): then the raw and the length-controlled win rate are printed.

    \b
    agent2rl score alpacaeval annotations.json

    The same rule as in runs decides, in the same sandbox. `test` is feedback and held-out together. Examples
    without an output are not counted, and the table says how many are.

    Exit code: 0 where there is a score, 1 where grading failed, 2 for wrong input.
    """
    where = read_settings()
    name = registry.resolve_folder_name(task, (*tasks_dir, *where.tasks))
    if rates := compute_win_rates(name, outputs, data_dir):
        _print_rates(rates, as_json)
        return
    found, every = score_outputs(
        name, outputs, data_dir, where, sandbox, GradingProxyOptions(search, judge=judge)
    )
    if results:
        lines = "".join(result.model_dump_json() + "\n" for result in every)
        try:
            write_atomically(results, lines)
        except OSError as error:
            raise UserError(f"Cannot write {results}: {error.strerror}.") from error
    if as_json:
        click.echo(found.model_dump_json())
    else:
        _print_scores(found)


def _print_scores(found: OutputScores) -> None:
    metrics = list(found.parts[0].score.metrics)
    table = Table("split", "examples", "score", "95% interval", *metrics)
    for part in found.parts:
        score = part.score
        means = [f"{score.metrics[name]:.2f}" for name in metrics]
        table.add_row(
            score.split,
            f"{score.n:,} of {part.of:,}",
            f"{score.value:.2f}",
            format_interval(score.ci),
            *means,
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for part in found.parts:
        if part.score.split in ("train", "test"):
            if part.missing:
                console.print(_describe_missing(part), markup=False)
            if part.score.missing:
                console.print(f"{part.score.missing} {part.score.split} examples could not be judged.")


def _print_rates(found: WinRates, as_json: bool) -> None:
    if as_json:
        click.echo(found.model_dump_json())
        return
    table = Table(found.model or "model", "win rate", "standard error")
    table.add_row("raw", f"{found.win_rate:.2f}", f"{found.standard_error:.2f}")
    if found.length_controlled is not None:
        error = found.length_controlled_error or 0.0
        table.add_row("length-controlled", f"{found.length_controlled:.2f}", f"{error:.2f}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"{found.n:,} preferences, {found.missing:,} missing; difficulties: {found.difficulties}")
    if found.absent:
        text = f"{found.absent:,} official instructions are not in the file"
        after = ", so that difficulties are other instructions' after the first gap, as in what is published"
        console.print(f"{text}{after if found.length_controlled is not None else ''}.")


def _describe_missing(part: PartScore) -> str:
    left = part.of - part.score.n - part.score.missing
    names = ", ".join(part.missing) + (", …" if left > len(part.missing) else "")
    return f"{left:,} of {part.of:,} {part.score.split} examples have no output and do not count: {names}"


# agent2rl judge

JUDGE_DATA_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.group("judge")
def judge_command() -> None:
    """Measure a judge before it is trusted."""


@judge_command.command("calibrate")
@click.argument("judge")
@click.option("--task", default="alpacaeval", show_default=True, help="Whose preferences are the measure.")
@click.option(
    "--data-dir", type=JUDGE_DATA_DIRECTORY, required=True, help="The official files and annotations."
)
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
