"""A game as lines of text: each line that is typed is an action, or one of the words below."""

from collections.abc import Callable, Iterable

from agent2rl.core.errors import Agent2RLError
from agent2rl.play.game import HumanGame, list_actions

PrintStyled = Callable[[str, str], None]
"""Is told a text and how it should look: "" or a style of Rich. Without styles it reads as well."""

WORDS = {
    "help": "what can be said",
    "commands": "what can be done now, where the world can list it",
    "expert": "what the world's expert would do now, where it has one",
    "answer": "the training data's answer to this game",
    "again": "begin this game anew",
    "next": "play the next game",
    "quit": "leave",
}
SAID = ">"
"""A line that begins with it is an action, even if it is one of these words."""


def play_in_terminal(game: HumanGame, about: str, lines: Iterable[str], tell: PrintStyled) -> None:
    """Until there are no more lines or one says `quit`. `about` helps where the world lists no actions."""
    _show_beginning(game, tell)
    tell(f"Type an action, or one of: {', '.join(WORDS)}.\n", "dim")
    for line in lines:
        said = line.strip()
        try:
            match said:
                case "":
                    continue
                case "quit":
                    return
                case "help":
                    tell(_format_help(game, about), "")
                case "commands":
                    tell(_format_commands(game), "")
                case "expert":
                    tell(f"The expert would say: {game.ask_expert()}\n", "")
                case "answer":
                    tell(f"{game.example.target or 'The training data has no answer to this game.'}\n", "")
                case "again" | "next":
                    game.begin_game(game.number + (said == "next"))
                    _show_beginning(game, tell)
                case _:
                    _take_action(game, said.removeprefix(SAID).strip(), tell)
        except Agent2RLError as error:
            tell(f"{error}\n", "")


def complete_line(game: HumanGame, begun: str) -> list[str]:
    """What a line that is being typed can become."""
    return [line for line in (*game.list_commands(), *WORDS) if line.startswith(begun)]


def _show_beginning(game: HumanGame, tell: PrintStyled) -> None:
    steps = f", {game.allowed} steps" if game.allowed else ""
    tell(f"Training game {game.number} of {len(game.world.games)}: {game.example.id}{steps}\n", "bold")
    _show_state(game, tell)


def _take_action(game: HumanGame, action: str, tell: PrintStyled) -> None:
    game.take_action(action)
    _show_state(game, tell)


def _show_state(game: HumanGame, tell: PrintStyled) -> None:
    tell(f"{game.now.observation}\n", "")
    if game.over:
        tell(f"{game.outcome()} Type again, next or quit.\n", "bold")
    elif game.now.reward:
        tell(f"Reward {game.now.reward:.3g}.\n", "bold")


def _format_help(game: HumanGame, about: str) -> str:
    written = list_actions(game.world)
    said = (
        _format_columns(written)
        if written
        else f"Any text is an action. What the task says:\n\n{about.strip()}"
    )
    return f"{said}\n\n{_format_columns(list(WORDS.items()))}\n{SAID} …  an action, whatever it says\n"


def _format_columns(rows: list[tuple[str, str]]) -> str:
    wide = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:{wide}}  {right}" for left, right in rows)


def _format_commands(game: HumanGame) -> str:
    listed = [f"{SAID} {one}" if one in WORDS else one for one in game.list_commands()]
    return "\n".join(listed) + "\n" if listed else "Nothing can be listed now. Type help for the actions.\n"
