"""The commands `score`, which scores the outputs of a model, and `judge`, which measures a judge."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agent2rl import registry
from agent2rl.cli.options import as_json, judge, sandbox, search
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import Calibration, Estimate, WinRates
from agent2rl.record.files import write_atomically
from agent2rl.report.formatting import format_interval
from agent2rl.run.grading_proxy_setup import GradingProxyOptions
from agent2rl.run.judges import measure_judge
from agent2rl.run.output_scoring import OutputScores, PartScore, compute_win_rates, score_outputs
from agent2rl.run.settings import read_settings

DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("score")
@click.argument("task")
@click.argument("outputs", type=FILE)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    help="The directory with the task's official files, if the hub cannot be reached.",
)
@click.option(
    "--tasks-dir", type=DIRECTORY, multiple=True, help="Also look for task folders here. Can be repeated."
)
@sandbox
@click.option("--results", type=FILE, help="Write the result of each example to this file, as JSON lines.")
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
    """Score outputs that a model has already produced. The model itself is not needed.

    OUTPUTS is a file of JSON lines. Each line has the id of an example and the model's output for it:

    \b
    {"id": "gsm8k-test-0000", "output": "Two dozen are 2 * 12 = 24. #### 24"}

    The names task_id and completion work too. Several lines with the same id are several samples; they give
    pass@k and majority votes as well. The ids are the ones in a run's records: for gsm8k, the split and the
    row number in the official file, counted from 0.

    \b
    agent2rl score gsm8k outputs.jsonl --data-dir DIR
    agent2rl score gsm8k-mini outputs.jsonl --results results.jsonl

    For alpacaeval, OUTPUTS can also be a file of judge preferences in the official format (a JSON list, plain
    or compressed with xz or gzip). This prints the raw and the length-controlled win rate.

    \b
    agent2rl score alpacaeval annotations.json

    Outputs are graded by the same rule and in the same sandbox as in a run. `test` is the feedback and the
    held-out split together. Examples without an output do not count; the table shows how many examples do.

    Exit code: 0 if there is a score, 1 if grading failed, 2 for invalid input.
    """
    settings = read_settings()
    name = registry.resolve_task_name(task, (*tasks_dir, *settings.tasks), data_dir)
    if rates := compute_win_rates(name, outputs, data_dir):
        _print_rates(rates, as_json)
        return
    scores, example_results = score_outputs(
        name,
        outputs,
        data_dir,
        settings,
        sandbox,
        GradingProxyOptions(search, judge=judge),
        lambda text: click.echo(text, err=True),
    )
    if results:
        lines = "".join(result.model_dump_json() + "\n" for result in example_results)
        try:
            write_atomically(results, lines)
        except OSError as error:
            raise UserError(f"Cannot write {results}: {error.strerror}.") from error
    if as_json:
        click.echo(scores.model_dump_json())
    else:
        _print_scores(scores)


def _print_scores(scores: OutputScores) -> None:
    metrics = list(scores.parts[0].score.metrics)
    table = Table("split", "examples", "score", "95% interval", *metrics)
    for part in scores.parts:
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
    for part in scores.parts:
        if part.score.split in ("train", "test"):
            if part.missing:
                console.print(_describe_missing(part), markup=False)
            if part.score.missing:
                console.print(f"{part.score.missing} {part.score.split} examples could not be judged.")


def _print_rates(rates: WinRates, as_json: bool) -> None:
    if as_json:
        click.echo(rates.model_dump_json())
        return
    table = Table(rates.model or "model", "win rate", "standard error")
    table.add_row("raw", f"{rates.win_rate:.2f}", f"{rates.standard_error:.2f}")
    if rates.length_controlled is not None:
        error = rates.length_controlled_error or 0.0
        table.add_row("length-controlled", f"{rates.length_controlled:.2f}", f"{error:.2f}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"{rates.n:,} preferences, {rates.missing:,} missing; difficulties: {rates.difficulties}")
    if rates.absent:
        text = f"{rates.absent:,} official instructions are not in the file"
        shift = ". Difficulties after the first gap belong to other instructions, as in the published results"
        console.print(f"{text}{shift if rates.length_controlled is not None else ''}.")


def _describe_missing(part: PartScore) -> str:
    count = part.of - part.score.n - part.score.missing
    names = ", ".join(part.missing) + (", …" if count > len(part.missing) else "")
    return f"{count:,} of {part.of:,} {part.score.split} examples have no output and do not count: {names}"


# The command `judge`


@click.group("judge")
def judge_command() -> None:
    """Measure how reliable an LLM judge is."""


@judge_command.command("calibrate")
@click.argument("judge")
@click.option(
    "--task", default="alpacaeval", show_default=True, help="The task with the reference preferences."
)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    required=True,
    help="The directory with the official files and annotations.",
)
@click.option(
    "--comparisons",
    type=click.IntRange(2),
    default=200,
    show_default=True,
    help="The number of comparisons. The judge sees each one twice.",
)
@as_json
def calibrate(judge: str, task: str, data_dir: Path, comparisons: int, as_json: bool) -> None:
    """Compare JUDGE with the published preferences of the benchmark's own judge.

    DIR/annotations/ holds these preferences in the official format, one file per model. JUDGE sees every
    comparison in both orders. The output shows how often the two judges agree, how often JUDGE gives the same
    verdict in both orders, and how much it favours the first answer and the longer answer.

    \b
    agent2rl judge calibrate gpt-4o --data-dir DIR
    agent2rl judge calibrate model:smollm2-135m --data-dir DIR --comparisons 20
    """
    calibration = measure_judge(task, judge, data_dir, comparisons, read_settings())
    if as_json:
        click.echo(calibration.model_dump_json())
    else:
        _print_calibration(calibration)


def _print_calibration(calibration: Calibration) -> None:
    table = Table("", calibration.judge, "ideally")
    table.add_row("agrees with the benchmark's judge", _format_percent(calibration.agreement), "100")
    table.add_row("says the same in both orders", _format_percent(calibration.consistency), "100")
    table.add_row("share of the first answer", _format_percent(calibration.first), "50")
    known = f"{calibration.longer_known.value:.1f}" if calibration.longer_known else "?"
    table.add_row(
        "share of the longer answer", _format_percent(calibration.longer), f"{known} (the benchmark's)"
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"{calibration.n:,} comparisons, {calibration.missing:,} missing; "
        f"{calibration.by_probability:,} read from token probabilities, the others from the chosen answer"
    )


def _format_percent(estimate: Estimate | None) -> str:
    return f"{estimate.value:.1f} ± {estimate.error:.1f}" if estimate else "?"
