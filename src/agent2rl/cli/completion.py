"""agent2rl completion"""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print what lets SHELL complete commands, options and names.

    \b
    agent2rl completion bash > ~/.local/share/bash-completion/completions/agent2rl
    agent2rl completion zsh > ~/.zfunc/_agent2rl
    agent2rl completion fish > ~/.config/fish/completions/agent2rl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "agent2rl", "_AGENT2RL_COMPLETE").source())
