"""agent2rl report"""

from pathlib import Path

import click

from agent2rl.bundles.unpacking import is_bundle
from agent2rl.cli.options import as_json, complete_runs, open_run, runs_dir
from agent2rl.cli.terminal_output import sanitize_lines
from agent2rl.report import descriptions, page_signature, run_report
from agent2rl.report.report_data import LlmSummary, ReportData
from agent2rl.report.run_report import build_prompt, check_summary
from agent2rl.run.judges import open_summariser
from agent2rl.run.settings import read_settings


@click.command("report")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--summariser",
    "model",
    metavar="MODEL",
    help="Let an LLM summarise the findings: claude-…, gpt-…, gemini-…, MODEL@URL or model:NAME. "
    "It must cite evidence, and the citations are checked.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the report to this folder.  [default: report/ in the run's directory; of a bundle, "
    "RUN_ID-report here]",
)
@runs_dir
@as_json
def report_command(
    run: str, model: str | None, output: Path | None, runs_dir: Path | None, as_json: bool
) -> None:
    """Analyse RUN and write its report: report.html, report.md, report.json and figures/.

    The analysis reads only the run's directory, so you can repeat it at any time, also for a run that is
    still running or has crashed. `agent2rl run` writes the report when the run ends. RUN may be a bundle.

    \b
    agent2rl report latest
    agent2rl report latest --json > report.json
    agent2rl report latest --summariser claude-opus-4-6
    agent2rl report /somebody/elses/run --output my-report
    """
    paths = open_run(run, runs_dir)
    if output is None and is_bundle(run):
        output = Path(f"{paths.run_id}-{paths.report.name}")
    data = run_report.gather_report_data(paths)
    if model:
        data = run_report.add_summary(data, _ask_for_summary(model, data))
    report = run_report.write_report(paths, data, output)
    # The signature tells the dashboard that this user made the page, so that it may show it.
    if output is None:
        page_signature.sign_page(paths, read_settings().cache)
    if as_json:
        click.echo(report.model_dump_json())
        return
    click.echo(sanitize_lines(data.findings.summary))
    for note in report.notes:
        click.echo(sanitize_lines(f"note: {note}"), err=True)
    if data.llm_summary:
        click.echo(sanitize_lines(f"\n{data.llm_summary.model} says:\n{data.llm_summary.text}"))
        for problem in data.llm_summary.problems:
            click.echo(sanitize_lines(f"note: {problem}"), err=True)
    click.echo(f"\nreport: {(output or paths.report) / paths.report_page.name}")


def _ask_for_summary(model: str, data: ReportData) -> LlmSummary:
    click.echo(f"asking {model} …", err=True)
    with open_summariser(model, read_settings()) as ask:
        summary = check_summary(ask(build_prompt(data.findings)), model, data.findings)
        if ask.usage:
            click.echo(descriptions.describe_usage(ask.usage()), err=True)
    return summary
