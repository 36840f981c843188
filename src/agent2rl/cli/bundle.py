"""agent2rl bundle"""

from pathlib import Path

import click

from agent2rl.bundles.packing import BundleOptions, WrittenBundle, write_bundle
from agent2rl.bundles.secret_scan import SecretScanner
from agent2rl.bundles.unpacking import SUFFIX
from agent2rl.cli.options import complete_runs, resolve_run, runs_dir
from agent2rl.report.formatting import format_bytes, pluralize
from agent2rl.run.settings import read_user_secrets


@click.command("bundle")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: RUN_ID.tar.zst here]",
)
@click.option("--with-model", is_flag=True, help="Include the weights of the best submission.")
@click.option("--without-code", is_flag=True, help="Leave out the revisions of the agent's code.")
@click.option(
    "--sign",
    "key",
    metavar="KEY",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Sign the bundle with this SSH key.",
)
@click.option(
    "--not-secret",
    metavar="NAME",
    multiple=True,
    help="Do not treat this text as a secret; the error message shows its name. Can be repeated. "
    "all: treat no text as a secret because of its looks; your own keys are still replaced.",
)
@runs_dir
def bundle_command(
    run: str,
    output: Path | None,
    with_model: bool,
    without_code: bool,
    key: Path | None,
    not_secret: tuple[str, ...],
    runs_dir: Path | None,
) -> None:
    """Write a finished RUN into one file that others can open and check.

    The bundle holds the whole record, the revisions of the agent's code, the transcript, the result of each
    example, the report, and the hashes of what the run began with. Weights stay out without --with-model. The
    same run gives the same bytes. A run whose record does not hold is refused.

    Your keys (variables such as OPENAI_API_KEY) and what looks like a key are replaced with stars, and
    `verify` names the files in which that happened. A bundle has evaluation data and what the agent printed:
    look at it before you publish it.

    \b
    agent2rl bundle latest
    agent2rl bundle 20261116 -o run.tar.zst --sign ~/.ssh/id_ed25519
    agent2rl verify run.tar.zst
    agent2rl view run.tar.zst
    """
    paths = resolve_run(run, runs_dir)
    scanner = SecretScanner(read_user_secrets(), frozenset(not_secret))
    options = BundleOptions(with_model=with_model, without_code=without_code, key=key)
    click.echo(f"checking and packing {paths.run_id} …", err=True)
    written = write_bundle(paths, output or Path(f"{paths.run_id}{SUFFIX}"), scanner, options)
    _print_bundle(written)


def _print_bundle(written: WrittenBundle) -> None:
    for line in dict.fromkeys(map(str, written.secrets)):
        click.echo(f"replaced: {line}")
    for left_out in written.record.left_out:
        click.echo(f"left out: {left_out.path}: {left_out.reason}")
    total = format_bytes(sum(file.size for file in written.record.files))
    count = pluralize(len(written.record.files), "file")
    click.echo(f"{written.path}: {format_bytes(written.size)}, {count} of {total}")
    click.echo(f"ledger: {written.record.ledger_head}")
