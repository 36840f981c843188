"""agent2rl export"""

from collections.abc import Sequence
from pathlib import Path

import click

from agent2rl.cli.options import resolve_run, runs_dir
from agent2rl.core.errors import UserError
from agent2rl.report import export
from agent2rl.runner.settings import read_settings
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run


@click.command("export")
@click.argument("form", type=click.Choice(["csv", "jsonl", "parquet", "atif"]))
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to: a file, or for atif a folder.  [default: csv and jsonl are printed]",
)
@runs_dir
def export_command(form: str, runs: tuple[str, ...], output: Path | None, runs_dir: Path | None) -> None:
    """Write runs as rows for other programs: all of the runs directory, or those that are named.

    \b
    csv      in the columns of the published harness, as results.csv in the runs directory is
    jsonl    all that is known, one object a run; metrics and route where a run has its report
    parquet  the same for data frames
    atif     the trajectories of driven agents, one file each

    \b
    agent2rl export csv > results.csv
    agent2rl export parquet -o runs.parquet
    agent2rl export atif 20261116 -o trajectories
    """
    chosen = [resolve_run(name, runs_dir) for name in runs] or _list_all_runs(runs_dir)
    if form in ("csv", "jsonl"):
        _write_rows(form, chosen, output)
        return
    if output is None:
        raise UserError(f"{form} is not for printing.", "Say where to: -o PATH.")
    if form == "atif":
        count = export.write_atif(chosen, output)
    else:
        count = export.write_parquet([read_run(paths) for paths in chosen], output)
    click.echo(f"{count} {'run' if count == 1 else 'runs'} in {output}")


def _list_all_runs(runs_dir: Path | None) -> Sequence[RunPaths]:
    folder = (runs_dir or read_settings().runs).absolute()
    found = export.runs_below(folder)
    if not found:
        raise UserError(f"There are no runs below {folder}.", "Name the runs directory with --runs-dir.")
    return found


def _write_rows(form: str, chosen: Sequence[RunPaths], output: Path | None) -> None:
    views = [read_run(paths) for paths in chosen]
    if form == "csv" and (many := sum(bool(view.contaminated) for view in views)):
        click.echo(
            f"note: {many} of these runs {'is' if many == 1 else 'are'} contaminated, which the columns of "
            f"the published harness do not tell: `agent2rl export jsonl` does.",
            err=True,
        )
    text = (
        export.render_csv(views)
        if form == "csv"
        else "".join(f"{row}\n" for row in export.render_jsonl(views))
    )
    if output:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{len(views)} {'run' if len(views) == 1 else 'runs'} in {output}")
    else:
        click.echo(text, nl=False)
