"""agent2rl driver"""

from pathlib import Path

import click

from agent2rl.core.errors import UserError
from agent2rl.fake_llm import script_file
from agent2rl.fake_llm.server import serve_script

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("driver")
def driver_command() -> None:
    """Serve a script in place of the LLM that drives an agent."""


@driver_command.command("scripted")
@click.argument("script", metavar="FILE", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port.  [default: a free one]")
@click.option("--socket", type=FILE, help="Listen on this Unix socket instead of a port.")
@click.option("--record", type=FILE, help="Append every request and reply to this file as JSON lines.")
@click.option("--key", help="Reject requests without this API key. Do not use a real secret.")
@click.option("--list", "listed", is_flag=True, help="List the scripts that come with agent2rl, and exit.")
@click.option("--check", is_flag=True, help="Check FILE and exit.")
def scripted(
    script: str | None,
    port: int,
    socket: Path | None,
    record: Path | None,
    key: str | None,
    listed: bool,
    check: bool,
) -> None:
    """Serve a script to any agent through the APIs of OpenAI, Anthropic and Google.

    FILE is a TOML script, or the name of a script from --list.

    \b
    agent2rl driver scripted train-and-submit
    printf '[[step]]\\nshell = "ls"\\n[[step]]\\nend = "Done."\\n' > script.toml
    agent2rl driver scripted script.toml --port 8000 --record said.jsonl

    The server prints its address, accepts local connections only and runs until Ctrl-C. Point an agent at it:

    \b
    Claude Code    ANTHROPIC_BASE_URL=http://127.0.0.1:8000
    Codex          base_url = "http://127.0.0.1:8000/v1", wire_api = "responses"
    Gemini CLI     GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8000
    any other      OPENAI_BASE_URL=http://127.0.0.1:8000/v1

    Any model name works, and any key unless you set --key. GET /script returns the current step of each
    conversation.
    """
    if listed:
        for name, about in script_file.list_shipped_scripts().items():
            click.echo(f"{name:20}{about}")
        return
    if script is None:
        raise UserError("No script was given.", "Pass a TOML file, or a name from --list.")
    loaded = script_file.load_script(script)
    if check:
        click.echo(f"{script}: {len(loaded.step)} steps, valid.")
        return
    serve_script(loaded, script, _print_address, port, socket, record, key)


def _print_address(address: str) -> None:
    click.echo(f"{address}\n(Ctrl-C to stop)")
