"""agent2rl driver"""

from pathlib import Path

import click

from agent2rl.core.errors import UserError
from agent2rl.fake_llm import script_file
from agent2rl.fake_llm.server import serve_script

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("driver")
def driver_command() -> None:
    """Be the LLM that drives an agent."""


@driver_command.command("scripted")
@click.argument("script", metavar="FILE", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@click.option("--socket", type=FILE, help="A unix socket, instead of a port.")
@click.option("--record", type=FILE, help="Append what is asked and said, a line of JSON each.")
@click.option("--key", help="Refuse requests that do not have this key, which is no secret.")
@click.option("--list", "listed", is_flag=True, help="List the scripts that come with agent2rl.")
@click.option("--check", is_flag=True, help="Only check FILE.")
def scripted(
    script: str | None,
    port: int,
    socket: Path | None,
    record: Path | None,
    key: str | None,
    listed: bool,
    check: bool,
) -> None:
    """Play a script to any agent, as OpenAI, Anthropic or Google would answer it.

    FILE is a script in TOML, or the name of one that --list lists.

    \b
    agent2rl driver scripted train-and-submit
    printf '[[step]]\\nshell = "ls"\\n[[step]]\\nend = "Done."\\n' > script.toml
    agent2rl driver scripted script.toml --port 8000 --record said.jsonl

    It prints its address and answers this computer alone, until Ctrl-C. Point an agent at it:

    \b
    Claude Code    ANTHROPIC_BASE_URL=http://127.0.0.1:8000
    Codex          base_url = "http://127.0.0.1:8000/v1", wire_api = "responses"
    Gemini CLI     GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8000
    any other      OPENAI_BASE_URL=http://127.0.0.1:8000/v1

    Any model name will do, and any key without --key. GET /script says which step each conversation is at.
    """
    if listed:
        for name, about in script_file.list_shipped_scripts().items():
            click.echo(f"{name:20}{about}")
        return
    if script is None:
        raise UserError("No script is named.", "Give a TOML file, or a name that --list lists.")
    found = script_file.load_script(script)
    if check:
        click.echo(f"{script}: {len(found.step)} steps, in order.")
        return
    serve_script(found, script, _print_address, port, socket, record, key)


def _print_address(address: str) -> None:
    click.echo(f"{address}\n(Ctrl-C to stop)")
