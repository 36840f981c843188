"""Commands that read a run's record: `transcript`, `revisions`, `checkout` and `verify`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent2rl.analysis.atif import build_trajectory
from agent2rl.bundles.unpacking import ReproductionsBeside, is_bundle, select_without_report, verify_bundle
from agent2rl.cli.options import as_json, complete_runs, open_run, resolve_run, runs_dir, unpack_bundle
from agent2rl.cli.terminal_output import sanitize_lines, sanitize_one_line
from agent2rl.core.errors import UserError
from agent2rl.core.self_reports import Transcript, TranscriptStep
from agent2rl.grading.verify import Verification, verify_run
from agent2rl.record.reader import read_transcript
from agent2rl.record.revisions import diff_revisions, list_revisions, read_revision_files
from agent2rl.record.workspace_reader import SnapshotFile
from agent2rl.report.descriptions import describe_reproduction

# The command `transcript`


@click.command("transcript")
@click.argument("run", shell_complete=complete_runs)
@click.option("--atif", is_flag=True, help="Print an ATIF trajectory, a format that other tools read.")
@runs_dir
@as_json
def transcript_command(run: str, atif: bool, runs_dir: Path | None, as_json: bool) -> None:
    """Show what a run's agent said and did, turn by turn.

    The agent wrote this transcript itself, so it is only a claim. For what was measured, use `agent2rl show`.

    \b
    agent2rl transcript 20261116
    agent2rl transcript 20261116 --atif > trajectory.json
    """
    paths = open_run(run, runs_dir)
    transcript = read_transcript(paths)
    if transcript is None:
        raise UserError(
            f"{paths.run_id} has no transcript.", "Only LLM-driven agents write one, when they end."
        )
    if atif:
        click.echo(build_trajectory(transcript, paths.run_id).json_text)
    elif as_json:
        click.echo(transcript.model_dump_json())
    else:
        _print_transcript(transcript)


def _print_transcript(transcript: Transcript) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(transcript.steps, start=1):
        console.print(Text(f"{number}  {step.source}", "bold"))
        console.print(_format_step(step))
    used = transcript.tokens
    counted = f"; by its own count {used.input:,} tokens in, {used.output:,} out" if used else ""
    console.print(Text(sanitize_lines(f"{transcript.agent} {transcript.version}{counted}"), "dim"))
    if transcript.error:
        console.print(Text(sanitize_lines(transcript.error), "red"))


def _format_step(step: TranscriptStep) -> Text:
    """Format a step with all control characters removed, so that it cannot control the terminal."""
    text = Text()
    for part, style in ((step.reasoning, "dim italic"), (step.text, "")):
        if part:
            text.append(sanitize_lines(part) + "\n", style)
    seen = {observation.call: observation for observation in step.observations}
    for call in step.calls:
        text.append(sanitize_lines(f"> {call.name} {call.shown}") + "\n", "bold")
        if call.id in seen:
            text.append(sanitize_lines(seen[call.id].text) + "\n", "red" if seen[call.id].failed else "dim")
    return text


# The command `revisions`


@click.command("revisions")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--diff",
    nargs=2,
    type=click.IntRange(0),
    metavar="A B",
    help="Show the diff from revision A to B. 0 is the empty workspace.",
)
@runs_dir
@as_json
def revisions_command(run: str, diff: tuple[int, int] | None, runs_dir: Path | None, as_json: bool) -> None:
    """List the revisions of the agent's code in RUN, or diff two of them.

    There is one revision for each change and each submission. Revisions are git commits: in the run's
    directory, `git -C revisions log -p` works too.

    \b
    agent2rl revisions RUN
    agent2rl revisions RUN --diff 1 4
    """
    path = open_run(run, runs_dir).revisions
    if diff:
        click.echo(sanitize_lines(diff_revisions(path, *diff)), nl=False)
        return
    revisions = list_revisions(path)
    if as_json:
        for revision in revisions:
            click.echo(revision.model_dump_json())
        return
    table = Table("#", "after", "why", "files", "changed", "commit")
    for revision in revisions:
        after = f"{revision.at - revisions[0].at:.0f} s"
        why = Text(revision.reason)
        table.add_row(
            str(revision.number), after, why, str(revision.files), str(revision.changed), revision.commit[:10]
        )
    Console(highlight=False).print(table)


# The command `checkout`

LINK = 0o120000  # git's file mode of a symbolic link


@click.command("checkout")
@click.argument("run", shell_complete=complete_runs)
@click.argument("number", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path))
@runs_dir
def checkout_command(run: str, number: int, folder: Path, runs_dir: Path | None) -> None:
    """Write revision NUMBER of the agent's code in RUN into FOLDER, which must not exist yet.

    Symbolic links are kept as the agent made them and may point anywhere.
    """
    files = list(read_revision_files(open_run(run, runs_dir).revisions, number))
    if folder.exists():
        raise UserError(f"{folder} already exists.", "Choose a new folder: nothing is overwritten.")
    folder.mkdir(parents=True)
    try:
        _write_files(files, folder)
    except OSError as error:  # one file in the place of another's folder, or a name that is too long
        raise UserError(
            f"Revision {number} cannot be written: {error.strerror}: {error.filename}."
        ) from error
    click.echo(f"{len(files)} files in {folder}")


def _write_files(files: Sequence[SnapshotFile], folder: Path) -> None:
    """Write links last, so that nothing is written through one: the run may be somebody else's."""
    places = [(folder.joinpath(*map(os.fsdecode, file.path)), file) for file in files]
    for path, _ in places:
        path.parent.mkdir(parents=True, exist_ok=True)
    for path, file in sorted(places, key=lambda place: place[1].mode == LINK):
        if file.mode == LINK:
            path.symlink_to(os.fsdecode(file.content))
        else:
            with path.open("xb") as opened:
                opened.write(file.content)
            path.chmod(file.mode & 0o777)


# The command `verify`


@click.command("verify")
@click.argument("run", shell_complete=complete_runs)
@click.option("--head", help="Require this hash of the last ledger record, as printed by `run`.")
@click.option(
    "--signers",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Require that a bundle is signed by one of these: OpenSSH's file of allowed signers.",
)
@click.option(
    "--reproductions",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder with reproductions of a bundle's run.  [default: RUN.reproductions beside the bundle]",
)
@runs_dir
@as_json
def verify_command(
    run: str,
    head: str | None,
    signers: Path | None,
    reproductions: Path | None,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Check that the record of RUN (a run or a bundle) is unchanged.

    This recomputes the ledger's hash chain, the manifest of every submission, the hash of every file in the
    ledger and every revision of the agent's code. What was added later, such as reproductions, is checked in
    the same way. It reports the first mismatch. Files that no hash covers are listed with the reason.

    A bundle is checked as a whole before anything of it is read. Its signature is shown; with --signers, it
    must be of one of them. Reproductions of its run beside it are checked and shown, too.

    \b
    agent2rl verify latest
    agent2rl verify RUN.tar.zst --signers allowed_signers

    Exit code: 0 if the record is intact and the signature is as required, 1 if not, 2 for a broken bundle.
    """
    if is_bundle(run):
        bundle = unpack_bundle(run, select_without_report)
        bundle_verification = verify_bundle(bundle, head, signers, reproductions)
        _print_verification(bundle_verification, as_json)
        if not as_json:
            click.echo(f"signature: {bundle_verification.signature}")
            _print_reproductions(bundle_verification.beside)
        sys.exit(0 if bundle_verification.accepted else 1)
    if signers is not None:
        raise UserError(f"{run} is a run directory, and only bundles are signed.", "Leave out --signers.")
    if reproductions is not None:
        raise UserError(
            f"{run} is a run directory; its reproductions are inside it.", "Leave out --reproductions."
        )
    verification = verify_run(resolve_run(run, runs_dir), head)
    _print_verification(verification, as_json)
    sys.exit(0 if verification.holds else 1)


def _print_reproductions(beside: ReproductionsBeside | None) -> None:
    if beside is None:
        return
    if beside.fault:
        click.echo(sanitize_one_line(f"{beside.folder}: DOES NOT HOLD: {beside.fault}"))
        return
    for each in beside.answers:
        text = f"submission {each.submission}: {describe_reproduction(each)}"
        click.echo(sanitize_one_line(f"{beside.folder}: {text}"))
    click.echo(sanitize_one_line(f"{beside.folder}: the record holds, head {beside.head}"))


def _print_verification(verification: Verification, as_json: bool) -> None:
    if as_json:
        click.echo(verification.model_dump_json())
    else:
        for note in verification.notes:
            click.echo(sanitize_one_line(f"note: {note}"))
        for files in verification.not_covered:
            click.echo(sanitize_one_line(f"not covered: {files.path}: {files.reason}"))
        click.echo(
            f"{verification.records} ledger records, {verification.files} files, head {verification.head}"
        )
        if verification.additions_head:
            added = f"{verification.additions} records added later, head {verification.additions_head}"
            click.echo(added)
        click.echo("the record holds" if verification.holds else f"DOES NOT HOLD: {verification.fault}")
