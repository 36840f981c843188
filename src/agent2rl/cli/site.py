"""agent2rl site"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from agent2rl.bundles.unpacking import SUFFIX, BundleVerification, OpenedBundle, is_bundle, verify_bundle
from agent2rl.cli.leaderboard import include_contaminated
from agent2rl.cli.options import runs_dir, unpack_bundle
from agent2rl.cli.terminal_output import sanitize_one_line
from agent2rl.core.errors import UserError
from agent2rl.core.reproduction import Reproduction
from agent2rl.grading.verify import Verification, verify_run
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_run
from agent2rl.report.digests import runs_below
from agent2rl.report.formatting import pluralize
from agent2rl.run.settings import read_settings
from agent2rl.site.collected_runs import CollectedRuns, FoundRun, RefusedRun, collect_runs
from agent2rl.site.listing import RunChecks
from agent2rl.site.rankings import build_contents
from agent2rl.site.references import read_references
from agent2rl.site.writer import write_site

MOST_NAMED = 20
"""Number of faults that are printed."""


@click.command("site")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default="site",
    show_default=True,
    help="The folder of the site. A site in it is replaced; other files are kept.",
)
@click.option("--title", default="Leaderboard", show_default=True, help="The title of the site.")
@click.option(
    "--reference",
    "models",
    metavar="MODEL",
    multiple=True,
    help="A model to compare with, such as the instruct model by the makers of the base model. Runs of the "
    "agent nop with this model measure it. Can be repeated.",
)
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file of results by people or from elsewhere, each with its source.",
)
@include_contaminated
@click.option(
    "--require-verified",
    is_flag=True,
    help="Fail if a run cannot be read or its record was changed. For continuous integration.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="How many runs to read at once.  [default: one for each core]"
)
@runs_dir
def site_command(
    runs: tuple[Path, ...],
    output: Path,
    title: str,
    models: tuple[str, ...],
    references: Path | None,
    include_contaminated: bool,
    require_verified: bool,
    jobs: int | None,
    runs_dir: Path | None,
) -> None:
    """Write a public leaderboard of runs: a folder of pages that any web server can show, or a browser alone.

    RUNS are run directories, bundles, or directories of them. Every run is verified and analysed anew:
    nothing is taken from the reports of others. A run whose record was changed is shown, but not ranked.

    \b
    agent2rl site -o site
    agent2rl site submissions/* -o site --references references.toml
    agent2rl site submissions/* -o preview --require-verified

    Exit code: 0, or with --require-verified 1 if a run cannot be read or is not verified.
    """
    results = read_references(references) if references else ()
    found_runs = _find_runs(runs or (runs_dir or read_settings().runs,))
    collected = _collect_with_progress(found_runs, jobs)
    contents = build_contents(collected, title, models, results, include_contaminated)
    written = write_site(contents, output)
    faults = _list_faults(collected)
    for fault in faults[:MOST_NAMED]:
        click.echo(f"note: {sanitize_one_line(fault)}", err=True)
    if len(faults) > MOST_NAMED:
        click.echo(f"note: and {len(faults) - MOST_NAMED} more", err=True)
    click.echo(f"{pluralize(len(collected.runs), 'run')} in {written}")
    sys.exit(1 if require_verified and faults else 0)


@dataclass
class _FoundRuns:
    runs: list[FoundRun] = field(default_factory=list)
    bundles: dict[Path, OpenedBundle] = field(default_factory=dict)
    """Those of the runs that came in a bundle, by directory."""
    refused: list[RefusedRun] = field(default_factory=list)


def check_record(bundles: Mapping[Path, OpenedBundle], paths: RunPaths) -> RunChecks:
    """Check what can be checked of a run without running anything. Called in a worker process."""
    bundle = bundles.get(paths.root)
    view = read_run(paths)
    again = view.best_reproduction
    if bundle:
        verification: Verification = (in_bundle := verify_bundle(bundle))
        again = _find_reproduction_beside(in_bundle, view) or again
    else:
        verification = verify_run(paths)
    return RunChecks(
        reproduced=None if again is None or again.answer == "cannot" else again.answer == "reproduced",
        audited=None if view.audit is None or not view.audit.done else not view.audit.flags,
        verified=verification.holds,
        fault=verification.fault,
        head=verification.head,
        notes=verification.notes,
        not_covered=tuple(f"{each.path}: {each.reason}" for each in verification.not_covered),
    )


def _find_reproduction_beside(verification: BundleVerification, view: RunView) -> Reproduction | None:
    """Return the last answer beside a bundle about the best submission, if there is one that holds."""
    beside, best = verification.beside, view.result.best if view.result else None
    answers = [each for each in beside.answers if best and each.submission == best.id] if beside else []
    return answers[-1] if answers else None


def _find_runs(sources: Sequence[Path]) -> _FoundRuns:
    found_runs = _FoundRuns()
    for source in sources:
        for path in _list_runs(source.absolute()):
            if isinstance(path, RunPaths):
                found_runs.runs.append(FoundRun(path, source.name))
            else:
                _add_bundle(found_runs, path, source.name)
    if not found_runs.runs and not found_runs.refused:
        raise UserError(
            f"There are no runs below {', '.join(map(str, sources))}.",
            "Pass run directories, bundles, or directories of them: agent2rl site RUNS -o DIR.",
        )
    return found_runs


def _list_runs(source: Path) -> Iterator[RunPaths | Path]:
    """Yield run directories, and the paths of bundles."""
    if is_bundle(str(source)):
        yield source
    elif not source.is_dir():
        raise UserError(
            f"There is no run directory or bundle {source}.",
            "Pass run directories, bundles, or directories of them.",
        )
    elif (source / "spec.json").exists():
        yield RunPaths(source)
    else:
        yield from runs_below(source)
        yield from sorted(source.glob(f"*{SUFFIX}"))


def _add_bundle(found_runs: _FoundRuns, path: Path, source: str) -> None:
    """Unpack a bundle until the command ends. A refused one does not affect the others."""
    try:
        bundle = unpack_bundle(str(path))
    except UserError as error:
        found_runs.refused.append(RefusedRun(path.name, error.message.replace(f"{path.parent}{os.sep}", "")))
        return
    found_runs.runs.append(FoundRun(bundle.paths, source))
    found_runs.bundles[bundle.paths.root] = bundle


def _collect_with_progress(found_runs: _FoundRuns, jobs: int | None) -> CollectedRuns:
    columns = (TextColumn("verifying and analysing runs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(found_runs.runs))
        collected = collect_runs(
            found_runs.runs,
            partial(check_record, found_runs.bundles),
            jobs,
            lambda done: progress.update(bar, completed=done),
        )
    return replace(collected, refused=(*found_runs.refused, *collected.refused))


def _list_faults(collected: CollectedRuns) -> list[str]:
    """List the runs that are not on the site, and those whose record does not hold."""
    refused = [f"{each.name} is not shown: {each.reason}" for each in collected.refused]
    changed = [
        f"{run.listing.run_id} is not ranked: {run.listing.checks.fault}"
        for run in collected.runs
        if not run.listing.checks.verified
    ]
    return refused + changed
