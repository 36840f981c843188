"""agent2rl transcript"""

from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from agent2rl.analysis.atif import build_trajectory
from agent2rl.cli.options import as_json, complete_runs, resolve_run, runs_dir
from agent2rl.cli.terminal_output import sanitize_lines
from agent2rl.core.errors import UserError
from agent2rl.core.transcript import Transcript, TranscriptStep
from agent2rl.store.reader import read_transcript


@click.command("transcript")
@click.argument("run", shell_complete=complete_runs)
@click.option("--atif", is_flag=True, help="As an ATIF trajectory, which other programs read.")
@runs_dir
@as_json
def transcript_command(run: str, atif: bool, runs_dir: Path | None, as_json: bool) -> None:
    """Show what a run's agent said and did, turn by turn.

    The agent itself wrote it, so it is a claim; `agent2rl show` has what was measured.

    \b
    agent2rl transcript 20261116
    agent2rl transcript 20261116 --atif > trajectory.json
    """
    paths = resolve_run(run, runs_dir)
    transcript = read_transcript(paths)
    if transcript is None:
        raise UserError(
            f"{paths.run_id} has no transcript.", "Only agents that an LLM drives have one, once they ended."
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
    """None of it steers the terminal."""
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
