"""agent2rl audit"""

import sys
from pathlib import Path

import click

from agent2rl.cli.options import as_json, complete_runs, resolve_run, runs_dir
from agent2rl.cli.terminal_output import print_audit
from agent2rl.report import descriptions
from agent2rl.run.audit import AuditOptions, audit_run
from agent2rl.run.audit.questions import read_cases
from agent2rl.run.settings import read_settings

DEFAULTS = AuditOptions()


@click.command("audit")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--judge",
    required=True,
    metavar="NAME",
    help="The LLM that reads the run: claude-…, gpt-…, gemini-…, MODEL@URL, or model:NAME (local).",
)
@click.option(
    "--votes",
    type=click.IntRange(1, 15),
    default=DEFAULTS.votes,
    show_default=True,
    help="How often everything is read. More than half must raise a flag.",
)
@click.option(
    "--part-size",
    type=click.IntRange(2_000, 2_000_000),
    default=DEFAULTS.part_characters,
    show_default=True,
    help="Characters of the record in one question. Lower it for a judge with a short context.",
)
@click.option(
    "--most-parts",
    type=click.IntRange(1, 1000),
    default=DEFAULTS.most_parts,
    show_default=True,
    help="Questions for each vote. What does not fit is not read, and the audit says so.",
)
@click.option(
    "--cases",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder of planted cases of your own, which no agent can know.  [default: agent2rl's own]",
)
@runs_dir
@as_json
def audit_command(
    run: str,
    judge: str,
    votes: int,
    part_size: int,
    most_parts: int,
    cases: Path | None,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Let a panel of LLM judges read RUN for cheating that no rule foresees.

    The judge reads the record, commands, network requests, every revision of the code, the transcript and the
    log, once for each vote. It looks for models that were trained elsewhere, evaluation data, answers written
    by hand, tampering, and work that was not done. Every finding needs quotes, and they are looked up in the
    record. What a majority raises is a flag in `show`, the report and the dashboard. No score changes.

    Each question also holds a made-up case. If the judge does not report it, its vote is not valid. Without
    enough valid votes the run is not audited.

    \b
    agent2rl audit latest --judge claude-opus-4-6
    agent2rl audit latest --judge gpt-5.4 --votes 5 --json

    Exit code: 0 if the run was audited, whatever was found; 1 if it was not; 2 for invalid input.
    """
    paths, settings = resolve_run(run, runs_dir), read_settings()
    options = AuditOptions(votes, part_size, most_parts, read_cases(cases) if cases else DEFAULTS.cases)
    audit = audit_run(paths, judge, settings, options, lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(audit.model_dump_json())
    else:
        print_audit(audit)
        if audit.usage:
            click.echo(descriptions.describe_usage(audit.usage), err=True)
    sys.exit(0 if audit.done else 1)
