"""Play a game in a terminal: each line is an action, or one of the words below."""

from collections.abc import Callable, Iterable

from agent2rl.core.errors import Agent2RLError
from agent2rl.play.game import HumanGame, list_actions

PrintStyled = Callable[[str, str], None]
"""Prints a text with a style of Rich, or "". The text is readable without styles too."""

WORDS = {
    "help": "show the possible actions and these words",
    "commands": "list the actions that are possible now, if the world can",
    "expert": "show what the expert would do now, if there is one",
    "answer": "show the answer in the training data",
    "again": "restart this game",
    "next": "play the next game",
    "quit": "leave",
}
ACTION_PREFIX = ">"
"""A line with this prefix is an action, even if it is one of these words."""


def play_in_terminal(game: HumanGame, about: str, lines: Iterable[str], show: PrintStyled) -> None:
    """Play until the lines end or one is `quit`. `about` is the help if the world lists no actions."""
    _show_beginning(game, show)
    show(f"Type an action, or one of: {', '.join(WORDS)}.\n", "dim")
    for line in lines:
        text = line.strip()
        try:
            match text:
                case "":
                    continue
                case "quit":
                    return
                case "help":
                    show(_format_help(game, about), "")
                case "commands":
                    show(_format_commands(game), "")
                case "expert":
                    show(f"The expert would say: {game.ask_expert()}\n", "")
                case "answer":
                    show(f"{game.example.target or 'The training data has no answer to this game.'}\n", "")
                case "again" | "next":
                    game.begin_game(game.number + (text == "next"))
                    _show_beginning(game, show)
                case _:
                    _take_action(game, text.removeprefix(ACTION_PREFIX).strip(), show)
        except Agent2RLError as error:
            show(f"{error}\n", "")


def complete_line(game: HumanGame, partial: str) -> list[str]:
    """Return the completions of a partial line."""
    return [line for line in (*game.list_commands(), *WORDS) if line.startswith(partial)]


def _show_beginning(game: HumanGame, show: PrintStyled) -> None:
    steps = f", {game.allowed} steps" if game.allowed else ""
    show(f"Training game {game.number} of {len(game.world.games)}: {game.example.id}{steps}\n", "bold")
    _show_state(game, show)


def _take_action(game: HumanGame, action: str, show: PrintStyled) -> None:
    game.take_action(action)
    _show_state(game, show)


def _show_state(game: HumanGame, show: PrintStyled) -> None:
    show(f"{game.now.observation}\n", "")
    if game.over:
        show(f"{game.outcome()} Type again, next or quit.\n", "bold")
    elif game.now.reward:
        show(f"Reward {game.now.reward:.3g}.\n", "bold")


def _format_help(game: HumanGame, about: str) -> str:
    actions = list_actions(game.world)
    text = _format_columns(actions) if actions else f"Any text is an action. The task:\n\n{about.strip()}"
    words = _format_columns(list(WORDS.items()))
    return f"{text}\n\n{words}\n{ACTION_PREFIX} …  the rest of the line is an action, whatever it says\n"


def _format_columns(rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:{width}}  {right}" for left, right in rows)


def _format_commands(game: HumanGame) -> str:
    listed = [
        f"{ACTION_PREFIX} {command}" if command in WORDS else command for command in game.list_commands()
    ]
    return (
        "\n".join(listed) + "\n"
        if listed
        else "No actions to list now. Type help for the kinds of actions.\n"
    )
